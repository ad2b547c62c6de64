// Starts Pyodide from the boot snapshot that tools/snapshot.mjs made: the memory of a Pyodide that has imported all that
// the page's worker needs. Throws where anything is not as it was when the snapshot was made; the caller then starts the
// ordinary way.
import * as pyodide from "../vendor/pyodide/pyodide.mjs";

const PAGE_BYTES = 65536;

// Makes memory what it was; `initial` is what the module's code wrote before anything ran.
function restoreMemory(module, initial, trampoline, { memory, ranges }) {
  const ownTrampoline = module.HEAPU32[trampoline >> 2];
  const used = module.HEAPU32[module._emscripten_get_sbrk_ptr() >> 2];
  const [words, changes] = [initial, memory].map(({ buffer }) => new Uint32Array(buffer, 0, initial.length / 4));
  // Elsewhere there is no change.
  for (const [start, end] of ranges) {
    for (let i = start / 4, last = Math.min(end / 4, words.length); i < last; i++) words[i] ^= changes[i];
  }
  module.HEAPU8.fill(0, initial.length, used);
  module.HEAPU8.set(initial);
  for (const [start, end] of ranges) {
    const from = Math.max(start, initial.length);
    if (from < end) module.HEAPU8.set(memory.subarray(from, end), from);
  }
  // A helper that only some engines have; where it is, this start has put it into the table.
  module.HEAPU32[trampoline >> 2] = ownTrampoline;
}

// Keeps the libraries' places in the table of functions that pointers index.
function reserve(table, { table: sizes }) {
  // One less where the engine has no trampoline.
  const known = [sizes.booted - 1, sizes.booted];
  if (!known.includes(table.length)) throw new Error(`${table.length} functions instead of ${known.join(" or ")}`);
  table.grow(sizes.full - table.length);
}

// Puts the libraries back to where they were, in memory and in the table. Python runs before that, and may do what takes
// none of them: what was there when the snapshot was taken, its collector does not look at.
function link(module, table, { libraries, pointers, addresses }, modules) {
  const { loadedLibsByName, loadedLibsByHandle } = module.LDSO;
  const main = loadedLibsByName.__main__.exports;
  const anyOf = new Set();
  const address = (symbol) => module.GOTHandler.get(anyOf, symbol);
  for (const [symbol, value] of Object.entries(addresses)) address(symbol).value = value;
  const addressBook = new Proxy({}, { get: (_, symbol) => address(symbol) });

  libraries.forEach((library, i) => {
    // Making an instance writes the library's first data over what it held when the snapshot was taken.
    const held = module.HEAPU8.slice(library.memory, library.memory + library.memorySize);
    const own = {};
    const known = { __memory_base: library.memory, __table_base: library.table };
    // A function of the library itself is known only once there is an instance: it is looked up when it is called.
    const find = (symbol) => (symbol in main && !main[symbol].stub ? main[symbol] : (...values) => own[symbol](...values));
    const environment = new Proxy(known, { get: (_, symbol) => (known[symbol] ??= find(symbol)) });
    const { exports } = new WebAssembly.Instance(modules[i], {
      env: environment,
      wasi_snapshot_preview1: environment,
      "GOT.mem": addressBook,
      "GOT.func": addressBook,
    });
    module.HEAPU8.set(held, library.memory);
    for (const [symbol, value] of Object.entries(exports)) {
      own[symbol] = value instanceof WebAssembly.Global ? value.value + library.memory : value;
    }
    const loaded = { name: library.name, refcount: Infinity, exports: own, global: false };
    loadedLibsByName[library.name] = loadedLibsByHandle[library.handle] = loaded;
  });
  for (const [index, library, symbol] of pointers) table.set(index, loadedLibsByName[library].exports[symbol]);
}

// Starts Pyodide with these options from start.json's content and what static/unpack.mjs gives: each may be a promise.
// Gives Python, and what brings its libraries: a function, since the first numbers need none.
export async function start(options, description, unpacking) {
  // Awaited further down; without this a failure before then would count as handled by nobody.
  unpacking.catch(() => {});
  const loading = import("../vendor/pyodide/pyodide.asm.mjs");
  loading.catch(() => {});
  let bringLibraries;

  const createModule = async (settings) => {
    const expected = await description;
    if (settings.API.config.BUILD_ID !== expected.build) throw new Error(`made for build ${expected.build}`);
    const { instantiateWasm } = settings;
    let table, initial, exported;
    const prepare = ({ exports }) => {
      exported = exports;
      table = exports.__indirect_function_table;
      const missing = expected.memoryBytes - exports.memory.buffer.byteLength;
      if (missing > 0) exports.memory.grow(Math.ceil(missing / PAGE_BYTES));
      initial = new Uint8Array(exports.memory.buffer.slice(0, expected.initialBytes));
    };
    // Pyodide swallows what goes wrong while it makes its instance, and would then wait for ever.
    const broken = new Promise((_, reject) => {
      settings.instantiateWasm = (imports, done) =>
        instantiateWasm(imports, (instance, wasm) => {
          try {
            prepare(instance);
          } catch (error) {
            reject(error);
            return;
          }
          done(instance, wasm);
        });
    });
    const { default: createPyodideModule } = await loading;
    const making = Promise.all([createPyodideModule(settings), unpacking]);
    const [module, { ids, links, files, code, ...heap }] = await Promise.race([broken, making]);
    if (ids.runtime !== expected.runtime || ids.calc !== expected.calc) throw new Error("its files are of different versions");
    reserve(table, links);
    restoreMemory(module, initial, expected.trampoline, heap);
    // Before any of Python's own code has run: tools/many_kinds.py says why. What these calls give is small, and stays.
    for (const [name, ...addresses] of expected.kinds) exported[name](...addresses);
    for (const { path, content } of files) {
      module.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
      module.FS.writeFile(path, content);
    }
    let linked;
    bringLibraries = () =>
      (linked ??= code
        .then((libraries) => Promise.all(libraries.map((library) => WebAssembly.compile(library))))
        .then((modules) => link(module, table, links, modules)));
    return module;
  };
  const header = Promise.resolve(description).then(({ header }) =>
    Uint8Array.from(atob(header), (character) => character.charCodeAt(0)),
  );
  const python = await pyodide.loadPyodide({ ...options, createPyodideModule: createModule, _loadSnapshot: header });
  return { python, bringLibraries };
}
