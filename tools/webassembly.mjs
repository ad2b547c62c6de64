// Reads a WebAssembly file piece by piece; its parts are in its specification under "Binary Format".
export class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    // Behind the file's own eight bytes, where its sections begin.
    this.at = 8;
  }

  byte() {
    return this.bytes[this.at++];
  }

  number() {
    for (let value = 0, shift = 0; ; shift += 7) {
      const byte = this.byte();
      value |= (byte & 0x7f) << shift;
      if (!(byte & 0x80)) return value >>> 0;
    }
  }
}
