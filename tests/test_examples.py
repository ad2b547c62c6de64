"""What an embedded page shows of an example before it is touched is what the calculation says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from calc.evaluation import evaluate
from page import link, sections
from tools.build import offline_files
from tools.examples import FIGURES, example, links

PAGE = (Path(__file__).resolve().parent.parent / "index.html").read_text()


def test_the_page_has_examples() -> None:
    assert len(links(PAGE)) >= 6
    with pytest.raises(ValueError, match="no list"):
        links("<p></p>")


def test_an_example_is_what_the_calculation_says() -> None:
    text = links(PAGE)[0]
    result = evaluate(link.nested(link.read(text)))
    shown = json.loads(example(text))
    assert shown["names"] == ["GPT-2 (124M)", "RTX 4090 24 GB"]
    digest, answer = shown["sections"]["answer"]
    assert digest == sections.digest(answer)
    said = dict(re.findall(r'data-result="([\w.]+)" data-value="([^"]*)"', answer))
    assert said["max_micro_batch"] == str(result["max_micro_batch"])
    assert shown["sections"].keys() == sections.SECTIONS.keys()
    assert shown["figures"].keys() == set(FIGURES)
    assert "<svg" in shown["figures"]["memory"]
    # On one card nothing is to be said of several.
    assert shown["figures"]["speed-up"] == ""


def test_nobody_stores_examples_for_offline_use() -> None:
    assert [file["url"] for file in offline_files({"examples/0.json": b"{}", "index.html": b""})] == ["index.html"]
