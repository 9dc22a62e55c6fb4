/** `npm start`: installs what is missing, then runs serve.mjs in the Node that Miniflare needs. */
import { spawn } from "node:child_process";
import { join } from "node:path";
import { ensure, NODE, PROJECT } from "./setup.mjs";

ensure();

// The channel tells the child when this process dies, however it dies.
const server = spawn(NODE, [join(PROJECT, "local", "serve.mjs")], { stdio: ["inherit", "inherit", "inherit", "ipc"] });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => server.kill(signal));
server.on("exit", (code) => process.exit(code ?? 1));
