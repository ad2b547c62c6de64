// Python's worker: starts Pyodide with `calc` in it, from the boot snapshot or, where that is not possible, the ordinary
// way; then answers calls of the functions in calc/worker.py.
import * as pyodide from "../vendor/pyodide/pyodide.mjs";
import { start } from "./snapshot.mjs";

const at = (path) => new URL(`../${path}`, import.meta.url).href;
const indexURL = at("vendor/pyodide/");

const fetched = async (path) => {
  const response = await fetch(at(path));
  if (!response.ok) throw new Error(`${path} answered ${response.status}`);
  return response;
};

// What static/carrier.mjs brings, as promises: a failure counts where each is used.
const promised = () => {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  made.promise.catch(() => {});
  return made;
};
const carried = { description: promised(), unpacked: promised(), code: promised() };
const carrierFailed = (text) => Object.values(carried).forEach(({ reject }) => reject(new Error(text)));
const listenToCarrier = (port) => {
  port.onmessage = ({ data: { failed, ...parts } }) => {
    if (failed) carrierFailed(failed);
    for (const part in parts) {
      carried[part].resolve(parts[part]);
      // What has come is large, and is held by those who wait for it alone.
      delete carried[part];
    }
    if (failed || "code" in parts) port.close();
  };
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

async function startFromSnapshot() {
  const { description, unpacked, code } = carried;
  // What Python imports lies in the snapshot already: the standard library comes when something else is asked for.
  const stdLibURL = at("vendor/snapshot/none.zip");
  const unpacking = unpacked.promise.then((parts) => ({ ...parts, code: code.promise }));
  const { python, bringLibraries } = await start({ indexURL, stdLibURL }, description.promise, unpacking);
  // The packages are there but for their libraries.
  python.loadPackage = bringLibraries;
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

async function startOrdinary() {
  // Figures need no 3D axes, and matplotlib says at each import that they are not shipped.
  const env = { PYTHONWARNINGS: "ignore:Unable to import Axes3D" };
  const [python, calc] = await Promise.all([
    pyodide.loadPyodide({ indexURL, env }),
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

async function startPython() {
  try {
    const python = await withoutWaitingForEver(startFromSnapshot);
    performance.mark("python:snapshot");
    return python;
  } catch (error) {
    console.info(`Starting Python without the snapshot: ${error.message}`);
  }
  const python = await withoutWaitingForEver(startOrdinary);
  performance.mark("python:ordinary");
  return python;
}

// Settled by the message that lets it begin.
const python = promised();

// Python's collector looks at all that there is now and then, which takes as long as an answer: it looks when nothing
// has been asked for a while. Next to nothing waits for it but figures, which collect their own.
const REST_MILLISECONDS = 1000;
let rest;
function collectInRest(collector) {
  clearTimeout(rest);
  rest = setTimeout(() => collector.collect(), REST_MILLISECONDS);
}

async function answer({ id, name, values }) {
  try {
    const { functions, collector } = await python.promise;
    postMessage({ id, value: await functions[name](...values) });
    collectInRest(collector);
  } catch ({ message }) {
    postMessage({ id, failed: message });
  }
}

function begin(started) {
  const collector = started.pyimport("gc");
  collector.disable();
  python.resolve({ functions: started.pyimport("calc.worker"), collector });
}

addEventListener("message", ({ data }) => {
  if (data.id) {
    answer(data);
  } else if (data.snapshot) {
    startPython().then(begin).catch(python.reject);
    listenToCarrier(data.snapshot);
  } else {
    carrierFailed(data.broken);
  }
});
