/** One batch of D1, from a plan: a list of { sql, params }, where a parameter is { name } or { value }. */
import { invalid } from "./problem.mjs";

/** The rows of each statement. Counts the trip, its time and its rows in `exchange`. */
export async function batch(database, plan, values, exchange) {
  const statements = plan.map(({ sql, params }) => {
    const prepared = database.prepare(sql);
    if (params.length === 0) return prepared;
    return prepared.bind(...params.map((param) => (param.name ? sendable(values[param.name]) : param.value)));
  });
  const sent = performance.now();
  exchange.trips += 1;
  const results = await database.batch(statements);
  exchange.database_ms += performance.now() - sent;
  for (const { meta } of results) {
    exchange.read += meta.rows_read;
    exchange.written += meta.rows_written;
  }
  return results.map((result) => result.results);
}

/** What D1 would refuse, cut short or change. */
function sendable(value) {
  if (typeof value !== "string") return value;
  if (value.includes("\0") || !value.isWellFormed() || value.length > 2_000_000) throw invalid("Not text that D1 takes.");
  return value;
}
