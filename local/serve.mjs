/** `npm start`, once everything is installed: runs the Worker until it is told to stop. */
import { watch } from "node:fs";
import { join } from "node:path";
import { BootError, createRunner } from "./runner.mjs";
import { DEVELOPMENT_TOKEN, PROJECT, SettingError, settingsFromEnvironment } from "./settings.mjs";

// Before Miniflare sets its own: exiting ends workerd, through Miniflare's hook, and stopping is no failure.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => process.exit(0));
// Whoever started this is gone, even if it was killed outright.
process.on("disconnect", () => process.exit(0));

try {
  const settings = settingsFromEnvironment(process.env);
  const runner = await createRunner(settings);
  watchSources(runner);
  if (process.env.FENCEPOST_TOKENS === undefined) {
    console.log(`token: ${DEVELOPMENT_TOKEN} (for development; set FENCEPOST_TOKENS for your own)`);
  }
  console.log(`database: ${settings.persist ?? "in memory"}`);
  console.log(`ready on ${runner.url}`);
} catch (error) {
  console.error(error instanceof BootError || error instanceof SettingError ? error.message : error);
  process.exit(1);
}

/** Reload when a source changes; editors write in bursts, and a reload in progress takes the newest anyway. */
function watchSources(runner) {
  let timer;
  let reloading = Promise.resolve();
  watch(join(PROJECT, "src"), { recursive: true }, (_event, file) => {
    if (file === null || file.includes("__pycache__")) return;
    clearTimeout(timer);
    timer = setTimeout(() => (reloading = reloading.then(() => reload(runner))), 100);
  });
}

async function reload(runner) {
  try {
    await runner.reload();
    console.log("reloaded");
  } catch (error) {
    console.error(error instanceof BootError ? error.message : error);
  }
}
