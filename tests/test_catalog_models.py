"""Model presets: enough of them, found by typing, with the counts that others published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.catalog.configs import complete_config, known_model_types
from calc.catalog.models import Preset, preset, presets, search
from calc.errors import ScenarioError

# Totals as their publishers print them: model cards, papers' tables, torchvision's table of weights.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-1.4b": 1_414_647_808,
    "opt-1.3b": 1_315_758_080,
    "bloom-560m": 559_214_592,
    "bloom-176b": 176_247_271_424,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2b": 2_506_172_416,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "phi-2": 2_779_683_840,
    "phi-4": 14_659_507_200,
    "deepseek-v2-lite": 15_706_484_224,
    "olmo2-7b": 7_298_617_344,
    "olmoe-1b-7b": 6_919_161_856,
    "falcon-7b": 6_921_720_704,
    "mpt-7b": 6_649_286_656,
    "starcoder2-15b": 15_957_889_024,
    "t5-base": 222_903_552,
    "bart-large": 406_291_456,
    "whisper-small": 241_734_912,
    "whisper-large-v3": 1_543_490_560,
    "vit-base-patch16": 86_567_656,
    "clip-vit-base-patch32": 151_277_313,
    "sd-1.5-unet": 859_520_964,
    "sdxl-unet": 2_567_463_684,
    "flux.1-dev": 11_901_408_320,
    "resnet50": 25_557_032,
    "vit_h_14": 632_045_800,
    "efficientnet_b4": 19_341_616,
    "convnext_base": 88_591_464,
    "deeplabv3_resnet101": 60_996_202 - 2_365_205,  # torchvision counts its auxiliary head
}


def test_there_are_at_least_120_with_unique_ids() -> None:
    ids = [entry.id for entry in presets()]
    assert len(ids) >= 120
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("model_id", "parameters"), PUBLISHED.items())
def test_counts_are_those_published(model_id: str, parameters: int) -> None:
    assert preset(model_id).parameters == parameters


@pytest.mark.parametrize("entry", presets(), ids=lambda entry: entry.id)
def test_every_preset_is_complete(entry: Preset) -> None:
    assert entry.name
    assert entry.group
    assert entry.source
    assert entry.parameters > 1_000_000
    assert any((entry.sequence_length, entry.image_size, entry.audio_frames))
    if entry.library == "torchvision":
        assert not entry.config
    else:
        assert complete_config(entry.config)["model_type"] in known_model_types()


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("gpt2", "gpt2"),
        ("llama 3.1 8b", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("Qwen 2.5 7B", "qwen2.5-7b"),
        ("resnet50", "resnet50"),
        ("bert large", "bert-large"),
        ("sdxl", "sdxl-unet"),
        ("deeplab", "deeplabv3_resnet50"),
    ],
)
def test_typing_finds(typed: str, first: str) -> None:
    assert search(typed)[0].id == first


def test_an_empty_search_gives_all_and_nonsense_none() -> None:
    assert search("") == presets()
    assert search("no such model at all") == ()


@pytest.mark.property
@given(st.sampled_from(presets()))
def test_every_model_is_found_by_its_id(entry: Preset) -> None:
    assert entry in search(entry.id)


def test_a_wrong_id_is_answered_with_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"llama-3\.1-8b") as caught:
        preset("llama-3.1-9b")
    assert caught.value.field == "model"
