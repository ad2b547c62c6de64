"""The recipes of docs/contributing.md, followed word for word in a copy of the project."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECIPES = (ROOT / "docs/contributing.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(heading: str) -> list[str]:
    """Return the code of a recipe, block by block."""
    text = RECIPES.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [code for _, code in BLOCK.findall(text)]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Give a copy of what the recipes change."""
    for name in ("article", "calc", "page", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "index.html", tmp_path)
    return tmp_path


def python(copy: Path, *arguments: str, given: str = "") -> str:
    """Run Python in the copy, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def evaluated(copy: Path, scenario: dict[str, Any]) -> dict[str, Any]:
    """Ask the copy's command line."""
    result: dict[str, Any] = json.loads(python(copy, "-m", "calc", "evaluate", given=json.dumps(scenario) + "\n"))
    return result


def with_entry(path: Path, key: str, entry: dict[str, Any]) -> None:
    """Put an entry into a list of a data file."""
    data = json.loads(path.read_text())
    assert set(entry) >= set(data[key][0]) - {"note"}
    data[key].append(entry)
    path.write_text(json.dumps(data))


def inserted(path: Path, before: str, line: str) -> None:
    """Put a line behind the first place where `before` ends a line."""
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, before + line, 1))


def test_add_a_gpu(copy: Path) -> None:
    (code,) = blocks("Add a GPU")
    entry = json.loads(code)
    path = copy / "calc/catalog/gpus.json"
    assert set(entry["sources"].values()) <= set(json.loads(path.read_text())["sources"])
    with_entry(path, "gpus", entry)
    result = evaluated(copy, {"model": "gpt2", "gpu": entry["id"]})
    assert result["gpu"]["name"] == entry["name"]
    assert result["gpu"]["usable_bytes"] == entry["visible_mib"] * 2**20 - entry["context_bytes"]
    assert 0 < result["max_micro_batch"] < evaluated(copy, {"model": "gpt2", "gpu": "rtx-4090-24gb"})["max_micro_batch"]


def test_add_a_model(copy: Path) -> None:
    (code,) = blocks("Add a model")
    entry = json.loads(code)
    with_entry(copy / "calc/catalog/models.json", "models", entry)
    result = evaluated(copy, {"model": entry["id"]})
    assert result["model"]["name"] == entry["name"]
    assert result["parameters"] == entry["parameters"]
    assert result["max_micro_batch"] > 0


def test_add_an_architecture(copy: Path) -> None:
    module, line, defaults = blocks("Add an architecture")
    (copy / "calc/architectures/example_lm.py").write_text(module)
    registry = copy / "calc/architectures/registry.py"
    inserted(registry, "from calc.architectures import ", "example_lm, ")
    inserted(registry, "ARCHITECTURES: dict[str, Architecture] = {\n", line)
    path = copy / "calc/catalog/config_defaults.json"
    known = json.loads(path.read_text())
    known["model_types"]["example_lm"] = json.loads(defaults)
    path.write_text(json.dumps(known))
    config = json.loads(blocks("Add a model")[0])["config"]
    plain = evaluated(copy, {"model": config})
    normalized = evaluated(copy, {"model": config | {"model_type": "example_lm"}})
    # A weight for each element of a head, for queries and for keys, in each of 12 layers.
    assert normalized["parameters"] - plain["parameters"] == 12 * 2 * 64
    assert not normalized["model"]["notes"]
    assert normalized["max_micro_batch"] < plain["max_micro_batch"]


def test_add_a_figure(copy: Path) -> None:
    function, line, place = blocks("Add a figure")
    plots = copy / "calc/plots.py"
    text = plots.read_text().replace(
        "@dataclass(frozen=True, slots=True)\nclass Kind",
        f"{function}\n\n@dataclass(frozen=True, slots=True)\nclass Kind",
    )
    assert function in text
    plots.write_text(text)
    inserted(plots, "FIGURES: Final = {\n", line)
    inserted(copy / "index.html", '<div data-section="facts"></div>\n', place)
    program = "import sys; from tools.prerender import prerender; print(prerender(sys.stdin.read()))"
    page = python(copy, "-c", program, given=(copy / "index.html").read_text())
    figure = page.partition('data-figure="example"')[2].partition("</figure>")[0]
    assert "The largest peak is in backward." in figure
    assert "<svg" in figure
    assert "<table" in figure
