// A worker that keeps the boot snapshot for the next start (static/kept.mjs), or checks what is kept, says so and ends.
import { fileName, folder, hash, Kept, PIECE_BYTES } from "./kept.mjs";
import { BLOCK_BYTES, description, fetched, filesOf, ranges, Streamed } from "./unpack.mjs";

// A gap in memory that takes longer to leave out than to write.
const GAP_BYTES = 16384;

async function unzipped(name) {
  const { body } = await fetched(name);
  return new Streamed(body.pipeThrough(new DecompressionStream("gzip")));
}

async function isWhole(kept) {
  try {
    if ((await hash(kept.head)) !== kept.headHash) return false;
    const { hashes, bytes } = kept.description();
    for (const expected of hashes) {
      if ((await hash(kept.take(Math.min(PIECE_BYTES, bytes - kept.at)))) !== expected) return false;
    }
    return kept.at === bytes;
  } catch {
    return false;
  }
}

// Collects what is written into pieces, so that no more than one is held in memory.
class Pieces {
  constructor(handle) {
    this.handle = handle;
    this.piece = new Uint8Array(PIECE_BYTES);
    this.filled = 0;
    this.bytes = 0;
    this.hashes = [];
  }

  async write(content) {
    for (let from = 0; from < content.length; ) {
      const part = content.subarray(from, from + PIECE_BYTES - this.filled);
      this.piece.set(part, this.filled);
      this.filled += part.length;
      from += part.length;
      if (this.filled === PIECE_BYTES) await this.end();
    }
  }

  async end() {
    const piece = this.piece.subarray(0, this.filled);
    this.append(piece);
    this.hashes.push(await hash(piece));
    this.filled = 0;
  }

  append(bytes) {
    if (this.handle.write(bytes, { at: this.bytes }) !== bytes.length) throw new Error("no room");
    this.bytes += bytes.length;
  }
}

// Memory's blocks in their order: those of `runtime`, changed by those of `calc`.
async function* blocksOf(parts, runtime, calc) {
  const [first, second] = [parts.runtime.blocks, parts.calc.blocks].map((blocks) => blocks.values());
  let [inRuntime, inCalc] = [first.next().value, second.next().value];
  const change = new Uint8Array(BLOCK_BYTES);
  for (const [start, end] of parts.ranges) {
    for (let block = start / BLOCK_BYTES; block < end / BLOCK_BYTES; block++) {
      const content = new Uint8Array(BLOCK_BYTES);
      if (block === inRuntime) {
        await runtime.fill(content);
        inRuntime = first.next().value;
      }
      if (block === inCalc) {
        await calc.fill(change);
        change.forEach((byte, i) => (content[i] ^= byte));
        inCalc = second.next().value;
      }
      yield content;
    }
  }
}

async function write(handle, described) {
  const [runtime, calc] = await Promise.all([unzipped("runtime.bin"), unzipped("calc.bin")]);
  const [ofRuntime, ofCalc] = [await description(runtime), await description(calc)];
  const ids = { runtime: ofRuntime.id, calc: ofCalc.id };
  if (fileName(ids) !== fileName(described)) throw new Error("the snapshot's files are of different versions");
  const pieces = new Pieces(handle);
  for (const { content } of await filesOf(runtime, ofRuntime.files)) await pieces.write(content);
  for (const { content } of await filesOf(calc, ofCalc.files)) await pieces.write(content);
  const held = ranges(new Set([...ofRuntime.blocks, ...ofCalc.blocks]), GAP_BYTES);
  const parts = { runtime: ofRuntime, calc: ofCalc, ranges: held };
  for await (const block of blocksOf(parts, runtime, calc)) await pieces.write(block);
  for (const { fileSize } of ofRuntime.libraries) await pieces.write(await runtime.fill(new Uint8Array(fileSize)));
  await pieces.end();

  const { libraries, table, pointers, addresses } = ofRuntime;
  const head = new TextEncoder().encode(
    JSON.stringify({
      ids,
      links: { libraries, table, pointers, addresses },
      files: [...ofRuntime.files, ...ofCalc.files],
      ranges: held,
      hashes: pieces.hashes,
      bytes: pieces.bytes,
    }),
  );
  pieces.append(head);
  pieces.append(Uint8Array.from((await hash(head)).match(/../g), (hex) => parseInt(hex, 16)));
  pieces.append(new Uint8Array(Uint32Array.of(head.length).buffer));
  handle.flush();
}

async function keep() {
  const described = await (await fetched("start.json")).json();
  const name = fileName(described);
  const place = await folder({ create: true });
  for await (const other of place.keys()) if (other !== name) await place.removeEntry(other);
  const kept = await Kept.open(place, described).catch(() => null);
  const whole = kept && (await isWhole(kept));
  kept?.close();
  if (whole) return;
  const file = await place.getFileHandle(name, { create: true });
  const handle = await file.createSyncAccessHandle();
  try {
    handle.truncate(0);
    await write(handle, described);
  } finally {
    handle.close();
  }
}

// Private windows may forbid it, another tab may be reading, the disk may be full: starts are slower then, and that is all.
keep()
  .catch(({ message }) => console.info(`Nothing kept for a faster start: ${message}`))
  .finally(() => {
    postMessage("done");
    close();
  });
