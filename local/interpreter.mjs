/** CPython inside workerd: the npm package `pyodide`, made to start where only declared code may run. */
import * as cloudflareSockets from "cloudflare:sockets";
import * as cloudflareWorkers from "cloudflare:workers";
import files from "./files.json";
import hostSource from "./host.py";
import lock from "./pyodide-lock.json";
import createPyodideModule from "./pyodide.asm.mjs";
import pyodideWasm from "./pyodide.asm.wasm";
import { loadPyodide } from "./pyodide.mjs";
import stdlib from "./python_stdlib.zip";

// Never resolved: Pyodide wants an address to load from, and its one request is answered from here.
const INDEX_URL = "http://pyodide.invalid/";

/** Start Python, import `entry`, and return host.py's `invoke`. Rejects with a Python traceback. */
export async function startPython(unsafeEval) {
  allowRuntimeWasm(unsafeEval);
  const python = await withStandardLibrary(() =>
    loadPyodide({
      indexURL: INDEX_URL,
      packageBaseUrl: INDEX_URL,
      createPyodideModule,
      lockFileContents: { info: JSON.parse(lock).info, packages: {} },
      stdout: (line) => console.log(line),
      stderr: (line) => console.error(line),
      env: { HOME: "/session", PYTHONINSPECT: "", PYTHONDONTWRITEBYTECODE: "1" },
    }),
  );
  for (const [path, content] of Object.entries(JSON.parse(files))) writeFile(python, path, content);
  registerHostModules(python);
  const host = python.runPython(hostSource + "\nload()", { filename: "/host.py" });
  return host;
}

/** workerd compiles WebAssembly from declared modules alone; Pyodide makes a few small ones as it runs. */
function allowRuntimeWasm(unsafeEval) {
  const Declared = WebAssembly.Module;
  const compile = (bytes) => unsafeEval.newWasmModule(bytes);
  const Module = function (bytes) {
    return compile(bytes);
  };
  WebAssembly.Module = Object.assign(Module, {
    prototype: Declared.prototype,
    exports: Declared.exports,
    imports: Declared.imports,
    customSections: Declared.customSections,
  });
  WebAssembly.compile = async (bytes) => compile(bytes);
  WebAssembly.instantiate = async (source, imports) =>
    source instanceof Declared
      ? new WebAssembly.Instance(source, imports)
      : { instance: new WebAssembly.Instance(compile(source), imports), module: null };
  // The one large module, the interpreter itself, comes ready compiled.
  WebAssembly.instantiateStreaming = async (_response, imports) => ({
    instance: new WebAssembly.Instance(pyodideWasm, imports),
    module: pyodideWasm,
  });
}

/**
 * Pyodide fetches its standard library: give it ours, and the globals of a browser that it looks at. Its event loop
 * is to run on timers, as in a deployed isolate, where Pyodide finds no MessageChannel when it comes up.
 */
async function withStandardLibrary(load) {
  const { fetch, MessageChannel } = globalThis;
  globalThis.MessageChannel = undefined;
  globalThis.fetch = async (input, init) =>
    String(input?.url ?? input).startsWith(INDEX_URL) ? new Response(stdlib) : fetch(input, init);
  globalThis.addEventListener ??= () => {};
  globalThis.location ??= new URL(INDEX_URL);
  try {
    return await load();
  } finally {
    Object.assign(globalThis, { fetch, MessageChannel });
  }
}

function writeFile(python, path, content) {
  python.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
  python.FS.writeFile(path, Uint8Array.from(atob(content), (byte) => byte.charCodeAt(0)));
}

/** The two modules that the `workers` SDK expects from whoever hosts it. */
function registerHostModules(python) {
  python.registerJsModule("_pyodide_entrypoint_helper", {
    doAnImport: (name) => import(name),
    // A module cannot be written to, and each event has an environment of its own (host.py sets it).
    cloudflareWorkersModule: { ...cloudflareWorkers },
    cloudflareSocketsModule: cloudflareSockets,
    patchWaitUntil,
    workerEntrypoint: null,
  });
  python.registerJsModule("_cloudflare_compat_flags", {
    python_request_headers_preserve_commas: true,
    python_workflows_implicit_dependencies: true,
  });
}

/** Python destroys a coroutine's proxy when the call that passed it returns: keep it until it is done. */
function patchWaitUntil(ctx) {
  const waitUntil = ctx.waitUntil.bind(ctx);
  ctx.waitUntil = (promise) => {
    const kept = promise.copy?.() ?? promise;
    waitUntil(Promise.resolve(kept).finally(() => kept.destroy?.()));
  };
}
