/** RFC 8785 canonical JSON, its SHA-256, and the events that are chained by it. */
import { invalid } from "./problem.mjs";

export const GENESIS = { sequence: 0, hash: "0".repeat(64) };

const DEPTH_MAX = 128;
const encoder = new TextEncoder();

/** Members sorted by UTF-16 units, numbers and strings as JavaScript writes them. */
export function canonical(value, depth = 0) {
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

export async function digest(text) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", encoder.encode(text))).toHex();
}

/** The event that would follow `head`: { event_sequence, event_payload, event_hash }, as the statements name them. */
export async function nextEvent(head, type, payload) {
  const event = { sequence: head.sequence + 1, type, payload, prior_hash: head.hash };
  return { event_sequence: event.sequence, event_payload: canonical(payload), event_hash: await digest(canonical(event)) };
}
