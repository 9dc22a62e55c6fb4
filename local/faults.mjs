/** Lost replies of D1, on demand. `X-Local-Fault: lost,pass` is about the batches of one request, in order. */
import { problem } from "./problem.mjs";

const WORDS = new Set(["pass", "lost", "drop"]);

/** The D1 binding with `batch` failing as told. Throws a 400 response for a word that it does not know. */
export function withFaults(database, header) {
  const faults = header.split(",").map((word) => word.trim());
  if (!faults.every((word) => WORDS.has(word))) {
    throw problem(400, "LOCAL_FAULT_UNKNOWN", "X-Local-Fault must be a list of pass, lost and drop.");
  }
  const batch = async (statements) => {
    const fault = faults.shift() ?? "pass";
    if (fault === "pass") return database.batch(statements);
    // A lost reply hides an error as well as a success.
    if (fault === "lost") await database.batch(statements).catch(() => {});
    throw new Error("D1_ERROR: Network connection lost.", { cause: new Error("Network connection lost.") });
  };
  return new Proxy(database, {
    get(target, name) {
      if (name === "batch") return batch;
      const value = Reflect.get(target, name);
      // The SDK recognises a binding by its constructor's name, so that one must stay as it is.
      return typeof value === "function" && name !== "constructor" ? value.bind(target) : value;
    },
  });
}
