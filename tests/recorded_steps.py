"""Training steps that torch's own autograd took on tensors without memory, and our replay of the same steps.

The figures in ``data/architectures_*.json`` are torch's: every storage of one step counted, rounded as the allocator
rounds it, kernels' own workspaces left out. Each file names the versions that gave them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calc.architectures.model import Shape
from calc.architectures.registry import architecture
from calc.catalog.configs import complete_config
from calc.replay.layers import Build
from calc.replay.profile import Profile, rounded
from calc.replay.tape import WORKSPACE, Autocast, Dtype, Tape

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).parent / "data"
STEPS: list[dict[str, Any]] = [
    step
    for kind in ("decoders", "encoders", "images")
    for step in json.loads((DATA / f"architectures_{kind}.json").read_text(encoding="utf-8"))["cases"]
]


def title(step: Mapping[str, Any]) -> str:
    config = step.get("config", {})
    model = step.get("name") or config.get("model_type") or config["_class_name"]
    return " ".join([model, *(str(step[key]) for key in ("precision", "attention", "method", "checkpointing"))])


def key_and_config(library: str, name: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The registry's key, and the configuration that its architecture reads."""
    if library == "torchvision":
        return name, {"name": name, **config}
    completed = complete_config(config)
    return completed["model_type"], completed


def build_of(precision: str, attention: str, method: str, checkpointing: str, *, classifies: bool = False) -> Build:
    return Build(
        Dtype.BF16 if precision == "bf16" else Dtype.FP32,
        full=method == "full",
        lora_rank=0 if method == "full" else 16,
        checkpointing=checkpointing,
        attention=attention,
        classifies=classifies,
    )


def shape_of(step: Mapping[str, Any]) -> Shape:
    if "shape" in step:
        return Shape(**step["shape"])
    return Shape(image_size=step["image_size"], sequence_length=step.get("sequence_length", 0))


@cache
def replayed(place: int) -> tuple[Build, Profile]:
    """Replay the step at this place of ``STEPS``."""
    step = STEPS[place]
    how = [step[key] for key in ("precision", "attention", "method", "checkpointing")]
    build = build_of(*how, classifies="image_size" in step and step.get("task") is None)
    key, config = key_and_config(step.get("library", "transformers"), step.get("name", ""), step.get("config", {}))
    model = architecture(key)(build, config)
    tape = Tape(Autocast(Dtype.BF16) if step["precision"] == "amp-bf16" else None)
    loss = model.loss(tape, shape_of(step))
    tape.end_autocast()
    tape.backward(loss)
    return build, Profile.of(tape)


def weights_bytes(build: Build) -> int:
    return sum(rounded(p.stored_bytes) * p.copies for p in build.parameters) + build.buffer_bytes


def tensors_alone(profile: Profile, micro_batch: int) -> list[int]:
    """Sizes of the replay's storages, nothing for what kernels take inside themselves."""
    sizes = profile.sizes(micro_batch)
    return [0 if label == WORKSPACE else size for label, size in zip(profile.labels, sizes, strict=True)]
