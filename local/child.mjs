/** Runs another program in the place of this one. */
import { spawn } from "node:child_process";
import { PROJECT } from "./setup.mjs";

const LOOK_EVERY_MS = 500;

/** The child has the terminal, gets the signals, and gives this process its exit code. */
export function become(command, args, stdio = "inherit") {
  const child = spawn(command, args, { cwd: PROJECT, stdio });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  // npm, or the shell between, may be ended without passing the signal on.
  const parent = process.ppid;
  setInterval(() => process.ppid === parent || child.kill(), LOOK_EVERY_MS).unref();
  child.on("exit", (code) => process.exit(code ?? 1));
}
