/** Runs the Worker in Miniflare, with a real D1 database: for `npm start`, the tests and the benchmarks. */
import { join } from "node:path";
import { convertV4MiniflareOptions, Miniflare } from "miniflare";
import { persistence, SettingError, tokens, wranglerConfiguration } from "./settings.mjs";
import { extraWorker, isolateName, pythonWorkers } from "./worker.mjs";

// Miniflare would ask Cloudflare for a sample of request.cf.
process.env.CLOUDFLARE_CF_FETCH_ENABLED ??= "false";

/** Python could not be started; the message is its traceback. */
export class BootError extends Error {}

const DEFAULTS = { port: 0, isolates: 1, faults: false, tripDelayMs: 0, persist: null, source: "src", variables: {}, extraWorkers: [], worker: true };

/**
 * Settings: `port` (0: a free one), `isolates`, `faults`, `persist` (a folder or null), `tokens` (JSON or list),
 * `source` (folder of the Python sources), `variables` (over those of wrangler.toml), `extraWorkers` ([{ name, script,
 * modules, bindings }]), `worker` (false: only the extra workers), `tripDelayMs` (how far away D1 is: delay.mjs), and
 * `log` (called with each line of output) or `quiet`.
 * Resolves, when every interpreter is up, to { url, isolates, miniflare, directUrl(name), reload(), close() }.
 */
export async function createRunner(given = {}) {
  const settings = { ...DEFAULTS, ...given, tokens: tokens(given.tokens), persist: persistence(given.persist ?? null) };
  const miniflare = new Miniflare(miniflareOptions(settings));
  const directUrl = async (name) => (await miniflare.unsafeGetDirectURL(name)).origin;
  const close = () => miniflare.dispose();
  try {
    await miniflare.ready;
    if (settings.worker) await boot(miniflare, settings);
    return {
      url: settings.worker ? await directUrl(settings.isolates > 1 ? "router" : isolateName(0)) : null,
      isolates: settings.worker ? settings.isolates : 0,
      miniflare,
      directUrl,
      close,
      /** Take the sources as they are now. The database stays; a BootError leaves the server up, answering 500. */
      async reload() {
        await miniflare.setOptions(miniflareOptions(settings));
        if (settings.worker) await boot(miniflare, settings);
      },
    };
  } catch (error) {
    await close();
    if (error.code !== "ERR_ADDRESS_IN_USE") throw error;
    throw new SettingError(`Port ${settings.port} is taken: stop what uses it, or set PORT to another.`);
  }
}

function miniflareOptions(settings) {
  const config = wranglerConfiguration();
  const workers = settings.worker ? pythonWorkers(settings, config) : [];
  const log = settings.quiet ? () => {} : (settings.log ?? console.log);
  return convertV4MiniflareOptions({
    host: "127.0.0.1",
    port: 0, // Miniflare's own entrance, which nothing here uses
    cf: false,
    // The folder where `wrangler d1 execute --local` looks.
    ...(settings.persist === null ? {} : { resourcePersistencePath: join(settings.persist, "v3") }),
    handleStructuredLogs: ({ message }) => message.split("\n").forEach((line) => log(line)),
    workers: [...workers, ...settings.extraWorkers.map((worker) => extraWorker(worker, config))],
  });
}

/** Start every interpreter before anyone is told that the Worker is ready. */
async function boot(miniflare, { isolates }) {
  for (let index = 0; index < isolates; index++) {
    const response = await fetch(await miniflare.unsafeGetDirectURL(isolateName(index), "Boot"));
    if (!response.ok) throw new BootError(await response.text());
  }
}
