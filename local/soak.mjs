/** `npm run soak`: installs what is missing, then runs the soak with the arguments given. */
import { become } from "./child.mjs";
import { ensure, PYTHON } from "./setup.mjs";

ensure({ development: true });
process.env.PYTHONPATH = "src";
become(PYTHON, ["-m", "soak", ...process.argv.slice(2)]);
