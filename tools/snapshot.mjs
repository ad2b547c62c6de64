// Makes the boot snapshot: the memory of a Pyodide that has imported all that the page's worker needs and drawn every
// figure, so that the worker starts where this one ends. static/snapshot.mjs puts it back.
// usage: node tools/snapshot.mjs PYODIDE REPACKED OUT
//   PYODIDE   the loader and the WebAssembly as tools/exports.mjs made them
//   REPACKED  the runtime as tools/repack.py made it
//   OUT       gets runtime.bin (the libraries, and memory before `calc`), calc.bin (what `calc` changes in it, so that a
//             change of `calc` leaves the large file as it is) and start.json. static/snapshot.mjs describes them.
import { createHash } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import zlib from "node:zlib";
import { Reader } from "./webassembly.mjs";

// Without this Node shows the whole line of the library that failed, a megabyte of it.
process.on("uncaughtException", ({ message }) => {
  console.error(message);
  process.exit(1);
});

const [lean, repacked, out] = process.argv.slice(2).map((folder) => path.resolve(folder));
const { loadPyodide } = await import(pathToFileURL(path.join(lean, "pyodide.mjs")));
const FONT = "matplotlib/mpl-data/fonts/ttf/DejaVuSans.ttf";
const HOME = "/home/pyodide";
const BLOCK_BYTES = 1024;

// Neither the clock nor chance may show in the result.
const MOMENT = Date.UTC(2026, 0, 1);
Date.now = () => MOMENT;
performance.now = () => 0;
crypto.getRandomValues = (target) => target.fill(1);

// Memory as the module's own code starts with it, and the table of functions that pointers index.
let table, initial;
const instantiate = WebAssembly.instantiate;
WebAssembly.instantiate = async (...rest) => {
  const result = await instantiate.apply(WebAssembly, rest);
  const { exports } = result.instance ?? result;
  if (exports.__indirect_function_table) {
    table = exports.__indirect_function_table;
    initial = new Uint8Array(exports.memory.buffer.slice(0));
  }
  return result;
};
const pyodide = await loadPyodide({
  _makeSnapshot: true,
  stdLibURL: path.join(repacked, "python_stdlib.zip"),
  env: { HOME, PYTHONHASHSEED: "0", PYTHONOPTIMIZE: "2", PYTHONDONTWRITEBYTECODE: "1", PYTHONNODEBUGRANGES: "1" },
});
WebAssembly.instantiate = instantiate;
const { FS, _module: module } = pyodide;
const word = (address) => module.HEAPU32[address >> 2];

// Where the engine can do it, Pyodide adds one function of its own to the table at its start, and notes it in memory.
// A snapshot must fit either kind of engine: the place is kept free, and the note is left to the engine that starts.
const main = module.LDSO.loadedLibsByName.__main__.exports;
const trampoline = main._PyRuntime.value + word(main._PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET.value);
if (!word(trampoline)) table.grow(1);
const booted = table.length;

// Files are written from outside, so that unpacking them leaves no trace in memory.
function copy(from, to) {
  FS.mkdirTree(to);
  for (const entry of fs.readdirSync(from, { withFileTypes: true })) {
    const [source, target] = [path.join(from, entry.name), `${to}/${entry.name}`];
    if (entry.isFile()) FS.writeFile(target, new Uint8Array(fs.readFileSync(source)));
    else if (entry.name !== "__pycache__") copy(source, target);
  }
}

// Gives what `take` takes of the program's variables.
function run(program, take = () => {}) {
  // Python would otherwise go by the folders' times, and the clock stands still.
  pyodide.runPython("import importlib; importlib.invalidate_caches()");
  const globals = pyodide.toPy({ __name__: program });
  pyodide.runPython(fs.readFileSync(program, "utf8"), { globals });
  const taken = take(globals);
  globals.destroy();
  return taken;
}

// Each handle of a loaded library is a struct in memory: the words at which its fields lie.
const [MEMORY, MEMORY_SIZE, TABLE, TABLE_SIZE, FILE, FILE_SIZE] = [3, 4, 5, 6, 7, 8];

// A library's file with zeros for its first data: the snapshot's memory holds what became of them, and link() in
// static/snapshot.mjs puts that back.
function withoutData(file) {
  const bytes = file.slice();
  const reader = new Reader(bytes);
  const [DATA, PASSIVE, ADD, END] = [11, 1, 0x6a, 0x0b];
  while (reader.at < bytes.length) {
    const section = reader.byte();
    const size = reader.number();
    const end = reader.at + size;
    for (let left = section === DATA ? reader.number() : 0; left; left--) {
      // Where the segment goes: the sum of a base and a constant, or nothing where the code says it.
      if (reader.number() !== PASSIVE) {
        for (let operation; (operation = reader.byte()) !== END; ) if (operation !== ADD) reader.number();
      }
      const length = reader.number();
      bytes.fill(0, reader.at, reader.at + length);
      reader.at += length;
    }
    reader.at = end;
  }
  return bytes;
}

function loadedLibraries() {
  const handles = Object.keys(module.LDSO.loadedLibsByHandle).map(Number).filter(Boolean);
  const libraries = handles.map((handle) => {
    const { name, exports } = module.LDSO.loadedLibsByHandle[handle];
    const script = Object.keys(exports).find((symbol) => /^__(em_js__|start_em_asm)/.test(symbol));
    if (script) throw new Error(`${name} holds JavaScript (${script}), which a snapshot cannot`);
    const field = (index) => word(handle + 4 * index);
    // Python keeps a copy of the library's file, which nothing reads once the library is loaded.
    module._free(field(FILE));
    module.HEAPU32.fill(0, (handle >> 2) + FILE, (handle >> 2) + FILE_SIZE + 1);
    return {
      handle,
      name,
      memory: field(MEMORY),
      memorySize: field(MEMORY_SIZE),
      table: field(TABLE),
      tableSize: field(TABLE_SIZE),
      file: withoutData(FS.readFile(name)),
    };
  });
  return libraries.sort((a, b) => a.table - b.table);
}

// Pointers that the dynamic linker added to the table outside the libraries' own parts, by the name of their function.
function addedPointers(libraries) {
  const names = new Map();
  for (const { name, exports } of Object.values(module.LDSO.loadedLibsByName)) {
    for (const [symbol, value] of Object.entries(exports)) {
      if (typeof value === "function" && !names.has(value)) names.set(value, [name, symbol]);
    }
  }
  const pointers = [];
  for (let index = booted; index < table.length; index++) {
    if (libraries.some((library) => index >= library.table && index < library.table + library.tableSize)) continue;
    const name = names.get(table.get(index));
    if (!name) throw new Error(`nothing is known about the function at ${index} of the table`);
    pointers.push([index, ...name]);
  }
  return pointers;
}

// The addresses that libraries look up by name.
function wantedAddresses(libraries) {
  const imports = libraries.flatMap(({ file }) => WebAssembly.Module.imports(new WebAssembly.Module(file)));
  const names = imports.filter((wanted) => wanted.module.startsWith("GOT.")).map(({ name }) => name);
  return Object.fromEntries([...new Set(names)].sort().map((name) => [name, module.GOT[name].value]));
}

const contents = (described) => described.map(({ file }) => file);
const withoutFile = ({ file, ...rest }) => ({ ...rest, fileSize: file.length });

// Memory up to the end of what was ever allocated. What is free in it still holds what was there: take all of it, largest
// pieces first, clear it and give it back.
function memoryNow() {
  const end = () => word(module._emscripten_get_sbrk_ptr());
  const taken = [];
  for (let size = 1 << 20; size >= 16; size >>= 1) {
    const limit = end();
    for (let address; (address = module._malloc(size)); ) {
      taken.push(address);
      if (address + size > limit) break;
      module.HEAPU8.fill(0, address, address + size);
    }
  }
  taken.forEach((address) => module._free(address));
  const memory = new Uint8Array(Math.ceil(end() / BLOCK_BYTES) * BLOCK_BYTES);
  memory.set(module.HEAPU8.subarray(0, end()));
  memory.fill(0, trampoline, trampoline + 4);
  return memory;
}

// The blocks in which two states of memory differ, as their exclusive or; beyond its end, a state is zero.
function difference(before, after) {
  const blocks = [];
  const content = [];
  for (let start = 0; start < after.length; start += BLOCK_BYTES) {
    const block = after.slice(start, start + BLOCK_BYTES);
    before.subarray(start, start + BLOCK_BYTES).forEach((byte, i) => (block[i] ^= byte));
    if (block.some(Boolean)) {
      blocks.push(start / BLOCK_BYTES);
      content.push(block);
    }
  }
  return { blocks, content };
}

// Writes a file of the snapshot and returns what tells it from every other.
function write(name, description, pieces) {
  const hash = createHash("sha256").update(JSON.stringify(description));
  pieces.forEach((piece) => hash.update(piece));
  const id = hash.digest("hex");
  const text = Buffer.from(JSON.stringify({ id, ...description }));
  const size = Buffer.alloc(4);
  size.writeUInt32LE(text.length);
  const bytes = Buffer.concat([size, text, ...pieces]);
  const packed = zlib.gzipSync(bytes, { level: 9 });
  fs.writeFileSync(path.join(out, name), packed);
  console.log(`${name}: ${bytes.length} bytes, ${packed.length} compressed`);
  return id;
}

fs.mkdirSync(out, { recursive: true });
const sitePackages = pyodide.runPython("import site; site.getsitepackages()[0]");
copy(path.join(repacked, "site-packages"), sitePackages);
run("tools/warm_up_runtime.py");
const libraries = loadedLibraries();
const pointers = addedPointers(libraries);
// Files that are read while Python runs.
const asFile = (location) => ({ path: location, file: FS.readFile(location) });
const fonts = [asFile(`${sitePackages}/${FONT}`)];
const runtime = memoryNow();
const initialBytes = BLOCK_BYTES * Math.ceil((initial.findLastIndex(Boolean) + 1) / BLOCK_BYTES);
const runtimeBlocks = difference(initial, runtime);
const description = {
  libraries: libraries.map(withoutFile),
  files: fonts.map(withoutFile),
  table: { booted, full: table.length },
  pointers,
  addresses: wantedAddresses(libraries),
  blocks: runtimeBlocks.blocks,
};
const runtimeId = write("runtime.bin", description, [...contents(fonts), ...runtimeBlocks.content, ...contents(libraries)]);

for (const folder of ["calc", "page"]) copy(folder, `${HOME}/${folder}`);
run("tools/warm_up_calc.py");
run("tools/late_imports.py");
const kinds = run("tools/many_kinds.py", (globals) => JSON.parse(globals.get("addresses")));
const added = Object.keys(module.LDSO.loadedLibsByName).length - 1 - libraries.length;
if (added || table.length !== pointers.length + booted + libraries.reduce((sum, { tableSize }) => sum + tableSize, 0)) {
  throw new Error("calc loads a library that tools/warm_up_runtime.py does not: import it there");
}
const whole = memoryNow();
// Pyodide's own part: a header that says what of JavaScript memory refers to. The heap that follows is not taken.
const snapshot = pyodide.makeMemorySnapshot();
const header = snapshot.slice(0, new Uint32Array(snapshot.buffer, snapshot.byteOffset, 2)[1]);
const dataNames = fs.readdirSync("calc", { recursive: true }).filter((name) => name.endsWith(".json"));
// But for what tools/warm_up_calc.py has removed.
const data = dataNames.sort().map((name) => `${HOME}/calc/${name}`).filter((name) => FS.analyzePath(name).exists).map(asFile);
const calcBlocks = difference(runtime, whole);
const calcId = write("calc.bin", { files: data.map(withoutFile), blocks: calcBlocks.blocks }, [
  ...contents(data),
  ...calcBlocks.content,
]);
const start = {
  runtime: runtimeId,
  calc: calcId,
  build: pyodide._api.config.BUILD_ID,
  header: Buffer.from(header).toString("base64"),
  memoryBytes: whole.length,
  initialBytes,
  trampoline,
  kinds,
};
fs.writeFileSync(path.join(out, "start.json"), JSON.stringify(start));
// As each start will; memory has been taken.
for (const [name, ...addresses] of kinds) {
  main[name](...addresses);
  if (main.PyErr_Occurred()) throw new Error(`tools/many_kinds.py: ${name} fails with what lies at ${addresses[0]}`);
}
process.exit(0);
