/** `npm test`: installs what is missing, then runs pytest with the arguments given. */
import { become } from "./child.mjs";
import { ensure, PYTHON } from "./setup.mjs";

ensure({ development: true });
become(PYTHON, ["-m", "pytest", ...process.argv.slice(2)]);
