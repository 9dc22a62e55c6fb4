/** `npm start`, once everything is installed: runs the Worker until it is told to stop. */
import { statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { BootError, createRunner } from "./runner.mjs";
import { DEVELOPMENT_TOKEN, PROJECT, SettingError, settingsFromEnvironment } from "./settings.mjs";
import { closeAtStop, stop, stopAtSignals } from "./stop.mjs";
import { sourceFiles } from "./worker.mjs";

const LOOK_EVERY_MS = 400;

stopAtSignals();
process.on("disconnect", stop); // whoever started this is gone, even if it was killed outright

try {
  const settings = settingsFromEnvironment(process.env);
  const runner = await createRunner(settings);
  closeAtStop(runner.close);
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

/** Reload when a source changes. By looking, since `fs.watch` loses a file that an editor replaces. */
async function watchSources(runner) {
  let seen = fingerprint();
  for (;;) {
    await setTimeout(LOOK_EVERY_MS);
    const now = fingerprint();
    if (now === seen) continue;
    seen = now;
    await reload(runner);
  }
}

function fingerprint() {
  try {
    return sourceFiles(join(PROJECT, "src"))
      .map((path) => `${path} ${statSync(path).mtimeMs}`)
      .join();
  } catch {
    return "in motion"; // a file went away between two looks
  }
}

/** A broken source leaves the server up, answering 500 until the next change. */
async function reload(runner) {
  try {
    await runner.reload();
    console.log("reloaded");
  } catch (error) {
    console.error(error instanceof BootError ? error.message : error);
  }
}
