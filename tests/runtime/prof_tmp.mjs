// Starts the built site's Python under Node and prints what comes of it: of the checks in checks.py, of many changes, how
// long it takes; or damages the snapshot in a named way and prints how the start fails. usage: node run.mjs HOW
import fs from "node:fs";
import { Readable } from "node:stream";
import { pathToFileURL } from "node:url";
import zlib from "node:zlib";

// Without this Node shows the whole line of the library that failed, a megabyte of it.
process.on("uncaughtException", ({ message }) => {
  console.error(message);
  process.exit(1);
});

const how = process.argv[2];
const site = new URL("_site/", pathToFileURL(process.cwd() + "/"));
const at = (path) => new URL(path, site).pathname;
const read = (path) => new Uint8Array(fs.readFileSync(at(path)));
const indexURL = at("vendor/pyodide/");
const { loadPyodide } = await import(new URL("vendor/pyodide/pyodide.mjs", site));
const { start } = await import(new URL("static/snapshot.mjs", site));
const { Streamed, unpack } = await import(new URL("static/unpack.mjs", site));

const unpacked = (name) => zlib.gunzipSync(read(`vendor/snapshot/${name}`));
const streamed = async (pieces) => new Streamed(Readable.toWeb(Readable.from(pieces)));
const stream = (bytes) => streamed([new Uint8Array(bytes)]);
const description = () => JSON.parse(fs.readFileSync(at("vendor/snapshot/start.json")));
const described = (bytes) => {
  const [size] = new Uint32Array(bytes.slice(0, 4).buffer);
  return JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
};

function changed(name, change) {
  const bytes = unpacked(name);
  const size = bytes.readUInt32LE(0);
  const description = described(new Uint8Array(bytes));
  change(description);
  const text = Buffer.from(JSON.stringify(description));
  const head = Buffer.alloc(4);
  head.writeUInt32LE(text.length);
  return Buffer.concat([head, text, bytes.subarray(4 + size)]);
}

const DAMAGE = {
  "cut-short": () => ({ runtime: stream(unpacked("runtime.bin").subarray(0, 5_000_000)) }),
  "empty": () => ({ calc: stream(Buffer.alloc(0)) }),
  "other-build": () => ({ description: { ...description(), build: "another" } }),
  "other-version": () => ({ calc: stream(changed("calc.bin", (description) => (description.id = "another"))) }),
  "other-table": () => ({ runtime: stream(changed("runtime.bin", (description) => (description.table.booted += 7))) }),
  "no-memory": () => {
    WebAssembly.Memory.prototype.grow = () => {
      throw new RangeError("no more memory");
    };
    return {};
  },
};

async function fromSnapshot(damaged = {}) {
  const options = { indexURL, stdLibURL: at("vendor/snapshot/none.zip") };
  const start_json = damaged.description ?? description();
  const streams = [damaged.runtime ?? stream(unpacked("runtime.bin")), damaged.calc ?? stream(unpacked("calc.bin"))];
  const unpacking = Promise.all(streams).then(([runtime, calc]) => unpack(start_json, runtime, calc));
  const { python, bringLibraries } = await start(options, start_json, unpacking);
  python.loadPackage = bringLibraries;
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
  python.unpackArchive(read("calc.zip"), "zip");
  return python;
}

export const program0 = 0;
const program = (python, name) => {
  python.FS.writeFile(`${name}.py`, fs.readFileSync(`/tmp/team/${name}.py`));
  return python.pyimport(name);
};

// The libraries come last in runtime.bin; here only when they are sent for.
function withLibrariesLater() {
  const bytes = new Uint8Array(unpacked("runtime.bin"));
  const { libraries } = described(bytes);
  const split = bytes.length - libraries.reduce((sum, { fileSize }) => sum + fileSize, 0);
  let send;
  const wanted = new Promise((resolve) => (send = resolve));
  async function* pieces() {
    yield bytes.subarray(0, split);
    await wanted;
    yield bytes.subarray(split);
  }
  return { runtime: streamed(pieces()), send };
}

const HOW = {
  async prof() { const python = await fromSnapshot(); await python.loadPackage(["numpy","matplotlib"],{messageCallback(){}}); const m = program(python,process.argv[4]||"profmod"); const out=[]; for (let i=0;i<(+process.argv[3]||3);i++) out.push(JSON.parse(m.go(i))); return out; },
  async snapshot() {
    return checked(await fromSnapshot());
  },
  async ordinary() {
    return checked(await ordinary());
  },
  async "numbers-first"() {
    const { runtime, send } = withLibrariesLater();
    const python = await fromSnapshot({ runtime });
    const numbers = JSON.parse(program(python, "changes").numbers());
    send();
    await python.loadPackage();
    return { numbers, after: JSON.parse(program(python, "checks").results()) };
  },
  async changes() {
    const python = await fromSnapshot();
    await python.loadPackage();
    const { change } = program(python, "changes");
    const held = (count) => ({ objects: JSON.parse(change(count)), memory: python._module.HEAPU8.length });
    return { before: held(500), after: held(500) };
  },
  async pace() {
    const { pace } = program(await fromSnapshot(), "changes");
    // Each turn by itself, as in the page: WebAssembly that has been optimized meanwhile serves the next call.
    const turns = Array.from({ length: 40 }, (_, turn) => JSON.parse(pace(turn)));
    const best = (what) => Math.min(...turns.map((turn) => turn[what]));
    return { change: best("change"), loop: best("loop") };
  },
  async times() {
    // What compiling costs falls on both, and is not what is compared.
    await WebAssembly.compile(read("vendor/pyodide/pyodide.asm.wasm"));
    const timed = async (start) => {
      const begin = performance.now();
      const python = await start();
      await python.loadPackage(["numpy", "matplotlib"], { messageCallback() {} });
      program(python, "changes").change(1);
      return performance.now() - begin;
    };
    const once = async () => ({ ordinary: await timed(ordinary), snapshot: await timed(fromSnapshot) });
    // The best of three each: what else the machine does meanwhile need not fall on all of them.
    const rounds = [await once(), await once(), await once()];
    const best = (start) => Math.min(...rounds.map((round) => round[start]));
    return { ordinary: best("ordinary"), snapshot: best("snapshot") };
  },
};

async function checked(python) {
  await python.loadPackage(["numpy", "matplotlib"], { messageCallback() {} });
  const { figure, results } = program(python, "checks");
  const answers = JSON.parse(results());
  figure("svg", 40);
  return { answers, memory: python._module.HEAPU8.length };
}

async function refused(how) {
  try {
    await fromSnapshot(DAMAGE[how]());
    return { failed: null };
  } catch (error) {
    return { failed: String(error) };
  }
}

console.log(JSON.stringify(await (HOW[how] ?? refused)(how)));
process.exit(0);
