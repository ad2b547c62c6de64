"""Smaller drawings are the same drawings; the page that holds them keeps within its size."""

from __future__ import annotations

import gzip
import re
from xml.etree import ElementTree as ET

import pytest

from calc import plots
from page.defaults import SCENARIO
from tools.build import ROOT
from tools.lean import DECIMALS, lean, leaner

PAGE = ROOT / "_site/index.html"
# What a phone on a slow line waits for before anything is painted.
MOST_BYTES_SENT = 115_000
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def coordinates(svg: str) -> list[float]:
    tree = ET.fromstring(svg)  # noqa: S314 - our own
    drawn = [element.get("d", "") for element in tree.iter() if "fill: none" not in element.get("style", "")]
    return [float(number) for path in drawn for number in NUMBER.findall(path)]


@pytest.mark.parametrize("name", ["timeline", "memory", "tradeoff"])
def test_a_smaller_drawing_is_the_same(name: str) -> None:
    svg = plots.draw(name, SCENARIO, 640)["svg"]
    small = lean(svg)
    assert len(small) < 0.8 * len(svg)
    assert coordinates(small) == pytest.approx(coordinates(svg), abs=0.5001 * 10**-DECIMALS)
    assert re.findall("<text[^>]*>([^<]*)", small) == re.findall("<text[^>]*>([^<]*)", svg)
    ids = set(re.findall(' id="([^"]+)"', small))
    assert set(re.findall(r"#([\w.-]+)", re.sub(r"#[0-9a-f]{6}\b", "", small))) <= ids


def test_a_figure_that_is_not_there_stays_so() -> None:
    assert leaner({"text": "none"}) == {"text": "none"}


@pytest.mark.skipif(not PAGE.exists(), reason="`make build` makes the page")
def test_the_page_keeps_within_its_size() -> None:
    assert len(gzip.compress(PAGE.read_bytes(), 6)) < MOST_BYTES_SENT
