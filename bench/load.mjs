/**
 * A load generator that costs little: bare sockets, requests made from a text, and no more parsing than the
 * status and the length. Takes one job a line of JSON on standard input, and answers with one line:
 *   { url, requests: [text, …], key, status, seconds }  →  { rate, p50_ms, p99_ms } or { error }
 * One keep-alive connection for each text. `{key}` in a text becomes `key` and a number that no other request has.
 */
import { connect } from "node:net";
import { createInterface } from "node:readline";

let count = 0;

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = await measure(JSON.parse(line));
  } catch (error) {
    answer = { error: error.message };
  }
  console.log(JSON.stringify(answer));
}

async function measure({ url, requests, key, status, seconds }) {
  const latencies = [];
  const started = performance.now();
  const deadline = started + seconds * 1000;
  await Promise.all(requests.map((text) => connection(new URL(url), text.split("{key}"), key, status, deadline, latencies)));
  const elapsed = (performance.now() - started) / 1000;
  latencies.sort((a, b) => a - b);
  const percentile = (part) => latencies[Math.min(latencies.length - 1, Math.floor(latencies.length * part))];
  return { rate: latencies.length / elapsed, p50_ms: percentile(0.5), p99_ms: percentile(0.99) };
}

/** One request after the other until the deadline. Fails at the first answer that is not as expected. */
function connection(url, parts, key, status, deadline, latencies) {
  return new Promise((resolve, reject) => {
    const socket = connect({ host: url.hostname, port: Number(url.port), noDelay: true });
    const expected = `HTTP/1.1 ${status} `;
    let sent;
    let received = "";
    const send = () => {
      const text = parts.length === 1 ? parts[0] : parts.join(`${key}${(count += 1)}`);
      sent = performance.now();
      socket.write(text, "latin1");
    };
    const fail = (message) => {
      socket.destroy();
      reject(new Error(message));
    };
    socket.setEncoding("latin1"); // a character a byte, as the length counts them
    socket.on("connect", send);
    socket.on("error", (error) => fail(error.message));
    socket.on("close", () => fail("the connection was closed"));
    socket.on("data", (chunk) => {
      received += chunk;
      const end = received.indexOf("\r\n\r\n");
      if (end < 0) return;
      const length = /\r\ncontent-length: *(\d+)/i.exec(received.slice(0, end))?.[1];
      if (length === undefined) return fail(`no Content-Length in: ${received}`);
      if (received.length < end + 4 + Number(length)) return;
      if (!received.startsWith(expected)) return fail(`not ${status}: ${received}`);
      const now = performance.now();
      latencies.push(now - sent);
      received = "";
      if (now < deadline) return send();
      socket.removeAllListeners("close");
      socket.destroy();
      resolve();
    });
  });
}
