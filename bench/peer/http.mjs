/** Tokens, headers and bodies: everything that comes in is checked here, as the Python Worker checks it. */
import { digest } from "./canonical.mjs";
import { invalid, Problem } from "./problem.mjs";

export const IDENTIFIER = /^(?!\.{1,2}$)[A-Za-z0-9._~-]{1,200}$/;
const BEARER = /^bearer +([A-Za-z0-9._~+/-]{1,256}=*) *$/i;
const HASH = /^[0-9a-f]{64}$/;
const BODY_BYTES_MAX = 1_048_576;

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

let configured; // { text, grants }

/** The grant { principal, scopes } of the request's token; every stored token is compared, in constant time. */
export async function authenticate(header, text, scope) {
  if (configured?.text !== text) configured = { text, grants: grants(text) };
  const sent = BEARER.exec(header ?? "");
  if (sent === null) throw new Problem(401, "UNAUTHORIZED");
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", encoder.encode(sent[1])));
  let granted = null;
  for (const grant of configured.grants) if (crypto.subtle.timingSafeEqual(grant.sha256, hash)) granted = grant;
  if (granted === null) throw new Problem(401, "UNAUTHORIZED");
  if (!granted.scopes.includes(scope)) throw new Problem(403, "SCOPE_MISSING");
  return granted;
}

function grants(text) {
  if (!text) throw new Problem(503, "AUTH_UNCONFIGURED");
  return JSON.parse(text).map(({ sha256, principal, scopes }) => ({ sha256: Uint8Array.fromHex(sha256), principal, scopes }));
}

export function idempotencyKey(header) {
  if (header === null) throw new Problem(400, "IDEMPOTENCY_KEY_MISSING");
  const key = header.length > 1 && header.startsWith('"') && header.endsWith('"') ? header.slice(1, -1) : header;
  if (!IDENTIFIER.test(key)) throw new Problem(400, "IDEMPOTENCY_KEY_INVALID");
  return key;
}

export async function parseBody(request) {
  if (Number(request.headers.get("content-length") ?? 0) > BODY_BYTES_MAX) throw new Problem(413, "TOO_LARGE");
  const bytes = await request.arrayBuffer();
  if (bytes.byteLength > BODY_BYTES_MAX) throw new Problem(413, "TOO_LARGE");
  try {
    return JSON.parse(decoder.decode(bytes));
  } catch {
    throw invalid("The body is not JSON.");
  }
}

export function readStart(body) {
  const { target, input = null, owner, lease_ms = 30_000, parent_run_id = null, lineage = null, ...rest } = members(body);
  const start = {
    target: readTarget(target),
    input,
    owner: owner === undefined ? { host_id: "fencepost", pid: 0, nonce: mintToken() } : readOwner(owner),
    lease_ms: leaseMs(lease_ms),
    parent_run_id: parent_run_id === null ? null : identifier(parent_run_id),
    lineage: lineage === null ? null : readLineage(lineage),
  };
  return { start, rest };
}

export function readHeartbeat(body) {
  const { owner, generation = null, lease_ms = null, ...rest } = members(body);
  nothingElse(rest);
  return { owner: readOwner(owner), generation: readGeneration(generation), lease_ms: lease_ms === null ? null : leaseMs(lease_ms) };
}

/** A checkpoint (`to` running, with a state) or an end (`to` completed, with a result): the two that are measured. */
export function readTransition(body) {
  const { owner, generation = null, to, state, result, expected_head = null, ...rest } = members(body);
  nothingElse(rest);
  if (to !== "running" && to !== "completed") throw invalid("'to' is running or completed here.");
  if ((to === "running") === (state === undefined)) throw invalid("A checkpoint has a state, and nothing else has.");
  if ((to === "completed") === (result === undefined)) throw invalid("An end has a result, and nothing else has.");
  const head = expected_head === null ? null : readHead(expected_head);
  return { owner: readOwner(owner), generation: readGeneration(generation), to, state, result, expected_head: head };
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

const readGeneration = (value) => (value === null ? null : integer(value, 1, Number.MAX_SAFE_INTEGER));

function readLineage(value) {
  const { id, round, ...rest } = members(value);
  nothingElse(rest);
  return { id: identifier(id), round: integer(round, 0, Number.MAX_SAFE_INTEGER) };
}

function readHead(value) {
  const { sequence, hash, ...rest } = members(value);
  nothingElse(rest);
  if (typeof hash !== "string" || !HASH.test(hash)) throw invalid("Not a hash.");
  return { sequence: integer(sequence, 1, Number.MAX_SAFE_INTEGER - 1), hash };
}

function members(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw invalid("Not a JSON object.");
  return value;
}

export function nothingElse(rest) {
  if (Object.keys(rest).length > 0) throw invalid("Unknown members.");
}

function identifier(value) {
  if (typeof value !== "string" || !IDENTIFIER.test(value)) throw invalid("Not an identifier.");
  return value;
}

const leaseMs = (value) => integer(value, 1_000, 3_600_000);

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

const random = (bytes) => crypto.getRandomValues(new Uint8Array(bytes)).toHex();
export const mintToken = () => random(16);

/** A new run id for a key; its last three digits are the slot of the key. */
export async function mintRunId(key) {
  const hash = await digest(key.split("~", 1)[0]);
  return `run_${Date.now().toString(16).padStart(12, "0")}${random(10)}~${hash.slice(0, 3)}`;
}
