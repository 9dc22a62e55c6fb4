/**
 * Proves that a deployment owes nothing any more: `npm run drain-proof -- --url https://…`, with the
 * token of an operator in FENCEPOST_TOKEN. Two sweeps of the inventory, at least 60 seconds apart,
 * both empty, the fence `draining` and not moved meanwhile. Prints the proof as JSON, with the last
 * revision of the fence under which a run was started, and exits 0;
 * exits 1 with what is left. `--wait` sweeps until there is nothing left.
 */
import { setTimeout } from "node:timers/promises";
import { parseArgs } from "node:util";

const SECONDS_APART = 60;

/** Resolves to { proved, reason?, sweeps }; `get(path)` asks the deployment. */
async function prove(get, wait) {
  let sweeps = [];
  for (;;) {
    const sweep = await take(get);
    console.error(JSON.stringify(sweep));
    if (sweep.state !== "draining") return { proved: false, reason: `the fence is ${sweep.state}, not draining`, sweeps };
    const left = Object.values(sweep.counts).reduce((sum, count) => sum + count, 0);
    const least = sweep.more ? "at least " : "";
    const moved = sweeps.length > 0 && sweeps[0].revision !== sweep.revision;
    sweeps = left > 0 ? [] : moved ? [sweep] : [...sweeps, sweep];
    if (sweeps.length === 2) return { proved: true, last_admitted_revision: sweep.last_admitted_revision, sweeps };
    if (left > 0 && !wait) return { proved: false, reason: `${least}${left} pieces of work are left`, sweeps: [sweep] };
    await setTimeout(SECONDS_APART * 1000);
  }
}

/** One sweep: the fence before, the work of every category, and the fence after. */
async function take(get) {
  const before = await get("/v1/fence");
  const { items } = await get("/v1/inventory");
  const work = items.filter(({ kind }) => kind === "work");
  const after = await get("/v1/fence");
  return {
    at: new Date().toISOString(),
    state: before.revision === after.revision ? after.state : "moving",
    revision: after.revision,
    last_admitted_revision: after.last_admitted_revision,
    counts: Object.fromEntries(work.map(({ category, count }) => [category, count])),
    more: work.some(({ more }) => more),
  };
}

async function main() {
  const { values } = parseArgs({ options: { url: { type: "string" }, wait: { type: "boolean" } } });
  const token = process.env.FENCEPOST_TOKEN;
  if (!values.url || !token) throw new Error("Give --url, and the token of an operator in FENCEPOST_TOKEN.");
  const get = async (path) => {
    const answer = await fetch(new URL(path, values.url), { headers: { authorization: `Bearer ${token}` } });
    if (!answer.ok) throw new Error(`${path} answered ${answer.status}: ${(await answer.json()).detail}`);
    return answer.json();
  };
  const proof = await prove(get, values.wait);
  console.log(JSON.stringify(proof));
  process.exitCode = proof.proved ? 0 : 1;
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
