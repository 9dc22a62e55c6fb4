/** Where the settings of the local runner come from: the environment, and wrangler.toml. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parse } from "smol-toml";

export const PROJECT = dirname(dirname(fileURLToPath(import.meta.url)));
export const DEVELOPMENT_TOKEN = "dev-token";

const MAX_ISOLATES = 16; // each is an interpreter of some 60 MB
const SCOPES = ["start", "work", "operate", "read"];

/** Variables of the Worker that the environment may set, over wrangler.toml. */
const VARIABLES = ["FENCEPOST_CORS_ORIGINS", "FENCEPOST_RUN_RETENTION_DAYS", "FENCEPOST_KEY_RETENTION_DAYS"];

/** A setting that cannot be used. Its message is one line for the user; no stack is printed. */
export class SettingError extends Error {}

/** Everything that `npm start` can be told. */
export function settingsFromEnvironment(env) {
  return {
    port: wholeNumber("PORT", env.PORT ?? "8787", 0, 65535),
    isolates: wholeNumber("FENCEPOST_ISOLATES", env.FENCEPOST_ISOLATES ?? "1", 1, MAX_ISOLATES),
    faults: flag("FENCEPOST_FAULTS", env.FENCEPOST_FAULTS ?? "0"),
    persist: persistence(env.FENCEPOST_PERSIST ?? join(".wrangler", "state")),
    tokens: tokens(env.FENCEPOST_TOKENS),
    variables: Object.fromEntries(VARIABLES.filter((name) => env[name] !== undefined).map((name) => [name, env[name]])),
  };
}

/** Undefined: the development token. Empty or null: none, so that the Worker answers "unconfigured". */
export function tokens(given) {
  if (given === undefined) return JSON.stringify([developmentToken()]);
  if (given === null || given === "") return null;
  const text = typeof given === "string" ? given : JSON.stringify(given);
  try {
    if (Array.isArray(JSON.parse(text))) return text;
  } catch {
    // The message below serves broken JSON as well.
  }
  throw new SettingError('FENCEPOST_TOKENS must be a JSON list of {"sha256", "principal", "scopes"}');
}

/** The part of wrangler.toml that matters here, so that a local Worker is set up as a deployed one. */
export function wranglerConfiguration() {
  const config = parse(readFileSync(join(PROJECT, "wrangler.toml"), "utf8"));
  return {
    compatibilityDate: config.compatibility_date,
    compatibilityFlags: config.compatibility_flags ?? [],
    databases: Object.fromEntries((config.d1_databases ?? []).map((database) => [database.binding, database.database_id])),
    variables: config.vars ?? {},
    excludedPythonModules: config.python_modules?.exclude ?? [],
  };
}

/** The folder for wrangler's `--persist-to`, or null for a database in memory only. */
export function persistence(folder) {
  if (folder === "") throw new SettingError("FENCEPOST_PERSIST must name a folder, or be `memory`");
  return folder === null || folder === "memory" ? null : resolve(PROJECT, folder);
}

function developmentToken() {
  return {
    sha256: createHash("sha256").update(DEVELOPMENT_TOKEN).digest("hex"),
    principal: { kind: "service", id: "dev" },
    scopes: SCOPES,
  };
}

function wholeNumber(name, text, least, most) {
  const number = /^\d+$/.test(text) ? Number(text) : NaN;
  if (number >= least && number <= most) return number;
  throw new SettingError(`${name} must be a whole number from ${least} to ${most}, not "${text}"`);
}

function flag(name, text) {
  if (text === "1") return true;
  if (text === "0" || text === "") return false;
  throw new SettingError(`${name} must be 1 or 0, not "${text}"`);
}
