"""The embedded page and the texts that put it into other pages."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from page import embedding, link
from tools.embed import STARTS, embedded

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = "https://example.org/app/"
SCENARIO = "gpu=rtx-4090-24gb&gpus=2&model=llama-3.1-8b&optimizer=sgd"
BUILT = re.sub(r'(<article id="article">)(</article>)', r"\1 x \2", (ROOT / "index.html").read_text())


def test_asleep_it_holds_nothing_of_the_runtime_but_in_its_template() -> None:
    page = embedded(BUILT)
    asleep = re.sub(r'<template id="runtime">.*?</template>', "", page, flags=re.DOTALL)
    for part in STARTS:
        assert part in page
        assert part not in asleep
    assert "offline.mjs" not in page
    assert not re.search(r'\b(src|href)="[^"]*vendor/(pyscript|micropython|pyodide)', asleep)


def test_a_page_without_those_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="once is needed"):
        embedded(BUILT.replace(STARTS[-1], ""))


@pytest.mark.parametrize("kind", [kind for kind, _, _ in embedding.SNIPPETS])
def test_each_snippet_holds_the_whole_scenario(kind: str) -> None:
    text = html.unescape(embedding.snippet(kind, ADDRESS, SCENARIO, view="memory", theme="dark"))
    assert "{" not in text.replace("{raw}", "").replace("{iframe}", "").replace("{/*", "").replace("[{ src", "")
    assert ADDRESS in text
    found = re.search(r"embed\.html#(\S+?)[\"\n]", text)
    if found:
        flat = link.read(found.group(1))
    else:
        flat = dict(re.findall(r'\b(model|gpu|view|theme)="([^"]*)"', text))
        scenario = re.search(r'scenario="([^"]*)"', text)
        assert scenario is not None
        flat |= link.read(scenario.group(1))
    assert flat == link.read(SCENARIO) | {"view": "memory", "theme": "dark"}


def test_a_scenario_cannot_break_out_of_the_snippet() -> None:
    text = embedding.snippet("html", ADDRESS, 'model="><script>alert(1)</script>')
    assert "<script>" not in text
    assert text.count("<script") == 1


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        embedding.snippet("nowhere", ADDRESS, "")


@pytest.mark.parametrize("kind", [kind for kind, _, _ in embedding.SNIPPETS])
def test_the_documentation_holds_the_same_texts(kind: str) -> None:
    text = embedding.snippet(kind, ADDRESS, "gpu=rtx-4090-24gb&model=llama-3.1-8b", view="memory")
    assert f"\n{text}\n" in (ROOT / "docs/embedding.md").read_text()
