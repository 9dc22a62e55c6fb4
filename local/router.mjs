/** In front of several isolates: to the one that `X-Local-Isolate` names, or to the next. */
import { problem } from "./problem.mjs";

let turn = 0;

export default {
  fetch(request, env) {
    const named = request.headers.get("x-local-isolate");
    if (named === null) return env[`ISOLATE_${turn++ % env.ISOLATES}`].fetch(request);
    if (/^\d+$/.test(named) && Number(named) < env.ISOLATES) return env[`ISOLATE_${Number(named)}`].fetch(request);
    return problem(400, "LOCAL_ISOLATE_UNKNOWN", `X-Local-Isolate must be from 0 to ${env.ISOLATES - 1}.`);
  },
};
