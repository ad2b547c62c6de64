"""Put the choices, the default scenario's result and its figures into index.html: the page is useful before any Python.

The same functions draw them later in the page, so what is pre-built and what is live look alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc import cards as other_cards
from calc import collectives, plots, worker
from calc.calibration import SNIPPET
from calc.catalog import custom, published
from calc.catalog import gpus as gpu_catalog
from calc.catalog import models as model_catalog
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.outlook import DATASET_SAMPLES
from calc.scaling.layout import MAX_GPUS
from calc.scaling.published import comparison
from calc.scenario import (
    DEFAULT_AUDIO_FRAMES,
    DEFAULT_IMAGE,
    DEFAULT_LORA_RANK,
    DEFAULT_SEQUENCE,
    DEFAULT_TARGET,
    MAX_BATCH,
    MAX_IMAGE,
    MAX_SEQUENCE,
    NORM_KEYS,
    NORM_LIMITS,
    PLANNED,
    RUN_NUMBERS,
    parse,
    tasks_of,
)
from page import link, sections, sections_plan
from page.defaults import SCENARIO
from page.fields import slider_end
from page.format import GIB, escape, parameters
from page.html import tag
from page.words import CHOICES, FIELDS
from tools.article import article
from tools.lean import leaner, put_away

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

WIDE, NARROW = 780, 300
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
    "nodes": (1, MAX_GPUS, 1),
    **{f"parallelism.{way}": (1, MAX_GPUS, 1) for way in ("tensor", "pipeline", "context", "expert")},
    "lora_rank": (1, 65_536, DEFAULT_LORA_RANK),
    "global_batch": (1, MAX_BATCH, 64),
    "micro_batch": (1, MAX_BATCH, 1),
}
# Number fields that may stay empty.
OPTIONAL_NUMBERS = {**RUN_NUMBERS, **{f"gradient_norms.{key}": NORM_LIMITS for key in NORM_KEYS}}
# Figures drawn at build time: the default scenario's, on one GPU.
DRAWN = (*plots.FIGURES, "tradeoff", "quality")


@dataclass(frozen=True)
class Choice:
    """An entry of a search box; `inputs` are the input sizes that a model takes, `tasks` what it may be trained for."""

    id: str
    name: str
    group: str
    note: str
    inputs: str = ""
    tasks: str = ""


OWN_MODELS = (
    Choice("hand", "By parameter count \N{HORIZONTAL ELLIPSIS}", "", "your own", INPUTS[0]),
    Choice("config", "Paste a config.json \N{HORIZONTAL ELLIPSIS}", "", "your own", INPUTS[0]),
)
OWN_CARDS = (Choice("custom", "Another card \N{HORIZONTAL ELLIPSIS}", "", "your own"),)


def models() -> Iterator[Choice]:
    """Yield the models that the calculation can answer for."""
    for model in model_catalog.presets():
        try:
            tasks = tasks_of(parse({"model": model.id}).model)
        except ScenarioError:
            continue
        inputs = " ".join(name for name in INPUTS if getattr(model, name) is not None)
        # One task alone is no choice.
        choice = " ".join(tasks) if len(tasks) > 1 else ""
        yield Choice(model.id, model.name, model.group, parameters(model.parameters), inputs, choice)


def cards() -> Iterator[Choice]:
    """Yield the cards, then the machines that clouds and notebooks name, one card each."""
    for gpu in gpu_catalog.gpus():
        yield Choice(gpu.id, gpu.name, gpu.group, f"{gpu.memory_bytes / GIB:.3g} GiB")
    for machine in gpu_catalog.instances():
        card = gpu_catalog.gpu(machine.gpu).name
        note = card if machine.gpus == 1 else f"one of {machine.gpus} {card}"
        yield Choice(machine.id, machine.name, "Clouds and notebooks", note)


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
    added = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    pattern = re.compile(rf'(<\w+ id="{re.escape(identifier)}"[^<>]*)>')
    html, found = pattern.subn(lambda match: f"{match.group(1)}{added}>", html)
    if found != 1:
        raise ValueError(f'index.html: {found} elements with id="{identifier}"; one is needed')
    return html


def slid(html: str, key: str, end: int, value: int) -> str:
    """Let the slider of a field end and stand somewhere else."""
    pattern = re.compile(rf'(data-slider="{key}" [^<>]*?)max="\d+"([^<>]*?) value="\d+"')
    html, found = pattern.subn(rf'\1max="{end}"\2 value="{value}"', html)
    if found != 1:
        raise ValueError(f"index.html: {found} sliders of {key}; one is needed")
    return html


def options(key: str, chosen: object) -> str:
    """Return a select's options."""
    return "".join(
        tag("option", escape(label), value=value, title=meaning, selected=value == chosen)
        for value, (label, meaning) in CHOICES[key].items()
    )


def link_options(kind: str) -> str:
    """Return the options for a link within a node or for a network; adapters of a node count together."""
    own = tag("option", "As the card usually has", value="")
    networks = ("infiniband-hdr", "infiniband-ndr", "efa-400g") if kind == "network" else ()
    listed = [(found.id, found.name) for found in collectives.links().values() if found.kind == kind]
    several = [(f"{name}-x8", f"8 \N{MULTIPLICATION SIGN} {collectives.links()[name].name}") for name in networks]
    return own + "".join(tag("option", escape(name), value=value) for value, name in listed + several)


def objective_options() -> str:
    """Return the options of what is wanted of a plan; the first leaves it to the goal."""
    own = tag("option", "Automatic", value="", title="the fastest; within a deadline the cheapest")
    return own + options("objective", "")


def allowed() -> str:
    """Return the boxes of what the planner may choose, setting by setting."""
    groups = []
    for key in PLANNED:
        boxes = [
            tag(
                "label",
                tag("input", type="checkbox", form="scenario", data_allow=key, value=value),
                f" {escape(label)}",
                class_="switch",
                title=meaning,
            )
            for value, (label, meaning) in CHOICES[key].items()
        ]
        groups.append(
            tag(
                "fieldset",
                tag("legend", escape(FIELDS[key])),
                *boxes,
                tag("small", id=f"allow.{key}-message", class_="message"),
                data_field=f"allow.{key}",
            )
        )
    return "".join(groups)


def entry(kind: str, choice: Choice, *, selected: bool) -> str:
    """Return one entry of a search box."""
    return tag(
        "div",
        tag("span", escape(choice.name)),
        tag("small", escape(choice.note)),
        role="option",
        id=f"{kind}-{choice.id}",
        aria_selected=str(selected).lower(),
        data_value=choice.id,
        data_inputs=choice.inputs or None,
        data_tasks=choice.tasks or None,
    )


def entries(kind: str, choices: Iterable[Choice], own: Iterable[Choice]) -> str:
    """Return the entries of a search box in their groups, and what opens fields of one's own last."""
    groups: dict[str, list[str]] = {}
    for choice in choices:
        groups.setdefault(choice.group, []).append(entry(kind, choice, selected=choice.id == SCENARIO[kind]))
    listed = [
        tag(
            "div",
            tag("div", escape(group), class_="group-title", aria_hidden="true"),
            *items,
            role="group",
            aria_label=group,
        )
        for group, items in groups.items()
    ]
    owned = [entry(kind, choice, selected=False) for choice in own]
    nothing = tag("div", "Nothing by that name.", class_="nothing", role="presentation", hidden=True)
    return "".join([*listed, nothing, *owned])


def computed(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario's result with all that the page asks for after the numbers; nothing is compared with it."""
    given = dict(scenario)
    result = evaluate(given)
    result.update({key: worker.LATER[key](given) for key in sections.LATER if key != "comparison"})
    result["fits_on"] = [other_cards.fits_on(given, card) for card in other_cards.COMPARED]
    return result


def drawn(name: str, scenario: Mapping[str, Any] = SCENARIO) -> str:
    """Return a figure of a scenario, for wide screens and for small ones."""
    wide, narrow = (leaner(plots.draw(name, scenario, width)) for width in (WIDE, NARROW))
    return sections.figure(name, wide, narrow)


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
    result = computed(SCENARIO)
    filled = link.flattened(result["scenario"]) | {"micro_batch": result["micro_batch"]}
    for key in CHOICES:
        if f'name="{key}"' in html and key != "objective":
            html = fill(html, "name", key, options(key, filled.get(key)))
    html = fill(html, "name", "objective", objective_options())
    html = fill(html, "data-allowed", "all", allowed())
    for key, (low, high, default) in NUMBERS.items():
        value = filled.get(key)
        shown = default if value is None else value
        html = with_attributes(html, key, {"data-min": low, "data-max": high, "value": f"{shown:,}"})
    for key, (least, most) in OPTIONAL_NUMBERS.items():
        html = with_attributes(html, key, {"data-min": least, "data-max": most})
    for kind in ("node", "network"):
        html = fill(html, "name", f"interconnect.{kind}", link_options(kind))
    html = fill(html, "id", "datasets", "".join(tag("option", value=name) for name in DATASET_SAMPLES))
    html = fill(html, "data-published", "critical-batches", sections_plan.tasks(published.critical_batches()))
    html = fill(html, "data-published", "utilizations", sections_plan.utilizations(published.training_speeds()))
    html = fill(html, "data-published", "scaling", put_away(sections_plan.scaling_rows(comparison())))
    for key, catalog, choices, own in (("model", "models", models(), OWN_MODELS), ("gpu", "gpus", cards(), OWN_CARDS)):
        html = fill(html, "data-catalog", catalog, entries(key, choices, own))
        html = with_attributes(html, key, {"data-value": SCENARIO[key], "value": result[key]["name"]})
    html = slid(
        html, "micro_batch", slider_end(result["max_micro_batch"], result["micro_batch"]), result["micro_batch"]
    )
    for name, section in sections.SECTIONS.items():
        text = section(result)
        html = fill(html, "data-section", name, text)
        html = html.replace(f'data-section="{name}"', f'data-section="{name}" data-digest="{sections.digest(text)}"')
    for name in DRAWN:
        html = fill(html, "data-figure", name, put_away(drawn(name)))
    html = fill(html, "data-built", "accuracy", put_away(drawn("accuracy")))
    html = fill(html, "id", "snippet-text", escape(SNIPPET))
    html = fill(html, "id", "article", article())
    html = re.sub(r"(<figure [^<>]*)(></figure>)", r"\1 hidden\2", html)
    return re.sub(
        r'(<section [^<>]*data-shows="(\w+)")',
        lambda match: match.group(1) + ("" if sections.SECTIONS[match.group(2)](result) else " hidden"),
        html,
    )
