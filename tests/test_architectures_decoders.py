"""Decoders and mixtures of experts against torch's own autograd on tensors without memory.

The figures in ``data/architectures_decoders.json`` are torch's: every storage of one training step counted, rounded as
the allocator rounds it, kernels' own workspaces left out.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from calc.architectures.decoders import DECODERS
from calc.architectures.model import Shape
from calc.catalog.configs import complete_config, known_model_types
from calc.replay.layers import Build
from calc.replay.profile import Profile, rounded
from calc.replay.tape import Autocast, Dtype, Phase, Tape

DATA = json.loads(Path(__file__).with_name("data").joinpath("architectures_decoders.json").read_text(encoding="utf-8"))
CASES = DATA["cases"]
BOUND = 0.01


def name(case: dict[str, Any]) -> str:
    parts = [case["config"]["model_type"], case["precision"], case["attention"], case["method"], case["checkpointing"]]
    return " ".join(str(part) for part in parts)


@cache
def replayed(place: int) -> tuple[Build, Profile]:
    case = CASES[place]
    build = Build(
        Dtype.BF16 if case["precision"] == "bf16" else Dtype.FP32,
        full=case["method"] == "full",
        lora_rank=0 if case["method"] == "full" else 16,
        checkpointing=case["checkpointing"],
        attention=case["attention"],
    )
    config = complete_config(case["config"])
    model = DECODERS[config["model_type"]](build, config)
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
    sizes = profile.sizes(case["micro_batch"])
    peaks = profile.peaks(sizes)
    forward, backward = peaks[Phase.FORWARD].alive_bytes, peaks[Phase.BACKWARD].alive_bytes
    kept = sum(sizes[i] * profile.copies[i] for i in profile.kept_for_backward)
    assert weights == pytest.approx(case["weights_bytes"], rel=BOUND)
    assert weights + kept == pytest.approx(case["after_forward_bytes"], rel=BOUND)
    assert weights + forward == pytest.approx(case["peak_forward_bytes"], rel=BOUND)
    assert weights + max(forward, backward) == pytest.approx(case["peak_step_bytes"], rel=BOUND)


def test_every_decoder_has_known_defaults() -> None:
    assert set(DECODERS) <= known_model_types()


@pytest.mark.parametrize("model_type", sorted(DECODERS))
def test_repeated_layers_are_replayed_once(model_type: str) -> None:
    """Twice the layers are replayed in as many kernels."""
    config = complete_config({"model_type": model_type, "num_experts_per_tok": 2})
    layers = next(k for k in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if config.get(k))
    counts = []
    for number in (36, 72):
        own = {"attention_types": [[["global", "local"], number // 2]]} if model_type == "gpt_neo" else {}
        build = Build(Dtype.BF16)
        sized = {"model_type": model_type, "num_experts_per_tok": 2, layers: number, **own}
        model = DECODERS[model_type](build, complete_config(sized))
        tape = Tape()
        model.loss(tape, Shape(sequence_length=64))
        counts.append((len(tape.kernels), sum(p.numel * p.copies for p in build.parameters)))
    assert counts[0][0] == counts[1][0]
    assert counts[0][1] < counts[1][1]
