"""What the boot snapshot holds besides `calc`: run in it before it is taken, so that the page need not do it again."""

import gc
import io
import linecache
import random
import warnings

with warnings.catch_warnings():
    # Says at every import that the 3D axes, which the page does not ship, are not there.
    warnings.filterwarnings("ignore", "Unable to import Axes3D")
    from matplotlib.figure import Figure

import matplotlib.ticker
import numpy as np
from matplotlib import font_manager, mathtext

# A figure with what figures have fills the caches and the code's own state. Without a salt its ids would be by chance.
matplotlib.rcParams["svg.hashsalt"] = "warm-up"
figure = Figure(figsize=(6, 4), layout="constrained")
axes = figure.subplots()
axes.plot(np.arange(10), np.arange(10) ** 2, label="line")
axes.fill_between(np.arange(10), np.arange(10), label="area")
axes.barh(["a", "b"], [1, 2])
axes.set_title("title")
axes.legend()
figure.savefig(io.BytesIO(), format="svg")
matplotlib.rcdefaults()
del figure, axes

# Open files are the browser's, and do not survive: fonts are opened again when a figure asks for them.
font_manager._get_font.cache_clear()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way
mathtext.MathTextParser._parse_cached.cache_clear()  # type: ignore[attr-defined]  # noqa: SLF001
# Seeded anew when the page starts; here the same every time.
random.seed(0)
linecache.clearcache()
gc.collect()
# What is here stays: the collector need not look at it again, nor write to it.
gc.freeze()
