/**
 * Runs the Worker for one pytest process: `node tests/bridge.mjs '{"isolates": 2, "faults": true}'`.
 * Prints one line of JSON when it is ready; the Worker's output goes to stderr. Ends when its stdin closes.
 * Options: isolates, faults, tokens, persist, source, and worker: false for the "sql" worker alone.
 */
import { BootError, createRunner } from "../local/runner.mjs";
import { closeAtStop, stop, stopAtSignals } from "../local/stop.mjs";

/** Statements straight to D1, with its own answers and errors, for tests of the SQL. */
const SQL_WORKER = `
  export default {
    async fetch(request, env) {
      try {
        const batch = (await request.json()).map(({ sql, params = [] }) => env.DB.prepare(sql).bind(...params));
        return Response.json(await env.DB.batch(batch));
      } catch (error) {
        const causes = [];
        for (let cause = error.cause; cause; cause = cause.cause) causes.push(cause.message);
        return Response.json({ message: error.message, causes }, { status: 500 });
      }
    },
  };
`;

stopAtSignals();
process.stdin.on("close", stop).resume();

try {
  const runner = await createRunner({
    faults: true,
    log: (line) => process.stderr.write(`${line}\n`),
    ...JSON.parse(process.argv[2] ?? "{}"),
    extraWorkers: [{ name: "sql", script: SQL_WORKER }],
  });
  closeAtStop(runner.close);
  process.stdout.write(`${JSON.stringify({ url: runner.url, sql: await runner.directUrl("sql"), pid: process.pid })}\n`);
} catch (error) {
  process.stderr.write(`${error instanceof BootError ? error.message : error.stack}\n`);
  process.exit(1);
}
