"""The article: its numbers are the calculation's, its links lead somewhere, its markup is whole."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from calc.accuracy import table
from calc.evaluation import evaluate
from page import link
from tools import article

ROOT = Path(__file__).resolve().parent.parent
VOID = {"br", "img", "mspace"}
FRAGMENTS = dict(article.fragments())
GPT2 = ' data-scenario="model=gpt2"'
SCENARIO = re.compile(r'data-scenario="([^"]*)"')


class Checked(HTMLParser):
    """Reads HTML and complains about tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[dict[str, str | None]] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag == "a":
            self.links.append(given)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID or "svg" in self.open

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"


def checked(html: str) -> Checked:
    found = Checked()
    found.feed(html)
    found.close()
    assert not found.open
    return found


@pytest.fixture(scope="module")
def whole() -> str:
    return article.article()


@pytest.mark.parametrize("name", FRAGMENTS)
def test_each_fragment_is_one_whole_section(name: str) -> None:
    found = checked(FRAGMENTS[name])
    assert found.headings[0] == "h3"
    assert set(found.headings) <= {"h3", "h4"}


def test_every_number_is_filled_in(whole: str) -> None:
    assert not article.NUMBER.search(whole)
    assert not article.FIGURE.search(whole)
    assert whole.count("<svg") == whole.count("data-draw=") > 0
    assert whole.count("data-calc=") == sum(fragment.count("data-calc=") for fragment in FRAGMENTS.values())
    assert not re.search(r">(None|nan|inf)<", whole)


def test_numbers_are_those_of_the_calculation(whole: str) -> None:
    largest = evaluate({"model": "gpt2", "gpu": "rtx-4090-24gb"})["max_micro_batch"]
    first = re.search(r'<data value="(\d+)" data-calc="max_micro_batch"[^>]*>(\d+)</data>', whole)
    assert first is not None
    assert first.groups() == (str(largest), str(largest))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (' data-calc="parameters" data-scenario="model=gpt2"', "124M"),
        (' data-calc="parameters" data-as="million" data-scenario="model=gpt2"', "124 million"),
        (
            ' data-calc="memory.components.weights.bytes" data-per="parameters" data-as="tenths"' + GPT2,
            "4.0",
        ),
        (' data-calc="memory.components.weights.bytes" data-as="gb" data-scenario="model=gpt2"', "0.5 GB"),
    ],
)
def test_ways_of_writing(attributes: str, expected: str) -> None:
    assert article.number(attributes).endswith(f">{expected}</data>")


@pytest.mark.parametrize("path", ["memory.nothing", "memory.components.nothing.bytes", "plan.exact.micro_batch"])
def test_a_number_that_does_not_exist_stops_the_build(path: str) -> None:
    with pytest.raises(ValueError, match="no result"):
        article.number(f' data-calc="{path}" data-scenario="model=gpt2"')


def test_a_figure_that_does_not_exist_stops_the_build() -> None:
    with pytest.raises(ValueError, match="no figure"):
        article.figure(' data-draw="strategies" data-scenario="model=gpt2"')


def test_what_was_measured_is_told_as_it_is(whole: str) -> None:
    summary = table()["summary"]["peak_allocated_bytes"]
    assert f'value="{summary["steps"]}" data-calc="summary.peak_allocated_bytes.steps"' in whole
    assert f'value="{summary["largest"]}" data-calc="summary.peak_allocated_bytes.largest"' in whole


def test_scenarios_are_links_that_the_page_understands() -> None:
    for fragment in FRAGMENTS.values():
        for text in SCENARIO.findall(fragment):
            for key in link.read(text.replace("&amp;", "&")):
                assert key.partition(".")[0] in link.KEYS, key


def test_links_lead_somewhere(whole: str) -> None:
    page = checked_page()
    ids = set(checked(whole).ids) | page
    for given in checked(whole).links:
        address = given["href"]
        assert address is not None
        if address.startswith("#"):
            assert address[1:] in ids, address
        else:
            assert address.startswith("https://"), address
            assert given.get("rel") == "noreferrer", address


def checked_page() -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', (ROOT / "index.html").read_text()))


def test_each_section_is_listed_and_has_an_id_of_its_own(whole: str) -> None:
    found = checked(whole)
    assert len(found.ids) == len(set(found.ids))
    assert not set(found.ids) & checked_page()
    assert len(article.SECTION.findall(whole)) == len(FRAGMENTS)


def test_papers_are_named_by_their_lasting_addresses() -> None:
    for fragment in FRAGMENTS.values():
        assert not re.search(r"arxiv\.org/(?!abs/\d{4}\.\d{4,5}\")", fragment)
