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
// The files are compressed themselves, so that it does not take a host that does it.
const unpacked = async (path) => (await fetched(path)).body.pipeThrough(new DecompressionStream("gzip"));

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
  const [runtime, calc, files] = await Promise.all([
    ...["runtime.bin", "calc.bin"].map((name) => unpacked(`vendor/snapshot/${name}`)),
    fetched("calc.zip").then((response) => response.arrayBuffer()),
  ]);
  // What Python imports lies in the snapshot already: the standard library comes when something else is asked for.
  const python = await start({ ...options, indexURL, stdLibURL: at("vendor/snapshot/none.zip") }, runtime, calc);
  // Its modules lie in the snapshot, its data files do not: a catalog may be read late.
  python.unpackArchive(files, "zip");
  const packages = Object.entries(python.lockfile.packages);
  for (const [name] of packages) python.loadedPackages[name] = "snapshot";
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

export async function loadPyodide(options) {
  try {
    const python = await startFromSnapshot(options);
    performance.mark("python:snapshot");
    return python;
  } catch (error) {
    console.info(`Starting Python without the snapshot: ${error.message}`);
    const python = await startOrdinary(options);
    performance.mark("python:ordinary");
    return python;
  }
}
