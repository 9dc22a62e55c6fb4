/** D1 as far away as it is at the edge, for benchmarks: each round trip begins `delayMs` later. */
import { proxied } from "./proxied.mjs";

const proxies = new Map(); // made once, since Python prepares its statements anew for another binding
let trips = 0;

/** How many round trips this isolate has made. */
export const tripsSoFar = () => trips;

/** The D1 binding with slower trips. `oneByOne`: each statement of a batch is a trip, and a transaction, of its own. */
export function withDelay(database, delayMs, oneByOne) {
  if (proxies.get(oneByOne)?.database !== database) {
    proxies.set(oneByOne, { database, proxy: delayed(database, delayMs, oneByOne) });
  }
  return proxies.get(oneByOne).proxy;
}

function delayed(database, delayMs, oneByOne) {
  const trip = async (statements) => {
    trips += 1;
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    return database.batch(statements);
  };
  const batch = async (statements) => {
    if (!oneByOne) return trip(statements);
    const results = [];
    for (const statement of statements) results.push(...(await trip([statement])));
    return results;
  };
  return proxied(database, batch);
}
