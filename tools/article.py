"""Put the article together: the fragments of `article/`, their numbers filled in by the calculation itself.

A number in the text is an empty element that names a result and the scenario it belongs to, so that no text goes stale:

    <data data-calc="memory.peak_allocated_bytes" data-scenario="model=gpt2&amp;precision=fp32"></data>

`data-calc` is a path in the contract's result, where a list's entry may be named by its id; `data-scenario` a link text
of the page; without one the path is that of `calc.accuracy.table`. `data-per` divides by another path of the same
result, `data-as` names a way of writing, and `data-digits` the significant digits. A figure names one of the
calculation's figures in the same way:

    <figure data-draw="tradeoff" data-scenario="model=gpt2"></figure>
"""

from __future__ import annotations

import html
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calc import accuracy, plots
from calc.evaluation import evaluate
from page import link, sections
from page.format import count, duration, escape, fixed, gib, parameters, significant
from page.html import tag
from tools.lean import leaner, put_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = Path(__file__).resolve().parent.parent / "article"
NUMBER = re.compile(r"<data\b([^<>]*\bdata-calc=[^<>]*)></data>")
FIGURE = re.compile(r"<figure\b([^<>]*\bdata-draw=[^<>]*)></figure>")
# A width that no figure of the results has, since ids hold it; on a small screen the drawing scrolls by itself.
WIDTH = 755
SECTION = re.compile(r'<section id="([^"]+)"[^<>]*>\s*<h3[^<>]*>([^<]+)</h3>')
ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')

ABOUT = (
    "What the results above mean, in the same order. Numbers in bold and the figures are the calculation's, for the "
    "examples that the text names; they do not follow your scenario."
)

WAYS: dict[str, Callable[[Any], str]] = {
    "gib": gib,
    "gb": lambda size: f"{fixed(size, 10**9, 1)} GB",
    "seconds": duration,
    "parameters": parameters,
    "tenths": lambda number: fixed(round(number * 10), 10, 1),
    "dollars": lambda dollars: f"${significant(dollars)}",
    "percent": lambda share: f"{significant(share * 100, 2)} %",
    "million": lambda number: f"{significant(number / 1e6, 2)} million",
}


def fragments() -> Iterator[tuple[str, str]]:
    """Yield the article's fragments in their order: name and HTML."""
    for path in sorted(FOLDER.glob("*.html")):
        yield path.name, path.read_text()


def looked_up(result: Any, path: str) -> Any:
    """Return the value under a dotted path.

    Raises
    ------
    ValueError
        Where there is none.
    """
    value = result
    for part in path.split("."):
        if isinstance(value, (list, tuple)):
            value = next((entry for entry in value if entry.get("id") == part), None)
        else:
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            raise ValueError(f"no result {path}: nothing at {part}")
    return value


@lru_cache(maxsize=256)
def result_of(scenario: str | None) -> dict[str, Any]:
    """Return the result of a scenario, given as a link text; for None what was measured, beside the calculation."""
    return accuracy.table() if scenario is None else evaluate(link.nested(link.read(scenario)))


def written(path: str, value: Any) -> str:
    """Return a result as text, in the way that its unit asks for."""
    last = path.rpartition(".")[2]
    for ending in ("bytes", "seconds", "parameters", "dollars"):
        if last.endswith(ending):
            return WAYS["gib" if ending == "bytes" else ending](value)
    if isinstance(value, str):
        return value
    return count(value) if isinstance(value, int) else significant(value)


def number(attributes: str) -> str:
    """Fill one number in.

    Parameters
    ----------
    attributes : str
        The element's attributes, as they stand in the fragment.

    Raises
    ------
    ValueError
        Where the scenario has no such result.
    """
    given = {name: html.unescape(value) for name, value in ATTRIBUTE.findall(attributes)}
    path, result = given["data-calc"], result_of(given.get("data-scenario"))
    value = looked_up(result, path)
    if isinstance(value, list):
        value = len(value)
    if "data-per" in given:
        value /= looked_up(result, given["data-per"])
    if "data-as" in given:
        text = WAYS[given["data-as"]](value)
    elif "data-per" in given or "data-digits" in given:
        text = significant(value, int(given.get("data-digits", 3)))
    else:
        text = written(path, value)
    return f'<data value="{escape(value)}"{attributes}>{escape(text)}</data>'


def figure(attributes: str) -> str:
    """Draw a figure of a scenario.

    Raises
    ------
    ValueError
        Where the scenario has no such figure.
    """
    given = {name: html.unescape(value) for name, value in ATTRIBUTE.findall(attributes)}
    name, scenario = given["data-draw"], link.nested(link.read(given["data-scenario"]))
    example = leaner(plots.draw(name, scenario, WIDTH))
    if "title" in example:
        # The results have a table of the same figure: their names must differ.
        example["title"] += ", an example"
    drawn = sections.figure(f"article-{name}", example)
    if not drawn:
        raise ValueError(f"no figure {name} of {given['data-scenario']}")
    drawn = drawn.replace('<div class="drawing"', '<div class="drawing" tabindex="0"', 1)
    return f'<figure class="figure"{attributes}>{put_away(drawn)}</figure>'


def article() -> str:
    """Return the whole article as HTML, its numbers filled in.

    Raises
    ------
    ValueError
        Where a number or a figure cannot be filled in: the fragment and what is wrong.
    """
    parts, entries = [], []
    for name, fragment in fragments():
        try:
            filled = NUMBER.sub(lambda match: number(match.group(1)), fragment)
            parts.append(FIGURE.sub(lambda match: figure(match.group(1)), filled))
        except (ValueError, KeyError) as error:
            raise ValueError(f"article/{name}: {error}") from error
        entries += [tag("li", tag("a", title, href=f"#{place}")) for place, title in SECTION.findall(fragment)]
    contents = tag("nav", tag("ol", *entries), aria_label="Contents of the article")
    return "\n".join([tag("h2", "Batch size, explained"), tag("p", ABOUT), contents, *parts])
