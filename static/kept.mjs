// The boot snapshot as static/snapshot.mjs wants it, in the file system that browsers have for a site. Read from there it
// takes none of the browser's other processes and no more work, which at a start is a good part of all that is computed.
//
// The file holds, in this order:
//   files, memory, libraries
//   JSON       what they are and where they belong, and the hashes of all that comes before, piece by piece
//   32 bytes   the hash of that JSON
//   4 bytes    its size, little-endian
// It is written from its begin to its end: what was broken off has no such end.
const site = new URL("..", import.meta.url).pathname;
// Other sites may share the origin. tools/withdraw_offline.js removes the folder, and has it by this name.
const FOLDER = `batch-size-optimizer ${encodeURIComponent(site)}`;

export const PIECE_BYTES = 1 << 20;
const HASH_BYTES = 32;
const END_BYTES = HASH_BYTES + 4;

export async function folder(options) {
  const root = await navigator.storage.getDirectory();
  return root.getDirectoryHandle(FOLDER, options);
}

// Another version is never taken for this one.
export const fileName = ({ runtime, calc }) => `${runtime}-${calc}`;

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
export const hash = async (bytes) => hex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));

// A kept file, to read. Throws where there is none, or none that is whole.
export class Kept {
  static async open(place, described) {
    const file = await place.getFileHandle(fileName(described));
    // Several may read at a time, where the browser knows how; else the first one alone.
    const handle = await file.createSyncAccessHandle({ mode: "read-only" });
    try {
      return new Kept(handle);
    } catch (error) {
      handle.close();
      throw error;
    }
  }

  constructor(handle) {
    this.handle = handle;
    this.at = handle.getSize() - END_BYTES;
    this.headHash = hex(this.take(HASH_BYTES));
    const [size] = new Uint32Array(this.take(4).buffer);
    this.at -= END_BYTES + size;
    this.head = this.take(size);
    this.at = 0;
  }

  fill(piece) {
    const count = this.handle.read(piece, { at: this.at });
    if (count !== piece.length) throw new Error("a kept file is not whole");
    this.at += count;
    return piece;
  }

  take(size) {
    return this.fill(new Uint8Array(size));
  }

  description() {
    return JSON.parse(new TextDecoder().decode(this.head));
  }

  // What `unpack` in static/unpack.mjs gives, but for the code of libraries.
  unpack({ memoryBytes }) {
    const { ids, links, files, ranges } = this.description();
    this.libraries = links.libraries;
    const contents = files.map(({ path, fileSize }) => ({ path, content: this.take(fileSize) }));
    const memory = new Uint8Array(memoryBytes);
    for (const [start, end] of ranges) this.fill(memory.subarray(start, end));
    return { ids, links, files: contents, memory, ranges };
  }

  // To be asked for after that.
  code() {
    return this.libraries.map(({ fileSize }) => this.take(fileSize));
  }

  close() {
    this.handle.close();
  }
}
