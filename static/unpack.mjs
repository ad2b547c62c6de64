// Takes the boot snapshot that tools/snapshot.mjs made apart, as it comes, into what static/snapshot.mjs starts from.
//
// A snapshot is three files. start.json is what is needed first: the ids of the others, Pyodide's own header, sizes.
// runtime.bin and calc.bin are compressed with gzip:
//   4 bytes    the size of what follows, little-endian
//   JSON       what the file holds and where it belongs
//   the rest   files, blocks of memory, libraries (runtime.bin alone)
// Memory is what the module's own code writes at every start, or zero, changed by an exclusive or with each block.
export const BLOCK_BYTES = 1024;

// The answer for one of these files.
export async function fetched(name) {
  const response = await fetch(new URL(`../vendor/snapshot/${name}`, import.meta.url));
  if (!response.ok) throw new Error(`${name} answered ${response.status}`);
  return response;
}

// Bytes as they come from a stream. `fill` fills an array with the next ones.
export class Streamed {
  constructor(stream) {
    this.reader = stream.getReader();
    this.chunk = new Uint8Array();
  }

  async fill(piece) {
    for (let filled = 0; filled < piece.length; ) {
      if (!this.chunk.length) {
        const { value, done } = await this.reader.read();
        if (done) throw new Error("the snapshot ends too early");
        this.chunk = value;
      }
      const part = this.chunk.subarray(0, piece.length - filled);
      piece.set(part, filled);
      filled += part.length;
      this.chunk = this.chunk.subarray(part.length);
    }
    return piece;
  }
}

const take = (source, size) => source.fill(new Uint8Array(size));

export async function description(source) {
  const [size] = new Uint32Array((await take(source, 4)).buffer);
  return JSON.parse(new TextDecoder().decode(await take(source, size)));
}

export async function filesOf(source, described) {
  const files = [];
  for (const { path, fileSize } of described) files.push({ path, content: await take(source, fileSize) });
  return files;
}

// The parts of memory that hold anything: where each begins and ends. Those with no larger gap between them are one.
export function ranges(blocks, gapBytes = 0) {
  const found = [];
  for (const block of [...blocks].sort((a, b) => a - b)) {
    const start = block * BLOCK_BYTES;
    if (found.length && found.at(-1)[1] + gapBytes >= start) found.at(-1)[1] = start + BLOCK_BYTES;
    else found.push([start, start + BLOCK_BYTES]);
  }
  return found;
}

function change(memory, blocks, content) {
  const [words, changes] = [memory, content].map(({ buffer }) => new Uint32Array(buffer));
  const perBlock = BLOCK_BYTES / 4;
  blocks.forEach((block, i) => {
    for (let to = block * perBlock, from = i * perBlock, end = from + perBlock; from < end; ) words[to++] ^= changes[from++];
  });
}

// `runtime` and `calc` give the unpacked bytes, each by a `fill` as above. Gives what is needed before Python runs, and a
// promise of the libraries' WebAssembly: it comes last, and nothing else waits for it.
export async function unpack({ memoryBytes }, runtime, calc) {
  const memory = new Uint8Array(memoryBytes);
  const readRuntime = async () => {
    const { blocks, ...described } = await description(runtime);
    const files = await filesOf(runtime, described.files);
    for (const [start, end] of ranges(blocks)) await runtime.fill(memory.subarray(start, end));
    return { ...described, files, blocks };
  };
  const readCalc = async () => {
    const { blocks, ...described } = await description(calc);
    const files = await filesOf(calc, described.files);
    return { ...described, files, blocks, content: await take(calc, blocks.length * BLOCK_BYTES) };
  };
  const [first, second] = await Promise.all([readRuntime(), readCalc()]);
  change(memory, second.blocks, second.content);
  const readLibraries = async () => {
    const read = [];
    for (const { fileSize } of first.libraries) read.push(await take(runtime, fileSize));
    return read;
  };
  const { libraries, table, pointers, addresses } = first;
  return {
    ids: { runtime: first.id, calc: second.id },
    links: { libraries, table, pointers, addresses },
    files: [...first.files, ...second.files],
    memory,
    ranges: ranges(new Set([...first.blocks, ...second.blocks])),
    code: readLibraries(),
  };
}
