"""The inputs that models take: the least that their layers can do with, the most that their positions allow.

What is expected was not calculated here. Least images are torchvision's own, the ``min_size`` of each
``..._Weights.meta`` (0.26); others, and all largest lengths, are where transformers 5.17 raised an error on a small
model with the same layers or tables.
"""

from __future__ import annotations

from typing import Any

import pytest

from calc.catalog import models
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.memory import replay
from calc.scenario import parse

LEAST_IMAGES = {
    "alexnet": 63,
    "googlenet": 15,
    "inception_v3": 75,
    "squeezenet1_0": 21,
    "squeezenet1_1": 17,
    "densenet121": 29,
    "vgg16": 32,
    "vgg11_bn": 32,
    "convnext_tiny": 32,
}
LEAST_OF_OTHERS = {
    "swin_t": ("image_size", 4),  # torchvision: "Calculated output size per channel: [0, 0]. Output size is too small"
    "swin_v2_t": ("image_size", 4),
    "vit-base-patch16": ("image_size", 16),  # "Kernel size can't be greater than actual input size"
    "vit-base-patch32": ("image_size", 32),
    "beit-base-patch16": ("image_size", 16),
    "convnext-tiny": ("image_size", 32),
    "swin-tiny": ("image_size", 193),  # "The size of tensor a must match the size of tensor b (49)", its windows
    "wav2vec2-base": ("audio_frames", 3_280),  # "`mask_length` has to be smaller than `sequence_length`"
}
ANY_IMAGE = ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x0_5", "efficientnet_b0",
    "efficientnet_v2_s", "regnet_y_400mf", "fcn_resnet50", "lraspp_mobilenet_v3_large")  # fmt: skip
"""Whose ``min_size`` is one pixel."""
ONE_OF_EACH = (*LEAST_IMAGES, *LEAST_OF_OTHERS, *ANY_IMAGE, "maxvit_t", "vit_b_16", "vit_h_14", "sd-1.5-unet",
    "dit-xl-2-256", "flux.1-dev", "clip-vit-base-patch32", "deit-tiny-distilled")  # fmt: skip


def run(model: object, **sizes: int) -> None:
    replay(parse({"model": model, **sizes}))


def refusal(model: object, **sizes: int) -> ScenarioError | None:
    try:
        run(model, **sizes)
    except ScenarioError as error:
        return error
    return None


def refused(model: object, **sizes: int) -> ScenarioError:
    error = refusal(model, **sizes)
    assert error is not None
    return error


class TestLeast:
    @pytest.mark.parametrize(("model", "least"), LEAST_IMAGES.items())
    def test_images_as_torchvision_documents_them(self, model: str, least: int) -> None:
        error = refused(model, image_size=least - 1)
        assert error.field == "image_size"
        assert f"at least {least}" in error.message
        run(model, image_size=least)

    @pytest.mark.parametrize("model", ANY_IMAGE)
    def test_one_pixel_is_enough_for_some(self, model: str) -> None:
        run(model, image_size=1)

    @pytest.mark.parametrize(("model", "field", "least"), [(m, *of) for m, of in LEAST_OF_OTHERS.items()])
    def test_inputs_where_the_libraries_raise(self, model: str, field: str, least: int) -> None:
        error = refused(model, **{field: least - 1})
        assert error.field == field
        assert f"at least {least:,}" in error.message
        run(model, **{field: least})

    def test_without_masked_spans_a_single_frame_is_enough(self) -> None:
        config = {"model_type": "wav2vec2", "num_hidden_layers": 1, "apply_spec_augment": False}
        assert "at least 400" in refused(config, audio_frames=399).message
        run(config, audio_frames=400)

    @pytest.mark.parametrize("model", ONE_OF_EACH)
    def test_nothing_else_is_ever_raised(self, model: str) -> None:
        field = "audio_frames" if models.preset(model).audio_frames else "image_size"
        for size in (2, 8, 16, 33, 64, 97):
            error = refusal(model, **{field: size})
            assert error is None or error.field == field

    @pytest.mark.parametrize(("model", "field"), [("vgg16", "image_size"), ("wav2vec2-base", "audio_frames")])
    def test_the_whole_answer_names_the_field(self, model: str, field: str) -> None:
        with pytest.raises(ScenarioError, match="at least") as error:
            evaluate({"model": model, field: 16, "gpu": "rtx-4090-24gb"})
        assert error.value.field == field


SMALL = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100}
ROWS = {"max_position_embeddings": 64}
GPT = {"n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 100, "n_positions": 64}
BIAS = {"position_biased_input": True}
RELATIVE = {"position_biased_input": False, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}


class TestLargest:
    # Each of the library's models with 64 rows took this many tokens and raised an IndexError or a RuntimeError at
    # one more.
    @pytest.mark.parametrize(
        ("config", "largest"),
        [
            *[({"model_type": kind, **GPT}, 64) for kind in ("gpt2", "gpt_bigcode", "gptj", "codegen")],
            ({"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 1, "num_heads": 4,
              "attention_types": [[["global"], 1]], **ROWS}, 64),
            ({"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 1, "max_seq_len": 64}, 64),
            *[({"model_type": kind, **SMALL, **ROWS}, 64)
              for kind in ("opt", "biogpt", "bert", "electra", "albert", "ernie")],
            ({"model_type": "distilbert", **ROWS}, 64),
            *[({"model_type": kind, **SMALL, **ROWS, **BIAS}, 64) for kind in ("deberta", "deberta-v2")],
            *[({"model_type": kind, **SMALL, **ROWS}, 62)
              for kind in ("roberta", "xlm-roberta", "camembert", "data2vec-text", "mpnet")],
            ({"model_type": "roberta", **SMALL, **ROWS, "pad_token_id": 0}, 63),
            *[({"model_type": kind, **ROWS}, 64)
              for kind in ("bart", "mbart", "plbart", "pegasus", "marian", "blenderbot", "blenderbot-small")],
        ],
        ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
    )  # fmt: skip
    def test_tokens_with_a_position_each(self, config: dict[str, Any], largest: int) -> None:
        assert parse({"model": config, "sequence_length": largest}).shape.sequence_length == largest
        with pytest.raises(ScenarioError, match=f"from 1 to {largest}") as error:
            parse({"model": config, "sequence_length": largest + 1})
        assert error.value.field == "sequence_length"
        assert parse({"model": config}).shape.sequence_length == largest

    # These took 130 tokens.
    @pytest.mark.parametrize(
        "config",
        [
            *[{"model_type": kind, **SMALL, **ROWS} for kind in ("llama", "phi3", "falcon", "modernbert")],
            *[{"model_type": kind, **SMALL, **ROWS, **RELATIVE} for kind in ("deberta", "deberta-v2")],
            {"model_type": "bloom", "hidden_size": 64, "n_head": 4, "n_layer": 1},
            {"model_type": "m2m_100", **ROWS},
            {"layers": 2, "hidden_size": 64},
            "t5-small",
        ],
        ids=lambda value: value if isinstance(value, str) else value.get("model_type", "by hand"),
    )
    def test_positions_that_are_computed_have_no_end(self, config: object) -> None:
        assert parse({"model": config, "sequence_length": 130}).shape.sequence_length == 130

    def test_both_sides_of_bart_have_positions(self) -> None:
        with pytest.raises(ScenarioError, match="64") as error:
            parse({"model": {"model_type": "bart", **ROWS}, "sequence_length": 10, "target_length": 65})
        assert error.value.field == "target_length"

    # The model cards: GPT-2 1024, BERT 512, RoBERTa 514 less two, OPT 2048.
    @pytest.mark.parametrize(
        ("model", "largest"), [("gpt2", 1024), ("bert-base", 512), ("roberta-base", 512), ("opt-125m", 2048)]
    )
    def test_presets(self, model: str, largest: int) -> None:
        assert parse({"model": model, "sequence_length": largest}).shape.sequence_length == largest
        with pytest.raises(ScenarioError, match=f"{largest:,}"):
            parse({"model": model, "sequence_length": 4 * largest})

    # "Whisper expects the mel input features to be of length 3000"; "Labels' sequence length 449 cannot exceed the
    # maximum allowed length of 448 tokens."
    @pytest.mark.parametrize(
        ("field", "value", "allowed"),
        [("audio_frames", 6000, "3,000"), ("audio_frames", 2999, "3,000"), ("target_length", 449, "448")],
    )
    def test_whisper_hears_thirty_seconds(self, field: str, value: int, allowed: str) -> None:
        with pytest.raises(ScenarioError, match=allowed) as error:
            parse({"model": "whisper-small", field: value})
        assert error.value.field == field
        assert parse({"model": "whisper-small"}).shape.audio_frames == 3000


class TestVisionTransformersOfTorchvision:
    # num_params of the weights IMAGENET1K_SWAG_E2E_V1, which are for these sizes.
    @pytest.mark.parametrize(
        ("model", "size", "parameters"),
        [("vit_b_16", 384, 86_859_496), ("vit_l_16", 512, 305_174_504), ("vit_h_14", 518, 633_470_440)],
    )
    def test_are_made_for_the_image(self, model: str, size: int, parameters: int) -> None:
        assert replay(parse({"model": model, "image_size": size})).parameter_count == parameters

    def test_patches_fill_the_image(self) -> None:
        error = refused("vit_b_16", image_size=230)  # "Input shape indivisible by patch size!"
        assert error.field == "image_size"
        assert "multiple of 16" in error.message
