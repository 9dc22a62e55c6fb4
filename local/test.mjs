/** `npm test`: installs what is missing, then runs pytest with the arguments given. */
import { spawnSync } from "node:child_process";
import { ensure, PROJECT, PYTHON } from "./setup.mjs";

ensure({ development: true });
const { status } = spawnSync(PYTHON, ["-m", "pytest", ...process.argv.slice(2)], { cwd: PROJECT, stdio: "inherit" });
process.exit(status ?? 1);
