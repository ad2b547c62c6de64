"""The pages that are measured side by side, each a folder that any static host could serve.

ours
    The built site.
plain
    What one writes without thinking about speed: PyScript on the main thread, numpy and matplotlib in `packages`, the
    runtime as upstream publishes it. The same `calc` draws the same figures.
plain-repacked
    The same page from the files of the built site (byte code, trimmed), to tell what the page's design gains from what
    the repacking gains.
bare
    `loadPyodide()` and nothing else, the runtime as upstream publishes it.
html
    The built page with its scripts removed: what no Python could beat.
"""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

from tools.build import NODE_MODULES, ROOT
from tools.prerender import DRAWN
from tools.wheels import PACKAGES, Carrier, Wheel, fetch

if TYPE_CHECKING:
    from pathlib import Path

SITE = ROOT / "_site"
CACHE = ROOT / ".cache"
# What the plain page's package installer and matplotlib's own dependencies ask for besides.
UPSTREAM_PACKAGES = (*PACKAGES, "fonttools", "pytz", "micropip")

PROGRAM = """
import json
from js import document, performance
from calc import plots
from calc.evaluation import evaluate

scenario = {"model": "gpt2", "gpu": "rtx-4090-24gb"}
document.getElementById("answer").textContent = json.dumps(evaluate(scenario)["max_micro_batch"])
performance.mark("app:numbers")
for name in FIGURES:
    figure = document.createElement("figure")
    figure.innerHTML = plots.draw(name, scenario, 780)["svg"]
    document.body.append(figure)
    if name == FIGURES[0]:
        performance.mark("app:ready")
performance.mark("app:figures")
"""

PLAIN_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Plain PyScript</title>
<script type="module" src="./vendor/pyscript/core.js"></script>
<h1>Batch Size Optimizer</h1><p id="answer"></p>
<script type="py" src="./program.py" config="./pyscript.json"></script></html>
"""

BARE_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>loadPyodide()</title><p>Loading</p>
<script type="module">
  import { loadPyodide } from "./vendor/pyodide/pyodide.mjs";
  const pyodide = await loadPyodide();
  pyodide.runPython("1 + 1");
  performance.mark("app:numbers");
</script></html>
"""


def upstream_runtime(folder: Path) -> None:
    """Put Pyodide as upstream publishes it into a folder: the npm package, and the wheels for a plain page."""
    folder.mkdir(parents=True)
    for name in ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json"):
        shutil.copy(NODE_MODULES / "pyodide" / name, folder)
    lock = json.loads((folder / "pyodide-lock.json").read_text())
    for name in UPSTREAM_PACKAGES:
        package = lock["packages"][name]
        wheel = Wheel(package["file_name"], package["sha256"])
        kept = CACHE / "wheels" / wheel.file_name
        (folder / wheel.file_name).write_bytes(kept.read_bytes() if kept.exists() else fetch(wheel, [Carrier(CACHE)]))


def plain_page(folder: Path, *, cached_packages: str | None) -> None:
    """Put the plain page into a folder that already has a runtime."""
    shutil.copytree(
        NODE_MODULES / "@pyscript/core/dist", folder / "vendor/pyscript", ignore=shutil.ignore_patterns("*.map")
    )
    shutil.copy(SITE / "calc.zip", folder)
    config = {
        "interpreter": "./vendor/pyodide/pyodide.mjs",
        "packages": ["numpy", "matplotlib"],
        "files": {"./calc.zip": "./*"},
    }
    if cached_packages:
        config["packages_cache"] = cached_packages
    (folder / "pyscript.json").write_text(json.dumps(config))
    (folder / "program.py").write_text(PROGRAM.replace("FIGURES", repr(DRAWN)))
    (folder / "index.html").write_text(PLAIN_PAGE)


def build(folder: Path) -> dict[str, Path]:
    """Make every page below a folder.

    Returns
    -------
    dict[str, Path]
        The folder of each page, by its name.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SITE, folder / "ours")

    upstream_runtime(folder / "plain/vendor/pyodide")
    plain_page(folder / "plain", cached_packages=None)

    shutil.copytree(SITE / "vendor/pyodide", folder / "plain-repacked/vendor/pyodide")
    # The site's lock names no package installer, so Pyodide itself has to load the packages.
    plain_page(folder / "plain-repacked", cached_packages="passthrough")

    upstream_runtime(folder / "bare/vendor/pyodide")
    (folder / "bare/index.html").write_text(BARE_PAGE)

    shutil.copytree(SITE / "static", folder / "html/static")
    shutil.copytree(SITE / "vendor/pico", folder / "html/vendor/pico")
    page = (SITE / "index.html").read_text()
    (folder / "html/index.html").write_text(re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL))
    return {path.name: path for path in sorted(folder.iterdir())}
