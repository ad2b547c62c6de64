// Starts the built site's Python under Node, from the boot snapshot or the ordinary way, and prints what the checks in
// checks.py give; or damages the snapshot in a named way and prints how the start fails. usage: node run.mjs HOW
import fs from "node:fs";
import { Readable } from "node:stream";
import { pathToFileURL } from "node:url";
import zlib from "node:zlib";

const how = process.argv[2];
const site = new URL("_site/", pathToFileURL(process.cwd() + "/"));
const at = (path) => new URL(path, site).pathname;
const read = (path) => new Uint8Array(fs.readFileSync(at(path)));
const indexURL = at("vendor/pyodide/");
const { loadPyodide } = await import(new URL("vendor/pyodide/pyodide.mjs", site));
const { start } = await import(new URL("static/snapshot.mjs", site));

const unpacked = (name) => zlib.gunzipSync(read(`vendor/snapshot/${name}`));
const stream = async (bytes) => Readable.toWeb(Readable.from([new Uint8Array(bytes)]));
const description = () => JSON.parse(fs.readFileSync(at("vendor/snapshot/start.json")));

function changed(name, change) {
  const bytes = unpacked(name);
  const size = bytes.readUInt32LE(0);
  const description = JSON.parse(bytes.subarray(4, 4 + size));
  change(description);
  const text = Buffer.from(JSON.stringify(description));
  const head = Buffer.alloc(4);
  head.writeUInt32LE(text.length);
  return Buffer.concat([head, text, bytes.subarray(4 + size)]);
}

const DAMAGE = {
  "cut-short": () => ({ runtime: unpacked("runtime.bin").subarray(0, 5_000_000) }),
  "empty": () => ({ calc: Buffer.alloc(0) }),
  "other-build": () => ({ expected: { ...description(), build: "another" } }),
  "other-version": () => ({ calc: changed("calc.bin", (description) => (description.id = "another")) }),
  "other-table": () => ({ runtime: changed("runtime.bin", (description) => (description.table.booted += 7)) }),
  "no-memory": () => {
    WebAssembly.Memory.prototype.grow = () => {
      throw new RangeError("no more memory");
    };
    return {};
  },
};

async function fromSnapshot(damaged = {}) {
  const [runtime, calc] = [damaged.runtime ?? unpacked("runtime.bin"), damaged.calc ?? unpacked("calc.bin")];
  const options = { indexURL, stdLibURL: at("vendor/snapshot/none.zip") };
  const python = await start(options, damaged.expected ?? description(), stream(runtime), stream(calc));
  python.bringStandardLibrary = () => python.FS.writeFile("/lib/python314.zip", read("vendor/pyodide/python_stdlib.zip"));
  python.bringPackages = () => {
    for (const name of fs.readdirSync(indexURL).filter((name) => name.endsWith(".whl"))) {
      const extractDir = "/lib/python3.14/site-packages";
      python.unpackArchive(read(`vendor/pyodide/${name}`), "wheel", { extractDir });
    }
  };
  return python;
}

async function ordinary() {
  const env = { HOME: "/home/pyodide", PYTHONWARNINGS: "ignore:Unable to import Axes3D" };
  const python = await loadPyodide({ indexURL, env, packageCacheDir: indexURL });
  await python.loadPackage(["numpy", "matplotlib"], { messageCallback() {} });
  python.unpackArchive(read("calc.zip"), "zip");
  return python;
}

if (how in DAMAGE) {
  try {
    await fromSnapshot(DAMAGE[how]());
    console.log(JSON.stringify({ failed: null }));
  } catch (error) {
    console.log(JSON.stringify({ failed: String(error) }));
  }
} else {
  const python = await (how === "snapshot" ? fromSnapshot() : ordinary());
  python.FS.writeFile("checks.py", fs.readFileSync("tests/runtime/checks.py"));
  const { figure, results } = python.pyimport("checks");
  const answers = JSON.parse(results());
  figure("svg", 40);
  console.log(JSON.stringify({ answers, memory: python._module.HEAPU8.length }));
}
process.exit(0);
