/** The Miniflare workers that make up a runner: isolates of the Python Worker, and a router before several. */
import { readdirSync, readFileSync } from "node:fs";
import { join, matchesGlob, relative, resolve } from "node:path";
import { PROJECT } from "./settings.mjs";

const HOST = "127.0.0.1";
const PYODIDE = join(PROJECT, "node_modules", "pyodide");

/** Everything reachable from outside is a socket of its own: no worker of Miniflare's stands before it. */
export const socket = (port = 0, entrypoint = "default") => ({ host: HOST, port, entrypoint });

export const isolateName = (index) => `isolate-${index}`;

/** The workers for `settings.isolates` interpreters; the first one listed has the public port. */
export function pythonWorkers(settings, config) {
  const modules = hostModules(resolve(PROJECT, settings.source ?? "src"), config.excludedPythonModules);
  const alone = settings.isolates === 1;
  const isolates = Array.from({ length: settings.isolates }, (_, index) => ({
    name: isolateName(index),
    modules,
    compatibilityDate: config.compatibilityDate,
    // Pyodide must take its surroundings for a browser's, not for Node's.
    compatibilityFlags: [...config.compatibilityFlags.filter((name) => name !== "python_workers"), "no_nodejs_compat"],
    d1Databases: config.databases,
    bindings: {
      ...config.variables,
      ...settings.variables,
      ...(settings.tokens === null ? {} : { FENCEPOST_TOKENS: settings.tokens }),
      LOCAL: { faults: settings.faults, isolates: settings.isolates, tripDelayMs: settings.tripDelayMs },
    },
    serviceBindings: { LOCAL_RIVAL: isolateName((index + 1) % settings.isolates) },
    unsafeEvalBinding: "UNSAFE_EVAL",
    unsafeDirectSockets: [...(alone ? [socket(settings.port)] : []), socket(0, "Boot")],
  }));
  return alone ? isolates : [router(settings), ...isolates];
}

/** A plain JavaScript worker over the same database, for tests and benchmarks. `modules`: what it imports, by path. */
export function extraWorker({ name, script, modules = {}, bindings = {} }, config) {
  return {
    name,
    modules: Object.entries({ [`${name}.mjs`]: script, ...modules }).map(([path, contents]) => ({ type: "ESModule", path, contents })),
    compatibilityDate: config.compatibilityDate,
    d1Databases: config.databases,
    bindings,
    unsafeDirectSockets: [socket()],
  };
}

function router({ isolates, port }) {
  const names = Array.from({ length: isolates }, (_, index) => [`ISOLATE_${index}`, isolateName(index)]);
  return {
    name: "router",
    modules: ["router.mjs", "problem.mjs"].map(localModule),
    compatibilityDate: "2026-11-01",
    serviceBindings: Object.fromEntries(names),
    bindings: { ISOLATES: isolates },
    unsafeDirectSockets: [socket(port)],
  };
}

function hostModules(source, excluded) {
  const python = { ...files("/src", source), ...files("/python_modules", join(PROJECT, "python_modules"), excluded) };
  const pyodide = (type, name) => ({ type, path: name, contents: readFileSync(join(PYODIDE, name)) });
  return [
    ...["host.mjs", "delay.mjs", "faults.mjs", "interpreter.mjs", "problem.mjs", "proxied.mjs", "rows.mjs"].map(localModule),
    { type: "Text", path: "host.py", contents: readFileSync(join(PROJECT, "local", "host.py"), "utf8") },
    { type: "Text", path: "files.json", contents: JSON.stringify(python) },
    { type: "Text", path: "pyodide-lock.json", contents: readFileSync(join(PYODIDE, "pyodide-lock.json"), "utf8") },
    pyodide("ESModule", "pyodide.mjs"),
    pyodide("ESModule", "pyodide.asm.mjs"),
    pyodide("CompiledWasm", "pyodide.asm.wasm"),
    pyodide("Data", "python_stdlib.zip"),
  ].map((module) => (module.type === "ESModule" ? { ...module, contents: String(module.contents) } : module));
}

function localModule(name) {
  return { type: "ESModule", path: name, contents: readFileSync(join(PROJECT, "local", name), "utf8") };
}

/** The files of a folder, but for those that a glob excludes: path inside the interpreter to base64, read anew at each start. */
function files(mount, folder, excluded = []) {
  const paths = sourceFiles(folder).map((path) => relative(folder, path));
  const wanted = paths.filter((path) => !excluded.some((glob) => matchesGlob(path, glob)));
  return Object.fromEntries(wanted.map((path) => [`${mount}/${path}`, readFileSync(join(folder, path)).toString("base64")]));
}

export function sourceFiles(folder) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !entry.parentPath.includes("__pycache__"))
    .map((entry) => join(entry.parentPath, entry.name));
}
