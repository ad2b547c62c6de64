"""The results of the page's examples, computed when the site is built: what an embedded page that sleeps shows of them.

Each link of the list "Start from an example" has a file, `examples/<its place>.json`; static/embedded.js fetches it
where that scenario is asked for, and no page does otherwise.
"""

from __future__ import annotations

import json
import re
from html import unescape

from calc import plots
from page import link, sections
from tools.prerender import computed, drawn

FOLDER = "examples/"
FIGURES = (*plots.FIGURES, "tradeoff", "quality", "speed-up", "strategies")
_LIST = re.compile(r'<details class="group examples">.*?</details>', re.DOTALL)
_LINK = re.compile(r'href="#([^"]+)"')


def links(html: str) -> list[str]:
    """Return the examples of index.html: what stands behind the # of their links.

    Raises
    ------
    ValueError
        Where the page has no list of them.
    """
    found = _LIST.search(html)
    if found is None:
        raise ValueError("index.html: there is no list of examples")
    return [unescape(text) for text in _LINK.findall(found[0])]


def example(text: str) -> bytes:
    """Return what the page shows of the scenario that a link holds: who trains on what, HTML by mount and by figure."""
    scenario = link.nested(link.read(text))
    result = computed(scenario)
    html = {name: section(result) for name, section in sections.SECTIONS.items()}
    shown = {
        "names": [result["model"]["name"], result["gpu"]["name"]],
        "sections": {name: [sections.digest(text), text] for name, text in html.items()},
        "figures": {name: drawn(name, scenario) for name in FIGURES},
    }
    return json.dumps(shown).encode()


def examples(html: str) -> dict[str, bytes]:
    """Return the files of all examples of index.html."""
    return {f"{FOLDER}{place}.json": example(text) for place, text in enumerate(links(html))}
