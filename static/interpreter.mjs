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

// What static/carrier.mjs brings, as promises: a failure counts where each is used. The page, which started it, tells it
// where to answer.
function carried() {
  const { port1, port2 } = new MessageChannel();
  const settle = {};
  const promised = (part) =>
    new Promise((resolve, reject) => {
      settle[part] = { resolve, reject };
    });
  const [description, unpacked, code] = ["description", "unpacked", "code"].map(promised);
  for (const promise of [description, unpacked, code]) promise.catch(() => {});
  port1.onmessage = ({ data }) => {
    for (const part in data) {
      if (part === "failed") Object.values(settle).forEach(({ reject }) => reject(new Error(data.failed)));
      else settle[part].resolve(data[part]);
      // What has come is large, and is not held by what waits for the rest.
      delete settle[part];
    }
    if (!("code" in settle) || "failed" in data) port1.close();
  };
  postMessage({ wants: "snapshot" }, [port2]);
  return { description, unpacked: unpacked.then((parts) => ({ ...parts, code })) };
}

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
  const { description, unpacked } = carried();
  // What Python imports lies in the snapshot already: the standard library comes when something else is asked for.
  const stdLibURL = at("vendor/snapshot/none.zip");
  const { python, linked } = await start({ ...options, indexURL, stdLibURL }, description, unpacked);
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
