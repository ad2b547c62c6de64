"""Work for its own sake, after which a browser keeps the machine code that it has made of Python for the next visit.

V8 keeps a WebAssembly module's optimized code each time that a million bytes of it have come together (its option
wasm-caching-hard-threshold; the other one, wasm-caching-timeout-ms, was never seen to act), and a visit to the page
makes some 760,000 in Python's own module. Compressors and Python's compiler are the least work that brings the rest:
another 370,000.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from typing import Final

ROUNDS: Final = 4
REPEATED: Final = 3
"""Times that the text is there, so that compressors find what they look for."""
FUNCTIONS: Final = 40
FUNCTION: Final = """
def f(a, b=1, *c, d=2, **e):
    for x in [y for y in a if y > 3]:
        with x as z:
            try:
                yield z[1:2] + b * (c or d) ** -e.f
            except KeyError as g:
                raise g from None
    return {**e, "k": f"{a!r:>9}", **{1: lambda q: not q}}
"""


def exercise(turn: int) -> int:
    """Do some hundredths of a second of work, the one of this turn; give how many turns are left."""
    compressors = (bz2, lzma, zlib)
    kind = turn % (len(compressors) + 1)
    if kind < len(compressors):
        text = " ".join([*sys.modules] * REPEATED).encode()
        compressors[kind].decompress(compressors[kind].compress(text))
    else:
        compile(FUNCTION * FUNCTIONS, "exercise", "exec")
    return ROUNDS * (len(compressors) + 1) - turn - 1
