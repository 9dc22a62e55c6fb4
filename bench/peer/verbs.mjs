/** The verbs that are measured. Each takes what `worker.mjs` gives it and answers { status, body, headers }. */
import { canonical, digest, GENESIS, nextEvent } from "./canonical.mjs";
import { batch } from "./database.mjs";
import { idempotencyKey, mintRunId, mintToken, nothingElse, parseBody, readHeartbeat, readStart, readTransition } from "./http.mjs";
import { Problem } from "./problem.mjs";
import { ENDED, readFence, readReservation, readRun } from "./rows.mjs";

export async function start({ request, env, grant, exchange }) {
  const key = idempotencyKey(request.headers.get("idempotency-key"));
  const { start: wanted, rest } = readStart(await parseBody(request));
  const { target, input, owner, lease_ms, parent_run_id, lineage } = wanted;
  const fingerprint = await digest(canonical({ target, input, lineage }));
  nothingElse(rest);
  const run_id = await mintRunId(key);
  const input_json = JSON.stringify(input);
  const state_sha256 = await digest(input_json);
  const payload = { run_id, target, fingerprint, principal: grant.principal, lineage, parent_run_id, subject: null, state_sha256 };
  const values = {
    key,
    token: mintToken(),
    run_id,
    principal_kind: grant.principal.kind,
    principal_id: grant.principal.id,
    target_kind: target.kind,
    target_id: target.id,
    thread_id: target.thread_id ?? null,
    ...ownerColumns(owner),
    lease_ms,
    parent_run_id,
    lineage_id: lineage?.id ?? null,
    lineage_round: lineage?.round ?? null,
    fingerprint,
    input_json,
    traceparent: traceparent(request.headers.get("traceparent")),
    ...(await nextEvent(GENESIS, "run-created", payload)),
  };
  const results = await batch(env.DB, env.PLANS.start, values, exchange);
  const [fence, reservation, run] = results.slice(-3);
  return decide(values, results[0].length > 0, readFence(fence), readReservation(reservation[0]), run[0], exchange);
}

function decide(intent, created, fence, held, row, exchange) {
  if (held === null) throw new Problem(503, "EXECUTION_FENCED", fence.state);
  if (held.owner.kind !== intent.principal_kind || held.owner.id !== intent.principal_id) throw new Problem(403, "START_OWNER_MISMATCH");
  const { kind, id, thread_id = null } = held.target;
  if (kind !== intent.target_kind || id !== intent.target_id || thread_id !== intent.thread_id) {
    throw new Problem(422, "START_TARGET_MISMATCH");
  }
  const { fingerprint, subject_sha256, joined, ...reservation } = held;
  if (fingerprint !== intent.fingerprint) throw new Problem(422, "START_INPUT_MISMATCH");
  if (subject_sha256 !== null || joined) throw new Problem(409, "OPERATION_ID_CONFLICT");
  const run = readRun(row);
  if (run === null) throw new Problem(409, "START_UNRESOLVABLE");
  const { now_ms } = row;
  const mine = isHeldBy(run, intent) && now_ms <= run.lease_expires_at_ms;
  const replay = ENDED.has(run.status) || run.status === "suspended";
  if (!mine && !replay) throw new Problem(409, "START_PENDING");
  if (mine && !created) requireExistingRun(fence, run.run_id);
  exchange.run = run.run_id;
  return {
    status: created ? 201 : 200,
    body: { outcome: replay ? "replayed" : "started", reservation: { ...reservation, joined: Boolean(joined) }, run, replays: replays(run) },
    headers: { Location: `/v1/runs/${run.run_id}`, ...(replay ? { "Idempotent-Replayed": "true" } : {}) },
  };
}

const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
const traceparent = (header) => (header !== null && TRACEPARENT.test(header) ? header : null);

const DAY_MS = 86_400_000;

/** How long the key replays, by the default retention. */
function replays({ finished_at_ms }) {
  if (finished_at_ms === null) return null;
  const run_until_ms = finished_at_ms + 30 * DAY_MS;
  return { run_until_ms, key_until_ms: run_until_ms + 365 * DAY_MS };
}

export async function read({ env, grant, exchange, run_id }) {
  return { status: 200, body: await readOne(env, grant, run_id, exchange) };
}

export async function heartbeat({ request, env, grant, exchange, run_id }) {
  const { owner, generation, lease_ms } = readHeartbeat(await parseBody(request));
  const values = { run_id, ...viewer(grant), ...ownerColumns(owner), generation, lease_ms, token: mintToken() };
  const { won, run, fence } = await attempt(env, env.PLANS.heartbeat, values, exchange);
  if (!won) throw loss(fence, run, "FENCE_LOST");
  return { status: 200, body: { outcome: "renewed", run } };
}

export async function transition({ request, env, grant, exchange, run_id }) {
  const { owner, generation, to, state, result, expected_head } = readTransition(await parseBody(request));
  const text = JSON.stringify(to === "running" ? state : result);
  const payload = { from: "running", to, [`${to === "running" ? "state" : "result"}_sha256`]: await digest(text) };
  const head = expected_head ?? (await readOne(env, grant, run_id, exchange)).head;
  const values = {
    run_id,
    ...viewer(grant),
    ...ownerColumns(owner),
    generation,
    principal_kind: grant.principal.kind,
    principal_id: grant.principal.id,
    head_hash: head.hash,
    text,
    token: mintToken(),
    ...(await nextEvent(head, "state-transitioned", payload)),
  };
  const plan = to === "running" ? env.PLANS.checkpoint : env.PLANS.finish;
  const { won, run, fence } = await attempt(env, plan, values, exchange);
  if (!won) throw loss(fence, run, isHeldBy(run, values) ? "HEAD_CHANGED" : "FENCE_LOST");
  return { status: 200, body: { outcome: "transitioned", run } };
}

/** A verb's batch: its first statement returns a row if it won; run, fence and what beat it are read last. */
async function attempt(env, plan, values, exchange) {
  const results = await batch(env.DB, plan, values, exchange);
  const [rows, fence] = results.slice(-3);
  return { won: results[0].length > 0, run: found(rows, exchange), fence: readFence(fence) };
}

async function readOne(env, grant, run_id, exchange) {
  const [rows] = await batch(env.DB, env.PLANS.read, { run_id, ...viewer(grant) }, exchange);
  return found(rows, exchange);
}

function found(rows, exchange) {
  if (rows.length === 0) throw new Problem(404, "RUN_NOT_FOUND");
  const run = readRun(rows[0]);
  exchange.run = run.run_id;
  return run;
}

function loss(fence, run, code) {
  requireExistingRun(fence, run.run_id);
  return new Problem(409, code);
}

function requireExistingRun(fence, run_id) {
  const admitted = ["open", "draining"].includes(fence.state) || (fence.state === "proof-only" && fence.proof_run_id === run_id);
  if (!admitted) throw new Problem(503, "EXECUTION_FENCED", fence.state);
}

const ownerColumns = ({ host_id, pid, nonce }) => ({ owner_host_id: host_id, owner_pid: pid, owner_nonce: nonce });

/** Whose runs a token may see: its principal's, or everybody's. */
function viewer({ principal, scopes }) {
  return scopes.includes("operate") ? { viewer_kind: null, viewer_id: null } : { viewer_kind: principal.kind, viewer_id: principal.id };
}

function isHeldBy({ status, owner, generation: present }, { owner_host_id, owner_pid, owner_nonce, generation = null }) {
  const mine = status === "running" && owner.host_id === owner_host_id && owner.pid === owner_pid && owner.nonce === owner_nonce;
  return mine && (generation === null || generation === present);
}
