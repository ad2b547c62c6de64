// The module that PyScript's `interpreter` key names: Pyodide with `calc` in it, started from the boot snapshot, or the
// ordinary way where that is not possible.
import * as pyodide from "../vendor/pyodide/pyodide.mjs";
import { start } from "./snapshot.mjs";

export const version = pyodide.version;

const at = (path) => new URL(`../${path}`, import.meta.url).href;
const indexURL = at("vendor/pyodide/");

const fetched = async (path) => {
  const response = await fetch(at(path));
  if (!response.ok) throw new Error(`${path} answered ${response.status}`);
  return response;
};

// Tells the page how many bytes of all files have come, not at every one: each time the page is painted anew.
const REPORTS = 20;
const coming = { done: 0, total: 0 };
let reported = 0;
const counting = () =>
  new TransformStream({
    transform(chunk, controller) {
      coming.done += chunk.length;
      if (coming.done === coming.total || coming.done - reported > coming.total / REPORTS) {
        reported = coming.done;
        postMessage(coming);
      }
      controller.enqueue(chunk);
    },
  });

// The files are compressed themselves, so that it does not take a host that does it.
async function unpacked(path) {
  const { body, headers } = await fetched(path);
  coming.total += Number(headers.get("content-length"));
  return body.pipeThrough(counting()).pipeThrough(new DecompressionStream("gzip"));
}

// Asked for before anything else runs here. A failure counts where the file is used.
const early = (promise) => {
  promise.catch(() => {});
  return promise;
};
const files = {
  description: early(fetched("vendor/snapshot/start.json").then((response) => response.json())),
  runtime: early(unpacked("vendor/snapshot/runtime.bin")),
  calc: early(unpacked("vendor/snapshot/calc.bin")),
};
// While the worker waits, since Python's import does.
function fetchedNow(path) {
  const request = new XMLHttpRequest();
  request.open("GET", at(path), false);
  request.responseType = "arraybuffer";
  request.send();
  if (request.status !== 200) throw new Error(`${path} answered ${request.status}`);
  return new Uint8Array(request.response);
}

async function startFromSnapshot(options) {
  // What Python imports lies in the snapshot already: the standard library comes when something else is asked for.
  const stdLibURL = at("vendor/snapshot/none.zip");
  const { python, linked } = await start({ ...options, indexURL, stdLibURL }, files);
  // The packages are there but for their libraries, which are on their way.
  python.loadPackage = () => linked;
  const packages = Object.entries(python.lockfile.packages);
  // Asked for by tools/late_imports.py.
  const [major, minor] = python.lockfile.info.python.split(".");
  python.bringStandardLibrary = () =>
    python.FS.writeFile(`/lib/python${major}${minor}.zip`, fetchedNow("vendor/pyodide/python_stdlib.zip"));
  python.bringPackages = () => {
    const extractDir = `/lib/python${major}.${minor}/site-packages`;
    for (const [, { file_name }] of packages) {
      python.unpackArchive(fetchedNow(`vendor/pyodide/${file_name}`), "wheel", { extractDir });
    }
  };
  // Chance must not be the same for everyone.
  python.runPython("import random; random.seed()");
  return python;
}

async function startOrdinary(options) {
  // Figures need no 3D axes, and matplotlib says at each import that they are not shipped.
  const env = { PYTHONWARNINGS: "ignore:Unable to import Axes3D" };
  const [python, calc] = await Promise.all([
    pyodide.loadPyodide({ ...options, indexURL, env: { ...env, ...options.env } }),
    fetched("calc.zip").then((response) => response.arrayBuffer()),
  ]);
  python.unpackArchive(calc, "zip");
  return python;
}

// Pyodide keeps it to itself when its WebAssembly cannot be had or does not start, and waits for ever.
function withoutWaitingForEver(starting) {
  const { instantiateStreaming } = WebAssembly;
  const broken = new Promise((_, reject) => {
    WebAssembly.instantiateStreaming = async (...rest) => {
      try {
        return await instantiateStreaming.apply(WebAssembly, rest);
      } catch (error) {
        reject(error);
        throw error;
      }
    };
  });
  return Promise.race([broken, starting()]).finally(() => (WebAssembly.instantiateStreaming = instantiateStreaming));
}

export async function loadPyodide(options) {
  try {
    const python = await withoutWaitingForEver(() => startFromSnapshot(options));
    performance.mark("python:snapshot");
    return python;
  } catch (error) {
    console.info(`Starting Python without the snapshot: ${error.message}`);
  }
  try {
    const python = await withoutWaitingForEver(() => startOrdinary(options));
    performance.mark("python:ordinary");
    return python;
  } catch (error) {
    // PyScript would tell nobody.
    postMessage({ failed: error.message });
    throw error;
  }
}
