"""Put the choices, the default scenario's result and its figures into index.html: the page is useful before any Python.

The same functions draw them later in the page, so what is pre-built and what is live look alike.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from calc import plots
from calc.catalog import custom
from calc.catalog import gpus as gpu_catalog
from calc.catalog import models as model_catalog
from calc.evaluation import evaluate
from calc.scenario import (
    DEFAULT_AUDIO_FRAMES,
    DEFAULT_IMAGE,
    DEFAULT_LORA_RANK,
    DEFAULT_SEQUENCE,
    DEFAULT_TARGET,
    MAX_BATCH,
    MAX_GPUS,
    MAX_IMAGE,
    MAX_SEQUENCE,
)
from page import link, sections
from page.defaults import SCENARIO
from page.format import GIB, parameters
from page.words import CHOICES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FIGURE_WIDTH = 780
INPUTS = ("sequence_length", "target_length", "image_size", "audio_frames")
# Each number field's limits, as the calculation has them, and what it starts with where the default scenario has none.
NUMBERS = {
    "sequence_length": (1, MAX_SEQUENCE, DEFAULT_SEQUENCE),
    "target_length": (1, MAX_SEQUENCE, DEFAULT_TARGET),
    "image_size": (1, MAX_IMAGE, DEFAULT_IMAGE),
    "audio_frames": (1, MAX_SEQUENCE, DEFAULT_AUDIO_FRAMES),
    "model.parameters": (custom.MIN_COUNT_ALONE, custom.MAX_PARAMETERS, 7_000_000_000),
    "gpu.memory_gib": (0.01, 100_000, 24),
    "gpu.overhead_gib": (0, 100_000, 0.5),
    "gpus": (1, MAX_GPUS, 1),
    "lora_rank": (1, 65_536, DEFAULT_LORA_RANK),
    "global_batch": (1, MAX_BATCH, 64),
    "micro_batch": (1, MAX_BATCH, 1),
}


def models() -> Iterable[tuple[str, str, str, str, str]]:
    """Yield the search box's models: id, name, group, size, and the inputs that each takes."""
    for model in model_catalog.presets():
        inputs = " ".join(name for name in INPUTS if getattr(model, name) is not None)
        yield model.id, model.name, model.group, parameters(model.parameters), inputs


def cards() -> Iterable[tuple[str, str, str, str, str]]:
    """Yield the search box's cards: id, name, group, memory, no inputs."""
    for gpu in gpu_catalog.gpus():
        yield gpu.id, gpu.name, gpu.group, f"{gpu.memory_bytes / GIB:.3g} GiB", ""


def fill(html: str, attribute: str, value: str, content: str) -> str:
    """Put content into the one empty element that has this attribute.

    Raises
    ------
    ValueError
        Where the page has no such element, or more than one.
    """
    pattern = re.compile(rf'(<(\w+)\b[^<>]*\b{attribute}="{re.escape(value)}"[^<>]*>)(</\2>)')
    html, found = pattern.subn(lambda match: match.group(1) + content + match.group(3), html)
    if found != 1:
        raise ValueError(f'index.html: {found} empty elements with {attribute}="{value}"; one is needed')
    return html


def with_attributes(html: str, identifier: str, attributes: Mapping[str, object]) -> str:
    """Add attributes to the one element with this id."""
    added = "".join(f' {name}="{escape(str(value))}"' for name, value in attributes.items())
    pattern = re.compile(rf'(<\w+ id="{re.escape(identifier)}"[^<>]*)>')
    html, found = pattern.subn(lambda match: f"{match.group(1)}{added}>", html)
    if found != 1:
        raise ValueError(f'index.html: {found} elements with id="{identifier}"; one is needed')
    return html


def options(key: str, chosen: object) -> str:
    """Return a select's options."""
    return "".join(
        f'<option value="{escape(value)}" title="{escape(meaning)}"{" selected" if value == chosen else ""}>{escape(label)}</option>'
        for value, (label, meaning) in CHOICES[key].items()
    )


def entries(kind: str, rows: Iterable[tuple[str, str, str, str, str]], chosen: str, own: Mapping[str, str]) -> str:
    """Return the entries of a search box: each an id, a name, a group, a note, the inputs it takes; one's own last."""
    groups: dict[str, list[str]] = {}

    def entry(identifier: str, name: str, group: str, note: str, inputs: str) -> str:
        return (
            f'<li role="option" id="{kind}-{escape(identifier)}" aria-selected="{str(identifier == chosen).lower()}" '
            f'data-value="{escape(identifier)}" data-label="{escape(name)}" data-inputs="{escape(inputs)}" '
            f'data-search="{escape(f"{name} {identifier} {group} {note}".lower())}"><span>{escape(name)}</span><small>{escape(note)}</small></li>'
        )

    for identifier, name, group, note, inputs in rows:
        groups.setdefault(group, []).append(entry(identifier, name, group, note, inputs))
    listed = "".join(
        f'<li role="group" aria-label="{escape(group)}"><div class="group-title" aria-hidden="true">{escape(group)}</div>'
        f'<ul role="presentation">{"".join(items)}</ul></li>'
        for group, items in groups.items()
    )
    owned = "".join(entry(identifier, name, "", "your own", INPUTS[0]) for identifier, name in own.items())
    return f'{listed}{owned}<li class="nothing" role="presentation" hidden>Nothing by that name.</li>'


def prerender(html: str) -> str:
    """Fill index.html.

    Parameters
    ----------
    html : str
        The page as it lies in the repository.

    Returns
    -------
    str
        The page with every choice, and with the default scenario's result and figures.
    """
    result = evaluate(SCENARIO)
    filled = link.flattened(result["scenario"])
    for key in CHOICES:
        if f'name="{key}"' in html:
            html = fill(html, "name", key, options(key, filled.get(key)))
    for key, (low, high, default) in NUMBERS.items():
        value = filled.get(key)
        shown = default if value is None else value
        html = with_attributes(html, key, {"data-min": low, "data-max": high, "value": f"{shown:,}"})
    for key, catalog, rows, own in (
        ("model", "models", models(), {"hand": "By parameter count \N{HORIZONTAL ELLIPSIS}", "config": "Paste a config.json \N{HORIZONTAL ELLIPSIS}"}),
        ("gpu", "gpus", cards(), {"custom": "Another card \N{HORIZONTAL ELLIPSIS}"}),
    ):
        html = fill(html, "data-catalog", catalog, entries(key, rows, SCENARIO[key], own))
        html = with_attributes(html, key, {"data-value": SCENARIO[key], "value": result[key]["name"]})
    for name, section in sections.SECTIONS.items():
        html = fill(html, "data-section", name, section(result))
    for name in plots.FIGURES:
        html = fill(html, "data-figure", name, sections.figure(name, plots.draw(name, SCENARIO, FIGURE_WIDTH)))
    return re.sub(
        r'(<section [^<>]*data-shows="(\w+)")',
        lambda match: match.group(1) + ("" if result.get(match.group(2)) else " hidden"),
        html,
    )
