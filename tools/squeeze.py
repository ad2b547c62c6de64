"""Compress the boot snapshot once more, as small as gzip gets: every visitor saves what one build spends.

usage: python -m tools.squeeze FOLDER
"""

import argparse
import gzip
from pathlib import Path

import deflate

# libdeflate's highest level, which searches for the smallest form; zlib's best is six hundredths larger.
LEVEL = 12


def squeezed(content: bytes) -> bytes:
    """Return the content in gzip's form, as small as that gets."""
    return bytes(deflate.gzip_compress(content, LEVEL))


def main() -> None:
    """Replace each compressed file by a smaller one of the same content."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the snapshot lies")
    for path in sorted(parser.parse_args().folder.glob("*.bin")):
        before = path.read_bytes()
        after = squeezed(gzip.decompress(before))
        path.write_bytes(after)
        print(f"{path.name}: {len(before)} -> {len(after)} bytes")


if __name__ == "__main__":
    main()
