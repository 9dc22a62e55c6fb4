/** Ends the process at a signal with exit code 0: being stopped is no failure. */
const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"];
const PATIENCE_MS = 2000;

let close;

/** At once while nothing is up (Miniflare's exit hook kills workerd); else close what runs, so that it is reaped. */
export function stop() {
  if (close === undefined) process.exit(0);
  setTimeout(() => process.exit(0), PATIENCE_MS);
  close().finally(() => process.exit(0));
}

/** To be called before a runner is made: its own handlers, which exit with a failure, come second. */
export function stopAtSignals() {
  for (const signal of SIGNALS) process.on(signal, stop);
}

/** From now on `closing` is awaited, so Miniflare's handlers, which would exit without waiting, must go. */
export function closeAtStop(closing) {
  close = closing;
  for (const signal of SIGNALS) process.removeAllListeners(signal);
  stopAtSignals();
}
