"""What the boot snapshot holds of `calc`: run in it before it is taken, so that the page need not do it again."""

import encodings.cp437  # noqa: F401 - zip files name their members in it
import gc
import importlib
import json
import linecache
import pkgutil
import shutil  # noqa: F401 - unpacks calc's data files, which the snapshot does not hold
import zipfile  # noqa: F401

from matplotlib import font_manager, mathtext

import calc
from calc import plots
from calc.evaluation import evaluate

for module in pkgutil.walk_packages(calc.__path__, "calc."):
    if module.name not in {"calc.__main__", "calc.worker"}:  # both act when they are imported
        importlib.import_module(module.name)

# Use fills what is read or made at the first call: catalogs, the code's own state, matplotlib's caches.
FIGURE_WIDTH = 640
for name in ("gpt2", "llama-3.1-8b", "resnet50"):
    json.dumps(evaluate({"model": name}))
for name in plots.FIGURES:
    plots.draw(name, {"model": "gpt2"}, FIGURE_WIDTH)

# Open files are the browser's, and do not survive: fonts are opened again when a figure asks for them.
font_manager._get_font.cache_clear()  # noqa: SLF001 - matplotlib offers no other way
mathtext.MathTextParser._parse_cached.cache_clear()  # noqa: SLF001
linecache.clearcache()
gc.collect()
gc.freeze()
