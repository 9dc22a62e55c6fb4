/**
 * Moves a deployment: `npm run move -- --from https://old --to https://new`, with the tokens of operators in
 * FENCEPOST_TOKEN, or FENCEPOST_TOKEN_FROM and FENCEPOST_TOKEN_TO. It prepares the target, seals the source (whose
 * fence must be migration-locked), brings every row over, and finishes the target, which a transition of its fence then
 * opens. Sent again it goes on where it stopped. Prints the proof as JSON, and exits 0; exits 1 with what is wrong.
 * `--moved-to`: where clients find the target, if not at `--to`. `--drain-proof FILE`: what drain-proof printed; it must
 * be of the state that was sealed, and is part of the proof. `--back`: make the target void, and unseal the source.
 */
import { readFile } from "node:fs/promises";
import { setTimeout } from "node:timers/promises";
import { parseArgs } from "node:util";

const TRIES = 5;
const SEAL = ["target_id", "seal", "revision", "last_admitted_revision", "manifest"];

class Refused extends Error {
  constructor(path, status, problem) {
    super(`${path} answered ${status} ${problem.code ?? ""}: ${problem.detail ?? ""}`);
    this.problem = problem;
  }
}

/** Resolves to the text of an answer; every request of a move may be sent again. */
function side(url, token) {
  return async function ask(path, body) {
    for (let tries = 1; ; tries++) {
      try {
        const answer = await fetch(new URL(path, url), {
          method: body === undefined ? "GET" : "POST",
          headers: { authorization: `Bearer ${token}` },
          body: typeof body === "object" ? JSON.stringify(body) : body,
        });
        const text = await answer.text();
        if (answer.ok) return text;
        const problem = parsed(text);
        const passing = answer.status >= 500 && !["DEPLOYMENT_MOVED", "EXECUTION_FENCED"].includes(problem.code);
        if (!passing || tries === TRIES) throw new Refused(path, answer.status, problem);
      } catch (error) {
        if (error instanceof Refused || tries === TRIES) throw error;
      }
      await setTimeout(200 * 2 ** tries);
    }
  };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text.slice(0, 200) };
  }
}

async function move(from, to, { movedTo, drain }) {
  const target = await prepared(to);
  const seal = await sealed(from, target.deployment_id, movedTo, drain);
  if (target.phase === "importing") await importAll(from, to, seal.manifest);
  const finished = await finish(from, to, seal);
  const { items } = JSON.parse(await from("/v1/inventory"));
  return {
    moved: true,
    from: { deployment_id: seal.deployment_id, revision: seal.revision },
    to: { deployment_id: finished.deployment_id, revision: finished.revision, phase: finished.phase },
    last_admitted_revision: seal.last_admitted_revision,
    drain: drain ?? null,
    owed: Object.fromEntries(items.map(({ category, count }) => [category, count])),
    tables: seal.manifest,
  };
}

async function prepared(to) {
  const status = JSON.parse(await to("/v1/transfer"));
  if (status.deployment_id !== null) return status;
  const target = JSON.parse(await to("/v1/transfer/prepare", {}));
  say(`prepared ${target.deployment_id}`);
  return target;
}

async function sealed(from, targetId, movedTo, drain) {
  let status = JSON.parse(await from("/v1/transfer"));
  requireDrained(status, drain);
  const asked = { target_id: targetId, moved_to: movedTo };
  if (status.phase === "none") asked.revision = status.revision;
  do status = JSON.parse(await from("/v1/transfer/seal", asked));
  while (delete asked.revision && status.phase === "sealing" && say("sealing: adding up the rows"));
  say(`sealed at revision ${status.revision}, for ${status.target_id}`);
  return status;
}

function requireDrained(status, drain) {
  if (drain === undefined) return;
  if (!drain.proved || drain.last_admitted_revision !== status.last_admitted_revision) {
    throw new Error("the drain proof is not of this deployment as it is: a run was started since");
  }
}

async function importAll(from, to, manifest) {
  const { imported } = JSON.parse(await to("/v1/transfer"));
  for (const { table, cursor } of imported ?? []) await importTable(from, to, table, cursor, manifest[table].rows);
}

async function importTable(from, to, table, begin, total) {
  let [cursor, rows, bytes] = [begin, 0, 0];
  do {
    const page = await from(pathOf(table, cursor));
    await to(`/v1/transfer/${table}`, page);
    const { rows: taken, cursor: next } = JSON.parse(page);
    [cursor, rows, bytes] = [next, rows + taken.length, bytes + page.length];
    progress(`${table}: ${rows} rows, ${(bytes / 2 ** 20).toFixed(1)} MiB`);
  } while (cursor !== null);
  say(`${table}: ${rows} of ${total} rows brought${begin === null ? "" : "; the others were there"}, ${(bytes / 2 ** 20).toFixed(1)} MiB`);
}

function pathOf(table, cursor) {
  return `/v1/transfer/${table}${cursor === null ? "" : `?cursor=${cursor}`}`;
}

async function finish(from, to, seal) {
  const asked = Object.fromEntries(SEAL.map((name) => [name, seal[name]]));
  try {
    for (;;) {
      const status = JSON.parse(await to("/v1/transfer/finish", asked));
      if (status.phase !== "importing") return status;
      say("finishing: adding up the rows");
    }
  } catch (error) {
    if (error.problem?.code !== "TRANSFER_DIFFERS") throw error;
    throw new Error(`${error.message} ${await firstDifference(from, to, error.problem.table)}`);
  }
}

/** Which row of a table differs first, by its place and its digests. */
async function firstDifference(from, to, table) {
  const [there, here] = [rowsOf(from, table), rowsOf(to, table)];
  for (let place = 1; ; place++) {
    const [{ value: expected }, { value: found }] = [await there.next(), await here.next()];
    if (expected === undefined && found === undefined) return "";
    if (expected?.digest === found?.digest) continue;
    const { key, digest } = expected ?? found;
    const how = found === undefined ? "is missing" : expected === undefined ? "is too many" : `has the digest ${found.digest}, and should have ${digest}`;
    return `Row ${place} of ${table}, ${JSON.stringify(key)}, ${how}.`;
  }
}

async function* rowsOf(ask, table) {
  let cursor = null;
  do {
    const page = JSON.parse(await ask(pathOf(table, cursor)));
    for (const { digest, values } of page.rows) yield { digest, key: values.slice(0, 2) };
    cursor = page.cursor;
  } while (cursor !== null);
}

/** The way back, until the target opens. */
async function back(from, to) {
  const source = JSON.parse(await from("/v1/transfer"));
  if (!["sealing", "sealed"].includes(source.phase)) throw new Error(`the source is not sealed: its fence is ${source.state}`);
  const { target_id, seal, revision } = source;
  const target = JSON.parse(await to("/v1/transfer/void", { target_id, seal }));
  say(`void: ${target.deployment_id}`);
  const unsealed = JSON.parse(await from("/v1/transfer/unseal", { revision, receipt: target.receipt }));
  return { moved: false, from: { state: unsealed.state, revision: unsealed.revision }, to: { phase: target.phase, receipt: target.receipt } };
}

function progress(line) {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${line}`);
}

function say(line) {
  process.stderr.write(process.stderr.isTTY ? `\r\x1b[K${line}\n` : `${line}\n`);
  return true;
}

async function main() {
  const text = { type: "string" };
  const options = { from: text, to: text, "moved-to": text, "drain-proof": text, back: { type: "boolean" } };
  const { values } = parseArgs({ options });
  const { FENCEPOST_TOKEN: token, FENCEPOST_TOKEN_FROM: fromToken = token, FENCEPOST_TOKEN_TO: toToken = token } = process.env;
  if (!values.from || !values.to || !fromToken || !toToken) {
    throw new Error("Give --from and --to, and the token of an operator of both in FENCEPOST_TOKEN.");
  }
  const [from, to] = [side(values.from, fromToken), side(values.to, toToken)];
  const file = values["drain-proof"];
  const drain = file === undefined ? undefined : JSON.parse(await readFile(file, "utf8"));
  const movedTo = values["moved-to"] ?? new URL(values.to).origin;
  console.log(JSON.stringify(await (values.back ? back(from, to) : move(from, to, { movedTo, drain }))));
}

main().catch((error) => {
  say(error.message);
  process.exitCode = 1;
});
