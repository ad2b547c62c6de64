"""Heads, blocks and what blocks hand on, against the papers' sizes; the traffic that follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from calc import accuracy, collectives
from calc.cards import fits_on
from calc.catalog import models
from calc.curves import memory_curve
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.memory import replay
from calc.model_dimensions import ModelDimensions, refuse_undividable
from calc.multi_gpu import workload_of
from calc.planner import plan
from calc.planner.answer import candidates_of, machine_of
from calc.scaling import Layout, Workload
from calc.scaling.step_time import model_parallel_seconds
from calc.scenario import parse

if TYPE_CHECKING:
    from collections.abc import Callable

FABRIC = collectives.read_fabric("nvlink-4+infiniband-ndr-x8")


def dimensions(model: str, **given: Any) -> ModelDimensions:
    return ModelDimensions.of(parse({"model": model, **given}))


def workload(model: str, micro_batch: int = 1, **given: Any) -> Workload:
    scenario = parse({"model": model, **given})
    return workload_of(
        scenario,
        replay(scenario),
        micro_batch,
        1,
        forward_seconds=0.0,
        backward_seconds=0.0,
        optimizer_seconds=0.0,
    )


@pytest.mark.parametrize(
    ("model", "heads", "key_value_heads", "layers"),
    [
        ("llama-3.1-8b", 32, 8, 32),
        ("llama-3.1-405b", 128, 8, 126),
        ("gpt-neo-125m", 12, 12, 12),
        ("falcon-40b", 128, 8, 60),
        ("distilbert", 12, 12, 6),
        ("t5-small", 8, 8, 12),
        ("whisper-tiny", 6, 6, 8),
        ("wav2vec2-base", 12, 12, 12),
        ("vit-huge-patch14", 16, 16, 32),
        ("vit_h_14", 16, 16, 32),
        # What divides the heads of every stage: 3, 6, 12, 24.
        ("swin-tiny", 3, 3, 12),
        ("swin_t", 3, 3, 12),
        ("flux.1-dev", 24, 24, 57),
        # No stacks of transformer blocks; a UNet has convolutions between them, and hands on past them.
        ("sdxl-unet", 0, 0, 70),
        ("resnet50", 0, 0, 16),
    ],
)
def test_heads_and_layers_of_the_papers(model: str, heads: int, key_value_heads: int, layers: int) -> None:
    found = dimensions(model)
    assert (found.heads, found.key_value_heads, found.layers) == (heads, key_value_heads, layers)


def test_mixtral_sends_a_token_to_two_of_eight() -> None:
    found = dimensions("mixtral-8x7b")
    assert (found.experts, found.experts_each) == (8, 2)
    assert (dimensions("gpt2").experts, dimensions("gpt2").experts_each) == (1, 0)


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        ("gpt2", 1024 * 768),
        # It returns its scores, which stay on their GPU.
        ("gpt-j-6b", 2048 * 4096),
        ("llama-3.1-8b", 2048 * 4096),
        ("bert-base", 512 * 768),
        # 6 blocks on 512 tokens of text and 6 on as many of the answer.
        ("t5-small", 512 * 512),
        # (224 / 14)^2 patches and the class.
        ("vit-huge-patch14", 257 * 1280),
        ("vit_h_14", 257 * 1280),
        # Liu et al. 2021, arXiv:2103.14030, table 7: 2, 2, 6 and 2 blocks.
        ("swin-tiny", (2 * 56**2 * 96 + 2 * 28**2 * 192 + 6 * 14**2 * 384 + 2 * 7**2 * 768) // 12),
        # 1500 audio frames after the convolutions, 448 text tokens: 4 blocks each.
        ("whisper-tiny", (1500 + 448) * 384 // 2),
        # A frame every 20 ms of 15 s (Baevski et al. 2020, arXiv:2006.11477, section 4.2), less the last one's window.
        ("wav2vec2-base", 749 * 768),
        # 1024 x 1024 pixels are 64 x 64 latent patches, beside 512 tokens of text.
        ("flux.1-dev", (64 * 64 + 512) * 3072),
    ],
)
def test_a_block_hands_on_its_tokens(model: str, elements: int) -> None:
    assert dimensions(model).layer_elements == elements


def test_settings_change_nothing() -> None:
    settings = {"precision": "bf16", "method": "lora", "checkpointing": "selective", "attention": "eager"}
    assert dimensions("llama-3.1-8b", **settings) == dimensions("llama-3.1-8b")


def test_what_tensor_ranks_of_a_vit_reduce() -> None:
    work = workload("vit-huge-patch14", micro_batch=256, precision="bf16")
    # 256 x 257 tokens x 1280 x 2 bytes = 168 MB, twice forward and twice backward in each of 32 blocks, 2 x 3/4 of it
    # over NVLink 4, whose specification is 450 GB/s: no less than 72 ms.
    assert work.layer_bytes == 168_427_520
    assert 0.072 < model_parallel_seconds(work, Layout(tensor=4), FABRIC, 8) < 2 * 0.072


def test_every_preset_that_tensor_parallelism_divides_passes_something_on() -> None:
    divided = []
    for preset in models.presets():
        try:
            refuse_undividable(parse({"model": preset.id, "gpus": 2, "parallelism": {"tensor": 2}}))
        except ScenarioError:
            continue
        work = workload(preset.id)
        assert work.layer_bytes > 0, preset.id
        for layout in (Layout(tensor=2), Layout(pipeline=2), Layout(context=2)):
            assert model_parallel_seconds(work, layout, FABRIC, 8) > 0, preset.id
        divided.append(preset.id)
    assert {"vit-huge-patch14", "vit_h_14", "swin-large", "flux.1-dev", "wav2vec2-large"} <= set(divided)


@pytest.mark.parametrize("degree", ["tensor", "pipeline", "context"])
@pytest.mark.parametrize("model", ["resnet50", "sdxl-unet", "convnext-tiny", "vgg16"])
def test_what_is_no_stack_of_transformer_blocks_is_refused(model: str, degree: str) -> None:
    with pytest.raises(ScenarioError, match=r"transformer blocks|language model") as caught:
        evaluate({"model": model, "gpus": 2, "parallelism": {degree: 2}})
    assert caught.value.field == f"parallelism.{degree}"
    assert evaluate({"model": model, "gpus": 2, "parallelism": {"strategy": "fsdp"}})["scaling"] is not None


UNDIVIDABLE = {"model": "vit_b_16", "gpu": "h100-sxm-80gb", "gpus": 5, "parallelism": {"tensor": 5}}
READ_ON_IT = [{"batch": 8, "reading": "allocated", "gib": 4, "scenario": UNDIVIDABLE}]


@pytest.mark.parametrize(
    ("answer", "given", "field"),
    [
        (evaluate, UNDIVIDABLE, "parallelism.tensor"),
        (plan, UNDIVIDABLE, "parallelism.tensor"),
        (memory_curve, UNDIVIDABLE, "parallelism.tensor"),
        (accuracy.report, UNDIVIDABLE, "parallelism.tensor"),
        (evaluate, {"model": "gpt2", "calibration": READ_ON_IT}, "calibration"),
    ],
)
def test_every_way_to_an_answer_refuses_what_cannot_be_divided(
    answer: Callable[[dict[str, Any]], object], given: dict[str, Any], field: str
) -> None:
    with pytest.raises(ScenarioError, match="5 does not divide the 12 attention heads: allowed are") as error:
        answer(given)
    assert error.value.field == field


def test_no_card_takes_what_cannot_be_divided() -> None:
    assert "does not divide" in fits_on(UNDIVIDABLE, "a100-sxm-80gb")["reason"]


@pytest.mark.parametrize(
    ("model", "tensor", "pipeline"), [("gpt-neo-2.7b", 4, 8), ("t5-3b", 8, 8), ("sdxl-unet", 1, 1), ("resnet50", 1, 1)]
)
def test_the_planner_tries_what_divides_the_model(model: str, tensor: int, pipeline: int) -> None:
    scenario = parse({"model": model, "gpu": "h100-sxm-80gb", "gpus": 8, "global_batch": 8})
    tried = candidates_of(scenario, machine_of(scenario, None), {8: 1}).layouts
    assert max(layout.tensor for layout in tried) == tensor
    assert max(layout.pipeline for layout in tried) == pipeline
