"""Models by name: published configurations with exact parameter counts.

``models.json`` holds the facts. Counts come from the libraries' own models (``tools/check_models.py``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from calc.catalog.finding import closest, matching
from calc.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Preset:
    """A published model.

    Attributes
    ----------
    id : str
        What a scenario's ``model`` names; torchvision's models have torchvision's own names.
    name : str
        For people.
    group : str
        The family under which lists show it.
    library : str
        Whose implementation is meant: ``transformers``, ``torchvision`` or ``diffusers``.
    task : str
        What it is trained for, as in a scenario's ``task``.
    config : Mapping
        Keys of its published configuration; the library's defaults apply to others. Empty for torchvision.
    parameters : int
        Exact count, shared parameters once.
    source : str
        Where the configuration was published.
    sequence_length, target_length, image_size, audio_frames : int or None
        Usual training input, where the model has it. ``audio_frames`` are feature frames for Whisper (100 a second),
        samples for wav2vec 2 (16 000 a second).
    note : str
        What a reader should know about the count; may be empty.
    """

    id: str
    name: str
    group: str
    library: str
    task: str
    config: Mapping[str, Any]
    parameters: int
    source: str
    sequence_length: int | None = None
    target_length: int | None = None
    image_size: int | None = None
    audio_frames: int | None = None
    note: str = ""


@cache
def _by_id() -> dict[str, Preset]:
    text = resources.files("calc.catalog").joinpath("models.json").read_text(encoding="utf-8")
    entries = []
    for entry in json.loads(text)["models"]:
        inputs = entry.pop("inputs")
        config = MappingProxyType(entry.pop("config"))
        entries.append(Preset(config=config, **entry, **inputs))
    return {entry.id: entry for entry in entries}


def presets() -> tuple[Preset, ...]:
    """Return all presets, grouped by family."""
    return tuple(_by_id().values())


def preset(model_id: str) -> Preset:
    """Return the preset with this id.

    Raises
    ------
    ScenarioError
        Field ``model``, with the nearest ids, where there is none.
    """
    found = _by_id().get(model_id)
    if found is None:
        raise ScenarioError(
            "model",
            f"there is no preset {model_id!r}{closest(model_id, _by_id())} Give a preset's id, the content of a "
            "Hugging Face config.json, or an object with parameters, layers and hidden_size",
        )
    return found


def search(text: str) -> tuple[Preset, ...]:
    """Return the presets that hold every word of ``text`` in id, name, family or source; the best first."""
    return matching(text, presets(), lambda entry: f"{entry.id} {entry.name} {entry.group} {entry.source}")
