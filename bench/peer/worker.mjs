/**
 * The JavaScript Worker that the Python Worker is measured against: the same routes, written by hand, with the same
 * checks, statements, hashes, answers and log line. `env.PLANS` holds the SQL, taken from the Python sources by
 * plans.py. It knows what is measured, and wins; every other answer is a bare error.
 */
import { authenticate, IDENTIFIER } from "./http.mjs";
import { Problem } from "./problem.mjs";
import { heartbeat, read, start, transition } from "./verbs.mjs";

const ROUTES = [
  { method: "POST", pattern: "/v1/starts", scope: "start", verb: start },
  { method: "GET", pattern: "/v1/runs/{run_id}", scope: "read", verb: read },
  { method: "POST", pattern: "/v1/runs/{run_id}/heartbeat", scope: "work", verb: heartbeat },
  { method: "POST", pattern: "/v1/runs/{run_id}/transition", scope: "work", verb: transition },
  { method: "GET", pattern: "/v1/health", scope: null, verb: () => ({ status: 200, body: { status: "ok", version: "peer" } }) },
].map((route) => ({ ...route, segments: route.pattern.split("/") }));

export default {
  async fetch(request, env) {
    const started = performance.now();
    const exchange = { route: null, principal: null, run: null, trips: 0, database_ms: 0, read: 0, written: 0 };
    let status = 200;
    let code = null;
    let body;
    let headers = {};
    let type = "application/json";
    try {
      ({ status, body, headers } = await answer(request, env, exchange));
    } catch (error) {
      if (!(error instanceof Problem)) console.error(error.stack);
      status = error.status ?? 500;
      code = error.code ?? "INTERNAL";
      type = "application/problem+json";
      body = { type: `/docs/errors#${code}`, title: code, status, detail: error instanceof Problem ? error.message : "", code };
    }
    console.log(logLine(request, exchange, status, code, performance.now() - started));
    const { trips, database_ms, read, written } = exchange;
    return new Response(JSON.stringify(body), {
      status,
      headers: {
        "Content-Type": type,
        "Cache-Control": "no-store",
        "Server-Timing": `d1;desc="${trips} round trips";dur=${database_ms.toFixed(0)}, rows;desc="${read} read, ${written} written"`,
        ...headers,
      },
    });
  },
};

async function answer(request, env, exchange) {
  const { route, params } = find(request.method, new URL(request.url).pathname);
  exchange.route = route.pattern;
  let grant = null;
  if (route.scope !== null) {
    grant = await authenticate(request.headers.get("authorization"), env.FENCEPOST_TOKENS, route.scope);
    exchange.principal = grant.principal;
  }
  const { run_id } = params;
  if (run_id !== undefined && !IDENTIFIER.test(run_id)) throw new Problem(404, "RUN_NOT_FOUND");
  return route.verb({ request, env, grant, exchange, run_id });
}

function find(method, path) {
  const segments = path.split("/");
  for (const route of ROUTES) {
    if (route.method !== method || route.segments.length !== segments.length) continue;
    const params = {};
    const matches = route.segments.every((expected, index) => {
      if (!expected.startsWith("{")) return expected === segments[index];
      params[expected.slice(1, -1)] = decodeURIComponent(segments[index]);
      return true;
    });
    if (matches) return { route, params };
  }
  throw new Problem(404, "NOT_FOUND");
}

function logLine(request, { route, principal, run, trips }, status, code, ms) {
  return JSON.stringify({
    method: request.method,
    route,
    status,
    code,
    principal: principal && `${principal.kind}:${principal.id}`,
    run,
    d1_round_trips: trips,
    branch: null,
    ms: Math.round(ms),
  });
}
