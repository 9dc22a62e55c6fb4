/**
 * The Workers that are measured, in one workerd process over one database. Takes one argument, JSON:
 *   { runner: settings of createRunner, plans: the peer's statements, or null for no peer }
 * Prints { url, peer, empty } as one line of JSON (`empty`: a JavaScript Worker that only answers); ends when its
 * standard input closes.
 */
import { readdirSync, readFileSync } from "node:fs";
import { BootError, createRunner } from "../local/runner.mjs";
import { tokens } from "../local/settings.mjs";
import { closeAtStop, stop, stopAtSignals } from "../local/stop.mjs";

const EMPTY = `export default { fetch: () => new Response('{"status":"ok"}') };`;

stopAtSignals();
process.stdin.on("close", stop).resume();

const { runner: settings, plans } = JSON.parse(process.argv[2]);
const peer = plans && { name: "peer", ...peerModules(), bindings: { PLANS: plans, FENCEPOST_TOKENS: tokens(settings.tokens) } };
try {
  const runner = await createRunner({
    quiet: true,
    ...settings,
    extraWorkers: [{ name: "empty", script: EMPTY }, ...(peer ? [peer] : [])],
  });
  closeAtStop(runner.close);
  const addresses = { url: runner.url, empty: await runner.directUrl("empty"), peer: peer && (await runner.directUrl("peer")) };
  console.log(JSON.stringify(addresses));
} catch (error) {
  console.error(error instanceof BootError ? error.message : error.stack);
  process.exit(1);
}

function peerModules() {
  const folder = new URL("peer/", import.meta.url);
  const { "worker.mjs": script, ...modules } = Object.fromEntries(
    readdirSync(folder).map((name) => [name, readFileSync(new URL(name, folder), "utf8")]),
  );
  return { script, modules };
}
