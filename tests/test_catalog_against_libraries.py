"""Counts and defaults against the installed libraries themselves; skipped where they are not installed.

``pip install torch torchvision transformers diffusers`` to run it (models are built without weights).
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

for library in ("torch", "torchvision", "transformers", "diffusers"):
    pytest.importorskip(library)

TOOLS = Path(__file__).resolve().parent.parent / "tools"
MODELS = json.loads((TOOLS.parent / "calc" / "catalog" / "models.json").read_text(encoding="utf-8"))["models"]


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry["id"])
def test_parameters_are_those_of_the_librarys_own_model(entry: dict[str, object]) -> None:
    assert _tool("check_models").count(entry) == entry["parameters"]
