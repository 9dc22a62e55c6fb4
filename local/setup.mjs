/** Installs what is missing, and nothing when all is there. Node builtins only: it runs before anything else. */
import { execFileSync, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const PROJECT = dirname(dirname(fileURLToPath(import.meta.url)));
/** The Node that Miniflare needs, from the npm package `node`, whatever the system has. */
export const NODE = join(PROJECT, "node_modules", ".bin", "node");
export const PYTHON = join(PROJECT, ".venv", "bin", "python");
const SDK = join(PROJECT, "python_modules", "workers");
/** Not in the folders themselves: `wrangler deploy` uploads what is in python_modules. */
const STAMPS = join(PROJECT, ".stamps");
const BENCH_PEER = join(PROJECT, "bench_modules", "ctrlrun");

class SetupError extends Error {}

/**
 * `development` brings the tools of tests and checks, too, `benchmarks` what they are measured against. Ends the
 * process with one sentence on failure.
 */
export function ensure({ development = false, benchmarks = false } = {}) {
  try {
    if (Number(process.versions.node.split(".")[0]) < 20) throw new SetupError("Install Node.js 20 or newer.");
    install("node_modules", "package-lock.json", NODE, "JavaScript packages", installJavaScript);
    install("python_modules", "python-worker.lock", SDK, "the Worker's Python packages", installPackages);
    if (development) install(".venv", "python-dev.lock", PYTHON, "Python tools for development", installPythonTools);
    if (benchmarks) install("bench_modules", "python-bench.lock", BENCH_PEER, "peers of the benchmarks", installPackages);
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    console.error(error.message);
    process.exit(1);
  }
}

/** While it installs there is no stamp, so that an interrupted install is done again; `proof` must be there as well. */
function install(folder, lock, proof, what, steps) {
  const target = join(PROJECT, folder);
  const stamp = join(STAMPS, folder);
  const wanted = createHash("sha256").update(readFileSync(join(PROJECT, lock))).digest("hex");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted && existsSync(proof)) return;
  console.error(`installing ${what} (once) …`);
  rmSync(stamp, { force: true });
  steps(target, join(PROJECT, lock));
  mkdirSync(STAMPS, { recursive: true });
  writeFileSync(stamp, wanted);
}

function installJavaScript() {
  // Miniflare asks for a newer Node than may run here: NODE is that one, so the warning would mislead.
  run("npm", ["ci", "--no-audit", "--no-fund", "--loglevel=error"], "Install npm.");
  if (nodeVersion() >= 22) return;
  // npm was told to run no install scripts: do what the one of the package `node` does.
  const remedy = "Node.js 24 could not be installed from the npm package `node`.";
  run("node", ["installArchSpecificPackage.js"], remedy, join(PROJECT, "node_modules", "node"));
  if (!existsSync(NODE)) symlinkSync(join("..", "node", "bin", "node"), NODE);
  if (nodeVersion() < 22) throw new SetupError(remedy);
}

function nodeVersion() {
  const { status, stdout } = spawnSync(NODE, ["--version"], { encoding: "utf8" });
  return status === 0 ? Number(stdout.slice(1).split(".")[0]) : 0;
}

/** The layout of `pywrangler sync`, so that `wrangler deploy` bundles `python_modules` as it is. */
function installPackages(target, lock) {
  rmSync(target, { recursive: true, force: true });
  pip(systemPython(), ["--no-deps", "--no-compile", "--target", target, "-r", lock]);
  rmSync(join(target, "bin"), { recursive: true, force: true });
}

function installPythonTools(target, lock) {
  rmSync(target, { recursive: true, force: true });
  run(systemPython(), ["-m", "venv", target], "Install Python's venv module (Debian: python3-venv).");
  pip(PYTHON, ["--no-deps", "-r", lock]);
}

function systemPython() {
  const check = "import sys; sys.exit(sys.version_info < (3, 11))";
  if (spawnSync("python3", ["-c", check]).status !== 0) throw new SetupError("Install Python 3.11 or newer as python3.");
  return "python3";
}

function pip(python, options) {
  const quiet = ["--quiet", "--quiet", "--disable-pip-version-check", "--no-input", "--require-hashes"];
  const remedy = "Python packages could not be installed: pip must be there (Debian: python3-pip) and reach its registry.";
  run(python, ["-m", "pip", "install", ...quiet, ...options], remedy);
}

function run(command, options, remedy, cwd = PROJECT) {
  try {
    // All output to stderr: standard output belongs to whoever called.
    execFileSync(command, options, { cwd, stdio: ["ignore", 2, 2] });
  } catch {
    throw new SetupError(remedy);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  ensure({ development: process.argv.includes("--development") });
}
