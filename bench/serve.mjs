/**
 * The Python Worker and its JavaScript peer in one workerd process, over one database in memory. Started by
 * start.py with the peer's statements, and perhaps a `source` folder, as JSON. Prints both addresses as one line
 * of JSON; ends when its standard input closes.
 */
import { readFileSync } from "node:fs";
import { BootError, createRunner } from "../local/runner.mjs";
import { tokens } from "../local/settings.mjs";

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => process.exit(0));
process.stdin.on("close", () => process.exit(0)).resume();

const { plan, source } = JSON.parse(process.argv[2]);
const script = readFileSync(new URL("peer.mjs", import.meta.url), "utf8");
try {
  const runner = await createRunner({
    quiet: true,
    source,
    extraWorkers: [{ name: "peer", script, bindings: { PLAN: plan, FENCEPOST_TOKENS: tokens() } }],
  });
  console.log(JSON.stringify({ python: runner.url, javascript: await runner.directUrl("peer") }));
} catch (error) {
  console.error(error instanceof BootError ? error.message : error.stack);
  process.exit(1);
}
