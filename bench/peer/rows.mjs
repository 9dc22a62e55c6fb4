/** Rows of D1 into the shapes of the answers, each row judged by the rules that the Python Worker has. */
import { IDENTIFIER } from "./http.mjs";
import { Problem } from "./problem.mjs";

export const ENDED = new Set(["completed", "failed", "cancelled"]);
const STATUSES = new Set(["pending", "running", "suspended", ...ENDED]);

function rule(holds, name) {
  if (!holds) throw new Problem(500, "ROW_CORRUPT", name);
}

export function readFence(rows) {
  if (rows.length === 0) return { state: "open", revision: 0, proof_key: null, proof_run_id: null };
  rule(rows.length === 1, "one fence row");
  const [row] = rows;
  rule(["open", "draining", "migration-locked", "proof-only"].includes(row.state), "fence state");
  rule((row.state === "proof-only") === (row.proof_key !== null), "fence proof key");
  return row;
}

export function readReservation(row) {
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
  rule(row.admitted_revision === null || isTime(row.admitted_revision), "revision");
  return {
    key: row.key,
    owner: { kind: row.owner_kind, id: row.owner_id },
    target: readRowTarget(row),
    run_id: row.run_id,
    state: row.state,
    attempt: row.attempt,
    outcome: row.outcome,
    admitted_revision: row.admitted_revision,
    created_at_ms: row.created_at_ms,
    updated_at_ms: row.updated_at_ms,
    fingerprint: row.fingerprint,
    joined: row.joined === 1,
    subject_sha256: row.subject_sha256,
  };
}

const INTEGERS = [
  ...["generation", "heartbeat_at_ms", "lease_ms", "lease_expires_at_ms", "owner_pid", "claim_pid", "claimed_at_ms"],
  ...["cancel_requested_at_ms", "cancel_acknowledged_at_ms", "lineage_round", "head_sequence"],
  ...["created_at_ms", "started_at_ms", "finished_at_ms"],
];
const isTime = (value) => Number.isSafeInteger(value) && value >= 0;
const allOrNone = (...values) => values.every((value) => (value === null) === (values[0] === null));

export function readRun(row) {
  if (row === undefined) return null;
  rule(STATUSES.has(row.status), "status");
  rule(INTEGERS.every((name) => row[name] === null || isTime(row[name])), "numbers");
  rule(allOrNone(row.owner_host_id, row.owner_pid, row.owner_nonce, row.heartbeat_at_ms, row.lease_expires_at_ms), "owner");
  rule((row.status === "running") === (row.owner_host_id !== null), "running");
  rule(allOrNone(row.claim_host_id, row.claim_pid, row.claim_nonce, row.claimed_at_ms), "claim");
  rule(allOrNone(row.lineage_id, row.lineage_round), "lineage");
  rule(allOrNone(row.machine, row.machine_state) && (row.machine_code === null || row.machine !== null), "machine");
  rule(ENDED.has(row.status) === (row.finished_at_ms !== null), "end");
  rule(row.state !== null || row.bare === 1, "state");
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
    machine: readMachine(row),
    traceparent: row.traceparent,
    state: row.state === null ? null : JSON.parse(row.state),
    result: row.result === null ? null : JSON.parse(row.result),
  };
}

function readMachine({ machine: name, machine_state: state, machine_code: code }) {
  if (name === null) return null;
  return code === null ? { name, state } : { name, state, code };
}

function readRowTarget({ target_kind: kind, target_id: id, thread_id }) {
  return thread_id === null ? { kind, id } : { kind, id, thread_id };
}

function readRowOwner(host_id, pid, nonce) {
  return host_id === null ? null : { host_id, pid, nonce };
}
