"""What the build changes in others' loaders. That they still load is what tests/runtime and e2e show."""

from __future__ import annotations

import json
import re

import pytest

from tools import loaders
from tools.build import MICROPYTHON, NODE_MODULES


def core() -> str:
    (path,) = (NODE_MODULES / "@pyscript/core/dist").glob("core-*.js")
    return path.read_text()


def package(core_text: str) -> dict[str, str]:
    """Return the sources of the pyscript package in PyScript's core, by name."""
    text = core_text[core_text.index(loaders.PACKAGE_MARK) + len(loaders.PACKAGE_MARK) :]
    found: dict[str, str] = json.JSONDecoder().raw_decode(text)[0]
    return found


def test_the_lean_package_imports_none_of_what_was_taken_out() -> None:
    lean = package(loaders.pyscript(core()))
    assert set(lean) == set(loaders.PACKAGE_MODULES)
    assert len(package(core())) > len(lean)
    asked_for = {name for source in lean.values() for name in loaders.IMPORT_FROM_PACKAGE.findall(source)}
    assert "context" in asked_for
    assert {f"{name}.py" for name in asked_for} <= set(lean)


def test_what_the_page_imports_from_pyscript_is_there() -> None:
    lean = package(loaders.pyscript(core()))
    assert {"document", "window"} <= set(re.split(r"[\s,]+", lean["__init__.py"]))
    assert {"def create_proxy(", "def to_js("} <= set(re.findall(r"def \w+\(", lean["ffi.py"]))


def test_a_loader_of_another_version_is_not_changed_by_halves() -> None:
    loader = (NODE_MODULES / MICROPYTHON / "micropython.mjs").read_text()
    assert "class extends Error{name=" not in loaders.micropython(loader)
    with pytest.raises(ValueError, match="once is needed"):
        loaders.micropython(loader.replace("ErrnoError:class", "ErrnoError: class"))


def test_changed_files_say_so() -> None:
    # As the Apache licence wants it.
    assert loaders.pyscript(core()).startswith("// Changed by")
