"""Modules that the boot snapshot does not hold: fetched when they are asked for, which no ordinary use does.

Run in the snapshot before it is taken. The worker that starts from it has no standard library and no packages in its
file system; static/worker.mjs brings them at the first import that finds nothing.
"""

import importlib
import sys
import zipimport
from importlib.machinery import ModuleSpec, PathFinder


class LateFinder:
    """The last finder to be asked: brings the files, once, and looks again."""

    def __init__(self) -> None:
        self._brought = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a module in what was brought; None where it is not there either."""
        if self._brought:
            return None
        self._brought = True
        import pyodide_js  # noqa: PLC0415 - exists in the page alone

        # The packages come as archives, which the standard library unpacks.
        for bring in (pyodide_js.bringStandardLibrary, pyodide_js.bringPackages):
            bring()
            _forget_what_was_not_there()
        return PathFinder.find_spec(name, path, target)  # type: ignore[arg-type]


def _forget_what_was_not_there() -> None:
    zipimport._zip_directory_cache.clear()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


sys.meta_path.append(LateFinder())
