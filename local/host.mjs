/** The Worker around the Python Worker: starts the interpreter and hands each event to `entry.Default`. */
import { WorkerEntrypoint } from "cloudflare:workers";
import { tripsSoFar, withDelay } from "./delay.mjs";
import { Rival, withFaults } from "./faults.mjs";
import { RowCount } from "./rows.mjs";
import { startPython } from "./interpreter.mjs";
import { problem } from "./problem.mjs";

const SCHEDULED_PATH = "/cdn-cgi/handler/scheduled";

let starting; // one interpreter an isolate
const python = (env) => (starting ??= startPython(env.UNSAFE_EVAL));

/** Runs as the isolate's own small worker, at a port that only the runner knows: brings Python up. */
export class Boot extends WorkerEntrypoint {
  async fetch() {
    try {
      await python(this.env);
      return new Response(null, { status: 204 });
    } catch (error) {
      return new Response(readable(error), { status: 500 });
    }
  }
}

class ScheduledController {
  noRetry() {}
}

export default class Host extends WorkerEntrypoint {
  constructor(ctx, env) {
    super(ctx, env);
    // Any other name is an RPC method, which only Python knows; but the runtime itself asks for a handler of CONNECT.
    return new Proxy(this, {
      get: (target, name) =>
        typeof name !== "string" || name in target || name === "connect"
          ? Reflect.get(target, name, target)
          : (...args) => invoke(this, bindings(env), name, ...args),
    });
  }

  async fetch(request) {
    try {
      return await (isPlain(request, this.env.LOCAL) ? this.serve(request, bindings(this.env)) : this.serveSpecially(request));
    } catch (error) {
      if (error instanceof Response) return error;
      console.error(readable(error));
      return problem(500, "INTERNAL", "The Worker failed. The reason is in its log.", "same-key");
    }
  }

  async serve(request, env) {
    const response = await invoke(this, env, "fetch", request);
    if (response instanceof Response) return response;
    throw new TypeError(`entry.Default.fetch returned ${response}, not a Response`);
  }

  /** A request with faults, from far away, for the cron trigger, or for an isolate by its number. */
  async serveSpecially(request) {
    const local = this.env.LOCAL;
    const isolate = request.headers.get("x-local-isolate");
    if (isolate !== null && local.isolates === 1 && isolate !== "0") {
      return problem(400, "LOCAL_ISOLATE_UNKNOWN", "X-Local-Isolate must be 0: there is one isolate.");
    }
    const env = { ...bindings(this.env) };
    const faults = local.faults ? request.headers.get("x-local-fault") : null;
    const rival = new Rival(faults && request.headers.get("x-local-rival"), this.env.LOCAL_RIVAL);
    if (faults !== null) env.DB = withFaults(env.DB, faults, rival.act);
    if (local.tripDelayMs > 0) env.DB = withDelay(env.DB, local.tripDelayMs, request.headers.has("x-local-one-by-one"));
    if (URL.parse(request.url)?.pathname === SCHEDULED_PATH) return await this.trigger(env, request);
    const rows = new RowCount(request.headers.has("x-local-rows"));
    env.DB = rows.counting(env.DB);
    const response = rows.told(await this.serve(request, env));
    if (local.tripDelayMs > 0) response.headers.set("X-Local-Trips", String(tripsSoFar()));
    return rival.told(response);
  }

  async scheduled(controller) {
    await invoke(this, bindings(this.env), "scheduled", controller, null, null);
  }

  /** Crons never fire locally: a request stands for one, at the path that `wrangler dev` uses too. */
  async trigger(env, request) {
    const { searchParams } = new URL(request.url);
    const controller = new ScheduledController();
    controller.scheduledTime = Number(searchParams.get("time") ?? Date.now());
    controller.cron = searchParams.get("cron") ?? "";
    await invoke(this, env, "scheduled", controller, null, null);
    return new Response("ok");
  }
}

/** Call Python, and free the proxy of its coroutine: it would keep the request alive without end. */
async function invoke(host, env, method, ...args) {
  const call = await python(host.env);
  const coroutine = call(host.ctx, env, method, ...args);
  try {
    return await coroutine;
  } finally {
    coroutine.destroy();
  }
}

/** Whether nothing but the Worker has to do with a request: benchmarks should not pay for what tests need. */
function isPlain({ url, headers }, { faults, tripDelayMs }) {
  const plain = !faults && tripDelayMs === 0 && !url.includes(SCHEDULED_PATH);
  return plain && !headers.has("x-local-isolate") && !headers.has("x-local-rows");
}

const environments = new WeakMap();

/** What a deployed Worker would find in its environment. */
function bindings(env) {
  if (!environments.has(env)) {
    const { UNSAFE_EVAL, LOCAL, LOCAL_RIVAL, ...rest } = env;
    environments.set(env, rest);
  }
  return environments.get(env);
}

/** A Python traceback without the frames of Pyodide and of this host, or a JavaScript stack. */
function readable(error) {
  if (error.constructor.name !== "PythonError") return error.stack ?? String(error);
  return error.message.trimEnd().replace(/^  File "(\/host\.py|.*\/_pyodide\/).*\n(^    .*\n)*/gm, "");
}
