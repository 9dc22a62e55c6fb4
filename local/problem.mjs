/** The errors that the local runner answers itself have the shape of the Worker's own. */
const TITLES = { 400: "Bad request", 500: "Internal error" };

export function problem(status, code, detail, retry = "never") {
  const body = { type: "about:blank", title: TITLES[status], status, code, detail, retry };
  const headers = { "content-type": "application/problem+json", "cache-control": "no-store" };
  return new Response(JSON.stringify(body), { status, headers });
}
