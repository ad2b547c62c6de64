"""Every architecture against torch's own autograd, step by step, and against published numbers of parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calc.architectures.decoders import DECODERS
from calc.architectures.model import Shape
from calc.architectures.registry import ARCHITECTURES, architecture
from calc.catalog.configs import complete_config, known_model_types
from calc.errors import ScenarioError
from calc.replay.layers import Build
from calc.replay.tape import Dtype, Phase, Tape
from tests.recorded_steps import STEPS, build_of, key_and_config, replayed, tensors_alone, title, weights_bytes

CATALOG = Path(__file__).resolve().parent.parent / "calc" / "catalog"
PRESETS = json.loads((CATALOG / "models.json").read_text(encoding="utf-8"))["models"]
IMAGE_TASKS = ("image-classification", "image-text-contrastive", "segmentation", "diffusion")
BOUND = 0.01

every_step = pytest.mark.parametrize("place", range(len(STEPS)), ids=[title(step) for step in STEPS])


@every_step
def test_parameters_are_exact(place: int) -> None:
    build, _ = replayed(place)
    assert sum(p.numel * p.copies for p in build.parameters) == STEPS[place]["parameters"]
    assert sum(p.numel * p.copies for p in build.parameters if p.trainable) == STEPS[place]["trainable_parameters"]


@every_step
def test_memory_of_a_step(place: int) -> None:
    build, profile = replayed(place)
    step = STEPS[place]
    weights = weights_bytes(build)
    sizes = tensors_alone(profile, step["micro_batch"])
    peaks = profile.peaks(sizes)
    forward, backward = peaks[Phase.FORWARD].alive_bytes, peaks[Phase.BACKWARD].alive_bytes
    kept = sum(sizes[i] * profile.copies[i] for i in profile.kept_for_backward)
    assert weights == pytest.approx(step["weights_bytes"], rel=BOUND)
    assert weights + kept == pytest.approx(step["after_forward_bytes"], rel=BOUND)
    assert weights + forward == pytest.approx(step["peak_forward_bytes"], rel=BOUND)
    assert weights + max(forward, backward) == pytest.approx(step["peak_step_bytes"], rel=BOUND)


def test_every_decoder_has_known_defaults() -> None:
    assert set(DECODERS) <= known_model_types()


@pytest.mark.parametrize("model_type", sorted(DECODERS))
def test_repeated_layers_are_replayed_once(model_type: str) -> None:
    """Twice the layers are replayed in as many kernels."""
    config = complete_config({"model_type": model_type, "num_experts_per_tok": 2, "head_dim": 128})
    layers = next(k for k in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if config.get(k))
    counts = []
    for number in (36, 72):
        all_own: dict[str, dict[str, Any]] = {
            "gpt_neo": {"attention_types": [[["global", "local"], number // 2]]},
            "glm4_moe": {"head_dim": 128},
            "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "sliding_window": None},
        }
        own = all_own.get(model_type, {})
        build = Build(Dtype.BF16)
        sized = {"model_type": model_type, "num_experts_per_tok": 2, layers: number, **own}
        model = DECODERS[model_type](build, complete_config(sized))
        tape = Tape()
        model.loss(tape, Shape(sequence_length=64))
        counts.append((len(tape.kernels), sum(p.numel * p.copies for p in build.parameters)))
    assert counts[0][0] == counts[1][0]
    assert counts[0][1] < counts[1][1]


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


def test_experts_without_a_default_are_asked_for() -> None:
    config = complete_config({"model_type": "dots1"})
    with pytest.raises(ScenarioError, match="n_routed_experts"):
        architecture("dots1")(build_of("bf16", "sdpa", "full", "none"), config)


def test_shared_parameters_count_once() -> None:
    counts = set()
    for blocks in (1, 6, 24):
        build = build_of("bf16", "sdpa", "full", "none")
        architecture("albert")(build, complete_config({"model_type": "albert", "num_hidden_layers": blocks}))
        counts.add(sum(p.numel * p.copies for p in build.parameters))
    assert len(counts) == 1


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
