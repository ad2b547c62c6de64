"""Calls of Python's C functions with things of many kinds, which a page makes before Python takes its first step.

Each of these functions goes on to another one by the kind of what it is given, and each is called by Python's main
loop, which is what an engine optimizes first. V8 then bets, wherever it has seen at most four kinds, that no other
will come, and does its work again after a lost bet: it optimized Python's main loop five to seven times at each start,
each time for 200 to 300 milliseconds of a processor. It does not bet where it has seen five kinds (speculative inlining
and deoptimization of WebAssembly: V8's wasm-inlining-call-indirect and wasm-deopt). With ``--js-flags="--trace-deopt
--trace-wasm-compilation-times"`` Chromium tells of bets that it loses and of what it optimizes.

Run in the snapshot before it is taken; tools/snapshot.mjs takes `addresses`.
"""

import ctypes
import json
import sys
import weakref
from collections import deque
from datetime import timedelta
from decimal import Decimal
from typing import Any


class Kind:
    """One whose answers are written in Python."""

    def __contains__(self, other: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(())

    def __neg__(self) -> int:
        return -1

    def __str__(self) -> str:
        return ""

    def __len__(self) -> int:
        return 1

    def itself(self) -> object:
        """Give what has a method, for what has one."""
        return self


class Asked(Kind):
    """One that is asked for what it does not have."""

    def __getattr__(self, name: str) -> None:
        return None


class AskedFirst(Kind):
    """One that is asked for whatever it has."""

    def __getattribute__(self, name: str) -> None:
        return None


kind, numbers, letters = Kind(), [1], {"a": 1}
reference = weakref.proxy(kind)
holders = {
    1: (numbers, (1,), {1}, range(1), deque(numbers), kind),
    "a": ("a", letters, letters.keys()),
    97: (b"a",),
}
several = [holder for some in holders.values() for holder in some]
signed = (10**30, 1.5, 1j, timedelta(1), Decimal(1), kind)
attributed = (numbers, Kind, sys, list[int], reference, Asked(), AskedFirst())
said = (numbers, ValueError(), timedelta(1), Decimal(1), reference, kind)
calls: list[tuple[Any, ...]] = [
    *(("PyObject_GetAttr", thing, "__class__") for thing in attributed),
    *(("PySequence_Contains", thing, member) for member, some in holders.items() for thing in some),
    *(("PyObject_IsTrue", thing) for thing in (*several, *signed)),
    *(("PyObject_GetIter", thing) for thing in several),
    *(("PyObject_Size", thing) for thing in several),
    *(("PyNumber_Negative", thing) for thing in signed),
    *(("PyObject_Str", thing) for thing in said),
]
functions = (len, list.copy, iter, sorted, list, tuple, Kind.itself)
argument = (ctypes.py_object * 1)(ctypes.py_object(numbers))
# The address of the arguments, how many there are, and that none has a name.
vector = (ctypes.addressof(argument), 1, 0)
addresses = json.dumps(
    [[name, *map(id, things)] for name, *things in calls]
    + [["PyObject_Vectorcall", id(function), *vector] for function in functions]
)
# Whoever has the addresses needs what lies there: it stays as long as Python does.
ctypes.pythonapi.Py_IncRef(ctypes.py_object((calls, functions, argument)))
