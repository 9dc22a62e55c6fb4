/**
 * The JavaScript Worker that the Python Worker is measured against: POST /v1/starts, written by hand, with the
 * same checks, statements, hashes, answer and log line. `env.PLAN` holds the SQL, taken from the Python sources by
 * start.py: a list of { sql, params }, where a parameter is { name } or { value }.
 * It knows a start and a replay, which is all that is measured; every other answer is a bare error.
 */
const GENESIS_HASH = "0".repeat(64);
const IDENTIFIER = /^(?!\.{1,2}$)[A-Za-z0-9._~-]{1,200}$/;
const BEARER = /^bearer +([A-Za-z0-9._~+/-]{1,256}=*) *$/i;
const BODY_BYTES_MAX = 1_048_576;
const DEPTH_MAX = 128;
const ENDED = new Set(["completed", "failed", "cancelled"]);
const STATUSES = new Set(["pending", "running", "suspended", ...ENDED]);

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    Object.assign(this, { status, code });
  }
}

export default {
  async fetch(request, env) {
    const started = performance.now();
    const exchange = { principal: null, run: null, trips: 0, database_ms: 0, read: 0, written: 0 };
    let status = 200;
    let code = null;
    let body;
    let headers = {};
    let type = "application/json";
    try {
      ({ status, body, headers } = await start(request, env, exchange));
    } catch (error) {
      if (!(error instanceof Problem)) console.error(error.stack);
      status = error.status ?? 500;
      code = error.code ?? "INTERNAL";
      type = "application/problem+json";
      body = { type: `/docs/errors#${code}`, title: code, status, detail: error instanceof Problem ? error.message : "", code };
    }
    const { principal, run, trips, database_ms, read, written } = exchange;
    console.log(
      JSON.stringify({
        method: request.method,
        route: "/v1/starts",
        status,
        code,
        principal: principal && `${principal.kind}:${principal.id}`,
        run,
        d1_round_trips: trips,
        ms: Math.round(performance.now() - started),
      }),
    );
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

async function start(request, env, exchange) {
  if (new URL(request.url).pathname !== "/v1/starts" || request.method !== "POST") throw new Problem(404, "NOT_FOUND", "");
  const grant = await authenticate(request.headers.get("authorization"), env.FENCEPOST_TOKENS);
  exchange.principal = grant.principal;
  if (!grant.scopes.includes("start")) throw new Problem(403, "SCOPE_MISSING", "");
  const key = idempotencyKey(request.headers.get("idempotency-key"));
  const wanted = readStart(await parseBody(request));
  const input_json = JSON.stringify(wanted.input);
  const { target, owner, lineage } = wanted;
  const fingerprint = await digest(canonical({ target, input: wanted.input, lineage }));

  const run_id = mintRunId();
  const token = mintToken();
  const payload = { run_id, target, fingerprint, state_sha256: await digest(input_json) };
  const event_payload = canonical(payload);
  const event = { sequence: 1, type: "run-created", payload, prior_hash: GENESIS_HASH };
  const values = {
    key,
    token,
    run_id,
    principal_kind: grant.principal.kind,
    principal_id: grant.principal.id,
    target_kind: target.kind,
    target_id: target.id,
    thread_id: target.thread_id ?? null,
    owner_host_id: owner.host_id,
    owner_pid: owner.pid,
    owner_nonce: owner.nonce,
    lease_ms: wanted.lease_ms,
    parent_run_id: wanted.parent_run_id,
    lineage_id: lineage?.id ?? null,
    lineage_round: lineage?.round ?? null,
    fingerprint,
    input_json,
    event_payload,
    event_hash: await digest(canonical(event)),
  };
  const results = await batch(env, values, exchange);
  const [fence, reservation, run] = results.slice(-3).map((result) => result.results);
  return decide(values, results[0].results.length > 0, readFence(fence), readReservation(reservation[0]), readRun(run[0]), exchange);
}

async function batch(env, values, exchange) {
  const statements = env.PLAN.map(({ sql, params }) => {
    const prepared = env.DB.prepare(sql);
    if (params.length === 0) return prepared;
    return prepared.bind(...params.map((param) => (param.name ? sendable(values[param.name]) : param.value)));
  });
  const sent = performance.now();
  exchange.trips += 1;
  const results = await env.DB.batch(statements);
  exchange.database_ms += performance.now() - sent;
  for (const { meta } of results) {
    exchange.read += meta.rows_read;
    exchange.written += meta.rows_written;
  }
  return results;
}

function decide(intent, created, fence, held, run, exchange) {
  if (held === null) throw new Problem(503, "EXECUTION_FENCED", fence.state);
  if (held.owner.kind !== intent.principal_kind || held.owner.id !== intent.principal_id) {
    throw new Problem(403, "START_OWNER_MISMATCH", "");
  }
  const { kind, id, thread_id = null } = held.target;
  if (kind !== intent.target_kind || id !== intent.target_id || thread_id !== intent.thread_id) {
    throw new Problem(422, "START_TARGET_MISMATCH", "");
  }
  if (held.fingerprint !== intent.fingerprint) throw new Problem(422, "START_INPUT_MISMATCH", "");
  if (run === null) throw new Problem(409, "START_UNRESOLVABLE", "");
  const mine =
    run.status === "running" &&
    run.owner.host_id === intent.owner_host_id &&
    run.owner.pid === intent.owner_pid &&
    run.owner.nonce === intent.owner_nonce;
  const replay = ENDED.has(run.status) || run.status === "suspended";
  if (!mine && !replay) throw new Problem(409, "START_PENDING", "");
  if (mine && !created && !admitsExistingRun(fence, run.run_id)) throw new Problem(503, "EXECUTION_FENCED", fence.state);
  exchange.run = run.run_id;
  const { fingerprint: _, ...reservation } = held;
  return {
    status: created ? 201 : 200,
    body: { outcome: replay ? "replayed" : "started", reservation, run },
    headers: { Location: `/v1/runs/${run.run_id}`, ...(replay ? { "Idempotent-Replayed": "true" } : {}) },
  };
}

function admitsExistingRun(fence, run_id) {
  return fence.state === "open" || fence.state === "draining" || (fence.state === "proof-only" && fence.proof_run_id === run_id);
}

// --- Requests ----------------------------------------------------------------------------

let configured; // { text, grants }

async function authenticate(header, text) {
  if (configured?.text !== text) configured = { text, grants: grants(text) };
  const sent = BEARER.exec(header ?? "");
  if (sent === null) throw new Problem(401, "UNAUTHENTICATED", "");
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", encoder.encode(sent[1])));
  let granted = null;
  for (const grant of configured.grants) if (crypto.subtle.timingSafeEqual(grant.sha256, hash)) granted = grant;
  if (granted === null) throw new Problem(401, "UNAUTHENTICATED", "");
  return granted;
}

function grants(text) {
  if (!text) throw new Problem(503, "AUTH_UNCONFIGURED", "");
  return JSON.parse(text).map(({ sha256, principal, scopes }) => ({ sha256: Uint8Array.fromHex(sha256), principal, scopes }));
}

function idempotencyKey(header) {
  if (header === null) throw new Problem(400, "IDEMPOTENCY_KEY_MISSING", "");
  const key = header.length > 1 && header.startsWith('"') && header.endsWith('"') ? header.slice(1, -1) : header;
  if (!IDENTIFIER.test(key)) throw new Problem(400, "IDEMPOTENCY_KEY_INVALID", "");
  return key;
}

async function parseBody(request) {
  if (Number(request.headers.get("content-length") ?? 0) > BODY_BYTES_MAX) throw new Problem(413, "TOO_LARGE", "");
  const bytes = await request.arrayBuffer();
  if (bytes.byteLength > BODY_BYTES_MAX) throw new Problem(413, "TOO_LARGE", "");
  try {
    return JSON.parse(decoder.decode(bytes));
  } catch {
    throw invalid("The body is not JSON.");
  }
}

const invalid = (detail) => new Problem(400, "INVALID_REQUEST", detail);

function readStart(body) {
  const { target, input = null, owner, lease_ms = 30_000, parent_run_id = null, lineage = null, ...rest } = members(body);
  nothingElse(rest);
  if (parent_run_id !== null) identifier(parent_run_id);
  return {
    target: readTarget(target),
    input,
    owner: owner === undefined ? { host_id: "fencepost", pid: 0, nonce: mintToken() } : readOwner(owner),
    lease_ms: integer(lease_ms, 1_000, 3_600_000),
    parent_run_id,
    lineage: lineage === null ? null : readLineage(lineage),
  };
}

function readTarget(value) {
  const { kind, id, thread_id, ...rest } = members(value);
  nothingElse(rest);
  if (kind !== "workflow" && kind !== "agent") throw invalid("'kind' is workflow or agent.");
  if ((kind === "agent") !== (thread_id !== undefined)) throw invalid("An agent has a thread, a workflow has none.");
  const target = { kind, id: identifier(id) };
  return thread_id === undefined ? target : { ...target, thread_id: identifier(thread_id) };
}

function readOwner(value) {
  const { host_id, pid, nonce, ...rest } = members(value);
  nothingElse(rest);
  return { host_id: ownerField(host_id), pid: integer(pid, 0, Number.MAX_SAFE_INTEGER), nonce: ownerField(nonce) };
}

function readLineage(value) {
  const { id, round, ...rest } = members(value);
  nothingElse(rest);
  return { id: identifier(id), round: integer(round, 0, Number.MAX_SAFE_INTEGER) };
}

function members(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw invalid("Not a JSON object.");
  return value;
}

function nothingElse(rest) {
  if (Object.keys(rest).length > 0) throw invalid("Unknown members.");
}

function identifier(value) {
  if (typeof value !== "string" || !IDENTIFIER.test(value)) throw invalid("Not an identifier.");
  return value;
}

function integer(value, low, high) {
  if (!Number.isInteger(value) || value < low || value > high) throw invalid("Not an integer in range.");
  return value;
}

function ownerField(value) {
  if (typeof value !== "string" || value === "" || value.length > 1024 || value.includes("\0") || !value.isWellFormed()) {
    throw invalid("Not an owner field.");
  }
  return value;
}

/** RFC 8785: members sorted by UTF-16 units, numbers and strings as JavaScript writes them. */
function canonical(value, depth = 0) {
  if (depth > DEPTH_MAX) throw invalid("The body nests too deep.");
  if (typeof value === "string") {
    if (!value.isWellFormed()) throw invalid("A lone surrogate.");
    return JSON.stringify(value);
  }
  if (typeof value === "number") {
    if (!Number.isFinite(value) || (Number.isInteger(value) && !Number.isSafeInteger(value))) throw invalid("A number out of range.");
    return JSON.stringify(value);
  }
  if (value === null || typeof value === "boolean") return String(value);
  if (Array.isArray(value)) return `[${value.map((item) => canonical(item, depth + 1)).join()}]`;
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${canonical(name)}:${canonical(value[name], depth + 1)}`).join()}}`;
}

async function digest(text) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", encoder.encode(text))).toHex();
}

const random = (bytes) => crypto.getRandomValues(new Uint8Array(bytes)).toHex();
const mintToken = () => random(16);
const mintRunId = () => `run_${Date.now().toString(16).padStart(12, "0")}${random(10)}`;

/** What D1 would refuse, cut short or change. */
function sendable(value) {
  if (typeof value !== "string") return value;
  if (value.includes("\0") || !value.isWellFormed() || value.length > 2_000_000) throw invalid("Not text that D1 takes.");
  return value;
}

// --- Rows --------------------------------------------------------------------------------

function rule(holds, name) {
  if (!holds) throw new Problem(500, "ROW_CORRUPT", name);
}

function readFence(rows) {
  if (rows.length === 0) return { state: "open", revision: 0, proof_key: null, proof_run_id: null };
  rule(rows.length === 1, "one fence row");
  const [row] = rows;
  rule(["open", "draining", "migration-locked", "proof-only"].includes(row.state), "fence state");
  rule((row.state === "proof-only") === (row.proof_key !== null), "fence proof key");
  return row;
}

function readReservation(row) {
  if (row === undefined) return null;
  rule(["human", "service", "agent", "system"].includes(row.owner_kind), "owner kind");
  rule(row.owner_id.length > 0 && row.owner_id.length <= 200 && row.owner_id.trim() !== "", "owner id");
  rule(row.target_kind === "workflow" || row.target_kind === "agent", "target kind");
  rule((row.target_kind === "agent") === (row.thread_id !== null), "thread");
  rule(IDENTIFIER.test(row.run_id), "run id");
  rule(["reserved", "started", "terminal"].includes(row.state), "state");
  rule(Number.isSafeInteger(row.attempt) && row.attempt >= 1, "attempt");
  rule(row.state !== "started" || row.claim_nonce !== null, "claim");
  rule(isTime(row.created_at_ms) && isTime(row.updated_at_ms), "times");
  return {
    key: row.key,
    owner: { kind: row.owner_kind, id: row.owner_id },
    target: readRowTarget(row),
    run_id: row.run_id,
    state: row.state,
    attempt: row.attempt,
    outcome: row.outcome,
    created_at_ms: row.created_at_ms,
    updated_at_ms: row.updated_at_ms,
    fingerprint: row.fingerprint,
  };
}

const INTEGERS = ["generation", "heartbeat_at_ms", "lease_ms", "lease_expires_at_ms", "owner_pid", "claim_pid", "claimed_at_ms"].concat(
  ["cancel_requested_at_ms", "cancel_acknowledged_at_ms", "lineage_round", "head_sequence", "created_at_ms", "started_at_ms"],
  ["finished_at_ms"],
);
const isTime = (value) => Number.isSafeInteger(value) && value >= 0;
const allOrNone = (...values) => values.every((value) => (value === null) === (values[0] === null));

function readRun(row) {
  if (row === undefined) return null;
  rule(STATUSES.has(row.status), "status");
  rule(INTEGERS.every((name) => row[name] === null || isTime(row[name])), "numbers");
  rule(allOrNone(row.owner_host_id, row.owner_pid, row.owner_nonce, row.heartbeat_at_ms, row.lease_expires_at_ms), "owner");
  rule((row.status === "running") === (row.owner_host_id !== null), "running");
  rule(allOrNone(row.claim_host_id, row.claim_pid, row.claim_nonce, row.claimed_at_ms), "claim");
  rule(allOrNone(row.lineage_id, row.lineage_round), "lineage");
  rule(ENDED.has(row.status) === (row.finished_at_ms !== null), "end");
  return {
    run_id: row.run_id,
    status: row.status,
    target: readRowTarget(row),
    owner: readRowOwner(row.owner_host_id, row.owner_pid, row.owner_nonce),
    generation: row.generation,
    heartbeat_at_ms: row.heartbeat_at_ms,
    lease_expires_at_ms: row.lease_expires_at_ms,
    claim: row.claim_host_id === null ? null : { owner: readRowOwner(row.claim_host_id, row.claim_pid, row.claim_nonce), claimed_at_ms: row.claimed_at_ms },
    created_at_ms: row.created_at_ms,
    started_at_ms: row.started_at_ms,
    finished_at_ms: row.finished_at_ms,
    cancel_requested_at_ms: row.cancel_requested_at_ms,
    cancel_acknowledged_at_ms: row.cancel_acknowledged_at_ms,
    parent_run_id: row.parent_run_id,
    lineage: row.lineage_id === null ? null : { id: row.lineage_id, round: row.lineage_round },
    head: { sequence: row.head_sequence, hash: row.head_hash },
    machine: null,
    state: row.state === null ? null : JSON.parse(row.state),
    result: row.result === null ? null : JSON.parse(row.result),
  };
}

function readRowTarget({ target_kind: kind, target_id: id, thread_id }) {
  return thread_id === null ? { kind, id } : { kind, id, thread_id };
}

function readRowOwner(host_id, pid, nonce) {
  return host_id === null ? null : { host_id, pid, nonce };
}
