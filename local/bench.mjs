/** `npm run bench`: installs what is missing, then runs the benchmarks with the arguments given. */
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { ensure, PROJECT, PYTHON } from "./setup.mjs";

ensure({ development: true });
const script = join(PROJECT, "bench", "start.py");
const { status } = spawnSync(PYTHON, [script, ...process.argv.slice(2)], { cwd: PROJECT, stdio: "inherit" });
process.exit(status ?? 1);
