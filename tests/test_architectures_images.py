"""Image models and denoisers against torch's own autograd on tensors without memory.

The figures in ``data/architectures_images.json`` are torch's: every storage of one training step counted, rounded as
the allocator rounds it, kernels' own workspaces left out.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from calc.architectures.model import Shape
from calc.architectures.registry import ARCHITECTURES, architecture
from calc.catalog.configs import complete_config
from calc.replay.layers import Build
from calc.replay.profile import Profile, rounded
from calc.replay.tape import Autocast, Dtype, Phase, Tape

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
CASES = json.loads((HERE / "data" / "architectures_images.json").read_text(encoding="utf-8"))["cases"]
PRESETS = json.loads((HERE.parent / "calc" / "catalog" / "models.json").read_text(encoding="utf-8"))["models"]
IMAGE_TASKS = ("image-classification", "image-text-contrastive", "segmentation", "diffusion")
BOUND = 0.01


def key_and_config(library: str, name: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The registry's key, and the configuration that its architecture reads."""
    if library == "torchvision":
        return name, {"name": name, **config}
    completed = complete_config(config)
    return completed["model_type"], completed


def title(case: Mapping[str, Any]) -> str:
    config = case.get("config", {})
    model = case.get("name") or config.get("model_type") or config["_class_name"]
    return " ".join([model, *(str(case[key]) for key in ("precision", "attention", "method", "checkpointing"))])


@cache
def replayed(place: int) -> tuple[Build, Profile]:
    case = CASES[place]
    build = Build(
        Dtype.BF16 if case["precision"] == "bf16" else Dtype.FP32,
        full=case["method"] == "full",
        lora_rank=0 if case["method"] == "full" else 16,
        checkpointing=case["checkpointing"],
        attention=case["attention"],
        classifies=case.get("task") is None,
    )
    key, config = key_and_config(case["library"], case.get("name", ""), case.get("config", {}))
    model = architecture(key)(build, config)
    tape = Tape(Autocast(Dtype.BF16) if case["precision"] == "amp-bf16" else None)
    loss = model.loss(tape, Shape(image_size=case["image_size"], sequence_length=case.get("sequence_length", 0)))
    tape.end_autocast()
    tape.backward(loss)
    return build, Profile.of(tape)


every_case = pytest.mark.parametrize("place", range(len(CASES)), ids=[title(case) for case in CASES])


@every_case
def test_parameters_are_exact(place: int) -> None:
    build, _ = replayed(place)
    assert sum(p.numel * p.copies for p in build.parameters) == CASES[place]["parameters"]
    assert sum(p.numel * p.copies for p in build.parameters if p.trainable) == CASES[place]["trainable_parameters"]


@every_case
def test_memory_of_a_step(place: int) -> None:
    build, profile = replayed(place)
    case = CASES[place]
    weights = sum(rounded(p.stored_bytes) * p.copies for p in build.parameters) + build.buffer_bytes
    peaks = profile.peaks(profile.sizes(case["micro_batch"]))
    forward, backward = peaks[Phase.FORWARD].alive_bytes, peaks[Phase.BACKWARD].alive_bytes
    assert weights == pytest.approx(case["weights_bytes"], rel=BOUND)
    assert weights + forward == pytest.approx(case["peak_forward_bytes"], rel=BOUND)
    assert weights + max(forward, backward) == pytest.approx(case["peak_step_bytes"], rel=BOUND)


@pytest.mark.parametrize(
    "preset",
    [p for p in PRESETS if p["task"] in IMAGE_TASKS],
    ids=lambda preset: preset["id"],
)
def test_presets_have_their_published_number_of_parameters(preset: dict[str, Any]) -> None:
    key, config = key_and_config(preset["library"], preset["id"], preset["config"])
    if key not in ARCHITECTURES:
        pytest.skip(f"no architecture for {key}")
    build = Build(Dtype.FP32, classifies=preset["task"] == "image-classification")
    architecture(key)(build, config)
    assert sum(p.numel * p.copies for p in build.parameters) == preset["parameters"]
