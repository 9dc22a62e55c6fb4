/** Why a request is not done: a status and a code, as in the problem documents of the Python Worker. */
export class Problem extends Error {
  constructor(status, code, detail = "") {
    super(detail);
    Object.assign(this, { status, code });
  }
}

export const invalid = (detail) => new Problem(400, "INVALID_REQUEST", detail);
