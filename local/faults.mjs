/**
 * Failures of D1, on demand. `X-Local-Fault: lost,pass` is about the batches of one request, in order: `lost` executes
 * the batch and loses the reply, `drop` does not execute it, `refuse` says that it did not, as an overloaded D1 does.
 * `X-Local-Rival: {"path", "headers", "body"}` is a POST that another isolate answers in the window of the first
 * fault: after the batch was executed or dropped, and before anybody knows.
 */
import { problem } from "./problem.mjs";
import { proxied } from "./proxied.mjs";

const WORDS = new Set(["pass", "lost", "drop", "refuse"]);

/** The D1 binding with `batch` failing as told. Throws a 400 response for a word that it does not know. */
export function withFaults(database, header, act) {
  const faults = header.split(",").map((word) => word.trim());
  if (!faults.every((word) => WORDS.has(word))) {
    throw problem(400, "LOCAL_FAULT_UNKNOWN", "X-Local-Fault must be a list of pass, lost, drop and refuse.");
  }
  const batch = async (statements) => {
    const fault = faults.shift() ?? "pass";
    if (fault === "pass") return database.batch(statements);
    if (fault === "refuse") throw failure("D1 DB is overloaded. Too many requests queued.");
    // A lost reply hides an error as well as a success.
    if (fault === "lost") await database.batch(statements).catch(() => {});
    await act();
    throw failure("Network connection lost.");
  };
  return proxied(database, batch);
}

const failure = (text) => new Error(`D1_ERROR: ${text}`, { cause: new Error(text) });

/** The rival of a request, if it has one: `act` lets it act, once; `answer` is what it was answered. */
export class Rival {
  answer = null;

  constructor(header, worker) {
    this.request = header === null ? null : JSON.parse(header);
    this.worker = worker;
  }

  act = async () => {
    if (this.request === null || this.answer !== null) return;
    const { path, headers, body } = this.request;
    const answer = await this.worker.fetch(`http://rival${path}`, { method: "POST", headers, body });
    this.answer = { status: answer.status, body: await answer.json() };
  };

  /** The response to the request, with the rival's answer in X-Local-Rival. */
  told(response) {
    if (this.answer === null) return response;
    const copy = new Response(response.body, response);
    copy.headers.set("X-Local-Rival", encodeURIComponent(JSON.stringify(this.answer)));
    return copy;
  }
}
