/**
 * A load generator that costs little: bare sockets, requests made from texts, and no more parsing than the status
 * and the length. Takes one job a line of JSON on standard input, and answers each with one line:
 *   { url, requests, key, status, seconds }    one connection a request, each sending it again and again until the
 *                                              time is over  →  { count, rate, p50_ms, p99_ms }
 *   { url, bursts: [requests, …], key }        one connection a request of a burst, all of them at once
 *                                              →  { statuses: { status: count }, p50_ms, p99_ms, rate }
 * or { error }. A request is { head, body, history }: the head without Content-Length, both of ASCII. `{key}` in the
 * head becomes `key` and a number that no other request has; `{history}` in the body becomes the run's head in the
 * last answer to this request, at first `history`.
 */
import { connect } from "node:net";
import { createInterface } from "node:readline";

let count = 0;
const histories = new Map(); // the last head by the head of the request, which names the run

for await (const line of createInterface({ input: process.stdin })) {
  const job = JSON.parse(line);
  let answer;
  try {
    answer = await (job.bursts ? burst(job) : sustain(job));
  } catch (error) {
    answer = { error: error.message };
  }
  console.log(JSON.stringify(answer));
}

async function sustain({ url, requests, key, status, seconds }) {
  const latencies = [];
  const started = performance.now();
  const deadline = started + seconds * 1000;
  await Promise.all(
    requests.map(async (request) => {
      const connection = await open(url);
      do {
        const sent = performance.now();
        const answer = await connection.exchange(text(request, key));
        if (answer.status !== status) throw new Error(`not ${status}: ${answer.status} ${answer.body}`);
        remember(request, answer.body);
        latencies.push(performance.now() - sent);
      } while (performance.now() < deadline);
      connection.close();
    }),
  );
  return { count: latencies.length, rate: (latencies.length * 1000) / (performance.now() - started), ...percentiles(latencies) };
}

async function burst({ url, bursts, key }) {
  const connections = await Promise.all(bursts[0].map(() => open(url)));
  const statuses = {};
  const latencies = [];
  let busy = 0;
  for (const requests of bursts) {
    const texts = requests.map((request) => text(request, key)); // made before the clock runs
    const sent = performance.now();
    await Promise.all(
      texts.map(async (request, index) => {
        const { status } = await connections[index].exchange(request);
        latencies.push(performance.now() - sent);
        statuses[status] = (statuses[status] ?? 0) + 1;
      }),
    );
    busy += performance.now() - sent;
  }
  for (const connection of connections) connection.close();
  return { statuses, rate: (latencies.length * 1000) / busy, ...percentiles(latencies) };
}

function percentiles(latencies) {
  latencies.sort((a, b) => a - b);
  const percentile = (part) => latencies[Math.min(latencies.length - 1, Math.floor(latencies.length * part))];
  return { p50_ms: percentile(0.5), p99_ms: percentile(0.99) };
}

function text({ head, body, history }, key) {
  const named = head.includes("{key}") ? head.replace("{key}", `${key}${(count += 1)}`) : head;
  const content = history === undefined ? body : body.replace("{history}", histories.get(head) ?? history);
  return `${named}\r\nContent-Length: ${content.length}\r\n\r\n${content}`;
}

function remember({ head, history }, answer) {
  if (history !== undefined) histories.set(head, /"head":(\{[^}]*\})/.exec(answer)[1]);
}

/** A keep-alive connection: `exchange(text)` resolves to { status, body }. */
async function open(url) {
  const { hostname, port } = new URL(url);
  const socket = connect({ host: hostname, port: Number(port), noDelay: true });
  await new Promise((resolve, reject) => socket.once("connect", resolve).once("error", reject));
  let waiting;
  let received = "";
  const fail = (error) => waiting?.reject(error ?? new Error("the connection was closed"));
  socket.setEncoding("latin1"); // a character a byte, as the length counts them
  socket.on("error", fail);
  socket.on("close", () => fail());
  socket.on("data", (chunk) => {
    received += chunk;
    const end = received.indexOf("\r\n\r\n");
    if (end < 0) return;
    const length = /\r\ncontent-length: *(\d+)/i.exec(received.slice(0, end))?.[1];
    if (length === undefined) return socket.destroy(new Error(`no Content-Length in: ${received}`));
    if (received.length < end + 4 + Number(length)) return;
    const answer = { status: Number(received.slice(9, 12)), body: received.slice(end + 4) };
    received = "";
    waiting.resolve(answer);
  });
  return {
    exchange: (request) =>
      new Promise((resolve, reject) => {
        waiting = { resolve, reject };
        socket.write(request, "latin1");
      }),
    close: () => {
      waiting = undefined;
      socket.destroy();
    },
  };
}
