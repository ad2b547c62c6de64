// Starts Pyodide from the boot snapshot that tools/snapshot.mjs made: the memory of a Pyodide that has imported all that
// the page's worker needs. Throws where anything is not as it was when the snapshot was made; the caller then starts the
// ordinary way.
//
// A snapshot is three files. start.json is what is needed first: the ids of the others, Pyodide's own header, sizes.
// runtime.bin and calc.bin are compressed with gzip:
//   4 bytes    the size of what follows, little-endian
//   JSON       what the file holds and where it belongs
//   the rest   files, blocks of memory, libraries (runtime.bin alone)
// Memory is what the module's own code writes at every start, or zero, changed by an exclusive or with each block.
import * as pyodide from "../vendor/pyodide/pyodide.mjs";

// Large: what is fetched besides does not wait for it.
const loading = import("../vendor/pyodide/pyodide.asm.mjs");
loading.catch(() => {});

const PAGE_BYTES = 65536;
const BLOCK_BYTES = 1024;

// Reads a given number of bytes at a time from a stream.
class Pieces {
  constructor(stream) {
    this.reader = stream.getReader();
    this.chunk = new Uint8Array();
  }

  async take(size) {
    const piece = new Uint8Array(size);
    for (let filled = 0; filled < size; ) {
      if (!this.chunk.length) {
        const { value, done } = await this.reader.read();
        if (done) throw new Error("the snapshot ends too early");
        this.chunk = value;
      }
      const part = this.chunk.subarray(0, size - filled);
      piece.set(part, filled);
      filled += part.length;
      this.chunk = this.chunk.subarray(part.length);
    }
    return piece;
  }

  async description() {
    const [size] = new Uint32Array((await this.take(4)).buffer);
    return JSON.parse(new TextDecoder().decode(await this.take(size)));
  }
}

async function readFilesAndBlocks(pieces, description) {
  const files = [];
  for (const { path, fileSize } of description.files) files.push({ path, content: await pieces.take(fileSize) });
  const { blocks } = description;
  return { files, memory: { blocks, content: await pieces.take(blocks.length * BLOCK_BYTES) } };
}

// Takes runtime.bin apart as it comes. The libraries come last, and nothing waits for them but `modules`.
async function readRuntime(stream) {
  const pieces = new Pieces(stream);
  const description = await pieces.description();
  const rest = await readFilesAndBlocks(pieces, description);
  const compile = async () => {
    const modules = [];
    for (const { fileSize } of description.libraries) modules.push(WebAssembly.compile(await pieces.take(fileSize)));
    return Promise.all(modules);
  };
  return { ...description, ...rest, modules: compile() };
}

async function readCalc(stream) {
  const pieces = new Pieces(stream);
  const description = await pieces.description();
  return { ...description, ...(await readFilesAndBlocks(pieces, description)) };
}

// Makes memory what it was; `initial` is what the module's code wrote before anything ran.
function restoreMemory(module, initial, { memoryBytes, trampoline }, layers) {
  const ownTrampoline = module.HEAPU32[trampoline >> 2];
  const used = module.HEAPU32[module._emscripten_get_sbrk_ptr() >> 2];
  module.HEAPU8.fill(0, initial.length, used);
  module.HEAPU8.set(initial);
  const words = new Uint32Array(module.HEAPU8.buffer, 0, memoryBytes / 4);
  const perBlock = BLOCK_BYTES / 4;
  for (const { blocks, content } of layers) {
    const changes = new Uint32Array(content.buffer);
    blocks.forEach((block, i) => {
      for (let to = block * perBlock, from = i * perBlock, end = from + perBlock; from < end; ) words[to++] ^= changes[from++];
    });
  }
  // A helper that only some engines have; where it is, this start has put it into the table.
  words[trampoline >> 2] = ownTrampoline;
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
  const address = (symbol) => (module.GOT[symbol] ??= new WebAssembly.Global({ value: "i32", mutable: true }, -1));
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

// Starts Pyodide with these options. The files may be on their way: `description` is start.json's content, `runtime` and
// `calc` are streams of the unpacked bytes. Gives Python, and a promise of its libraries.
export async function start(options, { description, runtime: runtimeStream, calc: calcStream }) {
  const reading = Promise.all([description, runtimeStream.then(readRuntime), calcStream.then(readCalc)]);
  // Awaited further down; without this a failure before then would count as handled by nobody.
  reading.catch(() => {});
  let linked;

  const createModule = async (settings) => {
    const expected = await description;
    if (settings.API.config.BUILD_ID !== expected.build) throw new Error(`made for build ${expected.build}`);
    const { instantiateWasm } = settings;
    let table, initial;
    const prepare = ({ exports }) => {
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
    const making = Promise.all([createPyodideModule(settings), reading]);
    const [module, [, runtime, calc]] = await Promise.race([broken, making]);
    if (runtime.id !== expected.runtime || calc.id !== expected.calc) throw new Error("its files are of different versions");
    reserve(table, runtime);
    restoreMemory(module, initial, expected, [runtime.memory, calc.memory]);
    for (const { path, content } of [...runtime.files, ...calc.files]) {
      module.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
      module.FS.writeFile(path, content);
    }
    linked = runtime.modules.then((modules) => link(module, table, runtime, modules));
    linked.catch(() => {});
    return module;
  };
  const header = Promise.resolve(description).then(({ header }) =>
    Uint8Array.from(atob(header), (character) => character.charCodeAt(0)),
  );
  const python = await pyodide.loadPyodide({ ...options, createPyodideModule: createModule, _loadSnapshot: header });
  return { python, linked };
}
