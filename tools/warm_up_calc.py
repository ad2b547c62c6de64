"""What the boot snapshot holds of `calc`: run in it before it is taken, so that the page need not do it again."""

import functools
import gc
import importlib
import json
import linecache
import pkgutil
import typing
from pathlib import Path

from matplotlib import font_manager, mathtext

import calc
from calc import plots
from calc.catalog import configs, gpus, models
from calc.evaluation import evaluate
from page import sections

# The scenario that the page shows first (page/defaults.py), and some that run other code.
FIRST = {"model": "gpt2", "gpu": "rtx-4090-24gb"}
OTHERS = ("llama-3.1-8b", "resnet50")
FIGURE_WIDTH = 640

for module in pkgutil.walk_packages(calc.__path__, "calc."):
    if module.name != "calc.__main__":  # acts when it is imported
        importlib.import_module(module.name)


def forget_scenarios() -> None:
    """Empty the caches of what was computed; the catalogs stay."""
    for found in gc.get_objects():
        if isinstance(found, functools._lru_cache_wrapper):  # noqa: SLF001 - the type has no other name
            module = found.__module__ or ""
            if module.startswith("calc.") and not module.startswith("calc.catalog"):
                found.cache_clear()


# Use fills what is made or read at the first call: catalogs, the code's own state, matplotlib's caches.
for name in OTHERS:
    json.dumps(evaluate({"model": name}))
forget_scenarios()
result = evaluate(FIRST)
json.dumps([sections.brief(result), [section(result) for section in sections.SECTIONS.values()]])
del result
for name in plots.FIGURES:
    plots.draw(name, FIRST, FIGURE_WIDTH)

# What is read once and stays in memory need not be a file in the snapshot besides.
for read, name in (
    (models._by_id, "models"),  # noqa: SLF001 - what holds the cache
    (gpus._data, "gpus"),  # noqa: SLF001
    (configs._data, "config_defaults"),  # noqa: SLF001
):
    read()
    (Path(gpus.__file__).parent / f"{name}.json").unlink()

# Open files are the browser's, and do not survive: fonts are opened again when a figure asks for them.
font_manager._get_font.cache_clear()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way
mathtext.MathTextParser._parse_cached.cache_clear()  # type: ignore[attr-defined]  # noqa: SLF001
linecache.clearcache()
# What annotations were made of: nothing asks for them again.
for forget in typing._cleanups:  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way
    forget()
gc.collect()
gc.freeze()
