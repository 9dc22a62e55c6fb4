/** `npm run bench`: installs what is missing, then runs the benchmarks with the arguments given. */
import { become } from "./child.mjs";
import { ensure, PYTHON } from "./setup.mjs";

ensure({ development: true, benchmarks: true });
become(PYTHON, ["-m", "bench", ...process.argv.slice(2)]);
