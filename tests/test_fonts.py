"""The cut font has every sign that figures write: one that it lacks would be measured as the empty box."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from fontTools.ttLib import TTFont  # type: ignore[import-untyped]

from calc import plots
from calc.accuracy_plots import ACCURACY_FIGURES
from calc.catalog.gpus import gpus
from calc.catalog.models import presets
from calc.plan_plots import PLAN_FIGURES
from tools.fonts import KEPT
from tools.repack import FONTS

TRAINED = {"model": "gpt2", "gpu": "rtx-4090-24gb"}
PLANNED = {"model": "llama-3.2-1b", "gpu": "h100-sxm-80gb", "gpus": 8, "global_batch": 256, "tokens": 2e10}
IMAGES = {"model": "resnet50", "gpu": "rtx-3060-12gb", "dataset": "imagenet", "epochs": 90, "global_batch": 256}
FIGURES = [
    *((name, given) for name in (*plots.FIGURES, *PLAN_FIGURES) if name != "comparison" for given in (PLANNED, IMAGES)),
    *((name, TRAINED) for name in ACCURACY_FIGURES),
    ("comparison", {"scenarios": [TRAINED, IMAGES]}),
]


@pytest.fixture(scope="module")
def drawable() -> set[str]:
    """The signs that are kept and that the font has in the first place."""
    signs = set(KEPT)
    for name in FONTS:
        with TTFont(Path(mpl.get_data_path()) / "fonts/ttf" / name) as font:
            signs &= set(font.getBestCmap())
    return {chr(code) for code in signs}


@pytest.mark.parametrize("kind", ["model", "card"])
def test_every_name_can_be_drawn(drawable: set[str], kind: str) -> None:
    names = [entry.name for entry in (presets() if kind == "model" else gpus())]
    assert len(names) > 30
    assert {name: lacking for name in names if (lacking := set(name) - drawable)} == {}


@pytest.mark.parametrize(("name", "given"), FIGURES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_sign_of_a_figure_can_be_drawn(drawable: set[str], name: str, given: dict[str, Any]) -> None:
    svg = plots.draw(name, given, 640).get("svg", "")
    texts = [unescape(re.sub(r"<[^>]*>", "", text)) for text in re.findall(r"<text\b.*?</text>", svg, re.DOTALL)]
    assert set("".join(texts)) - {"\n"} <= drawable
    # A figure that says nothing is not drawn at all.
    assert bool(texts) == bool(svg)


def test_a_sign_that_no_font_has_is_seen(drawable: set[str]) -> None:
    assert not {"\u6279", "\U0001f600"} & drawable
