/**
 * Counts the rows of a request's batches, for tests and benchmarks: with `X-Local-Rows` the answer has them, whoever
 * asks. The Worker itself tells them to operators alone.
 */
import { proxied } from "./proxied.mjs";

export class RowCount {
  read = 0;
  written = 0;

  constructor(asked) {
    this.asked = asked;
  }

  counting(database) {
    if (!this.asked) return database;
    return proxied(database, async (statements) => {
      const results = await database.batch(statements);
      for (const { meta } of results) {
        this.read += meta.rows_read;
        this.written += meta.rows_written;
      }
      return results;
    });
  }

  told(response) {
    if (this.asked) response.headers.set("X-Local-Rows", `${this.read} read, ${this.written} written`);
    return response;
  }
}
