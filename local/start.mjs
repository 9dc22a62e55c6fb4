/** `npm start`: installs what is missing, then runs serve.mjs in the Node that Miniflare needs. */
import { become } from "./child.mjs";
import { ensure, NODE } from "./setup.mjs";

ensure();
// The channel ("ipc") tells the server when this process is gone, even if it was killed outright.
become(NODE, ["local/serve.mjs"], ["inherit", "inherit", "inherit", "ipc"]);
