"""Encoders, encoder-decoders and speech models against torch's own autograd on tensors without memory.

The figures in ``data/architectures_encoders.json`` are torch's: every storage of one training step counted, rounded as
the allocator rounds it, kernels' own workspaces left out.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from calc.architectures.model import Shape
from calc.architectures.registry import architecture
from calc.catalog.configs import complete_config
from calc.errors import ScenarioError
from calc.replay.layers import Build
from calc.replay.profile import Profile, rounded
from calc.replay.tape import Autocast, Dtype, Phase, Tape

DATA = json.loads(Path(__file__).with_name("data").joinpath("architectures_encoders.json").read_text(encoding="utf-8"))
CASES = DATA["cases"]
BOUND = 0.01


def name(case: dict[str, Any]) -> str:
    parts = [case["config"]["model_type"], case["precision"], case["attention"], case["method"], case["checkpointing"]]
    return " ".join(str(part) for part in parts)


def build_of(precision: str, attention: str, method: str, checkpointing: str) -> Build:
    return Build(
        Dtype.BF16 if precision == "bf16" else Dtype.FP32,
        full=method == "full",
        lora_rank=0 if method == "full" else 16,
        checkpointing=checkpointing,
        attention=attention,
    )


@cache
def replayed(place: int) -> tuple[Build, Profile]:
    case = CASES[place]
    build = build_of(case["precision"], case["attention"], case["method"], case["checkpointing"])
    config = complete_config(case["config"])
    model = architecture(config["model_type"])(build, config)
    tape = Tape(Autocast(Dtype.BF16) if case["precision"] == "amp-bf16" else None)
    loss = model.loss(tape, Shape(**case["shape"]))
    tape.end_autocast()
    tape.backward(loss)
    return build, Profile.of(tape)


def weights_bytes(build: Build) -> int:
    return sum(rounded(p.stored_bytes) * p.copies for p in build.parameters) + build.buffer_bytes


every_case = pytest.mark.parametrize("place", range(len(CASES)), ids=[name(c) for c in CASES])


@every_case
def test_parameters_are_exact(place: int) -> None:
    build, _ = replayed(place)
    assert sum(p.numel * p.copies for p in build.parameters) == CASES[place]["parameters"]
    assert sum(p.numel * p.copies for p in build.parameters if p.trainable) == CASES[place]["trainable_parameters"]


@every_case
def test_memory_of_a_step(place: int) -> None:
    build, profile = replayed(place)
    case = CASES[place]
    weights = weights_bytes(build)
    peaks = profile.peaks(profile.sizes(case["micro_batch"]))
    forward, backward = peaks[Phase.FORWARD].alive_bytes, peaks[Phase.BACKWARD].alive_bytes
    assert weights == pytest.approx(case["weights_bytes"], rel=BOUND)
    assert weights + forward == pytest.approx(case["peak_forward_bytes"], rel=BOUND)
    assert weights + max(forward, backward) == pytest.approx(case["peak_step_bytes"], rel=BOUND)


@every_case
def test_what_backward_keeps(place: int) -> None:
    build, profile = replayed(place)
    case = CASES[place]
    sizes = profile.sizes(case["micro_batch"])
    kept = sum(sizes[i] * profile.copies[i] for i in profile.kept_for_backward)
    assert weights_bytes(build) + kept == pytest.approx(case["after_forward_bytes"], rel=BOUND)


def test_t5_has_no_flash_attention() -> None:
    config = complete_config({"model_type": "t5"})
    with pytest.raises(ScenarioError, match="sdpa or eager"):
        architecture("t5")(build_of("bf16", "flash-attention-2", "full", "none"), config)


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        ({"model_type": "deberta-v2", "legacy": False}, "legacy"),
        ({"model_type": "wav2vec2", "add_adapter": True}, "add_adapter"),
    ],
)
def test_what_is_not_calculated_is_said(config: dict[str, Any], advice: str) -> None:
    completed = complete_config(config)
    with pytest.raises(ScenarioError, match=advice):
        architecture(completed["model_type"])(build_of("bf16", "sdpa", "full", "none"), completed)


def test_shared_parameters_count_once() -> None:
    counts = set()
    for blocks in (1, 6, 24):
        build = build_of("bf16", "sdpa", "full", "none")
        architecture("albert")(build, complete_config({"model_type": "albert", "num_hidden_layers": blocks}))
        counts.add(sum(p.numel * p.copies for p in build.parameters))
    assert len(counts) == 1
