"""Configurations are completed as transformers itself completes them, and refused in words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.catalog.configs import (
    complete_config,
    describe_completion,
    known_model_types,
)
from calc.errors import ScenarioError

CASES = json.loads((Path(__file__).parent / "data" / "config_cases.json").read_text(encoding="utf-8"))["cases"]

# Names that the library answers by an alias, and those that it leaves to the model's code.
ALSO_READ = {"hidden_size", "head_dim"}
LEFT_TO_THE_MODEL = {"head_dim", "num_key_value_heads"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case["given"])[:60])
def test_completed_as_the_library_does(case: dict[str, Any]) -> None:
    completed = complete_config(case["given"])
    wrong = {
        key: (completed.get(key), value)
        for key, value in case["completed"].items()
        if not (key in ALSO_READ and key not in completed)
        and not _same(completed.get(key), value)
        and not (key in LEFT_TO_THE_MODEL and value is None)
    }
    assert not wrong


def _same(ours: Any, library: Any) -> bool:
    if isinstance(library, dict):
        return all(_same(ours.get(key), value) for key, value in library.items())
    return bool(ours == library)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, "hidden_size"),
        ({"model_type": 3}, "model_type"),
        ({"model_type": "unheard-of", "hidden_size": 64}, "num_hidden_layers, num_attention_heads, vocab_size"),
        ({"model_type": "llama", "num_hidden_layers": -3}, "num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"model_type": "llama", "hidden_size": 4096.5}, "hidden_size"),
        ({"model_type": "llama", "vocab_size": "many"}, "vocab_size"),
        ({"model_type": "llama", "vocab_size": True}, "vocab_size"),
        ({"model_type": "llama", "hidden_size": None}, "hidden_size"),
        ({"model_type": "gpt2", "n_head": 7}, "n_head"),
        ({"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5}, "num_key_value_heads"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9, "num_local_experts": 8}, "num_experts_per_tok"),
        ({"model_type": "bert", "hidden_dropout_prob": 1.5}, "hidden_dropout_prob"),
        ({"model_type": "clip", "text_config": 3}, "text_config"),
        ({"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024}, "tokenizer_config.json"),
        ({"version": "1.0", "added_tokens": [], "model": {"type": "BPE"}}, "tokenizer.json"),
        ({"image_processor_type": "ViTImageProcessor"}, "preprocessor"),
        ({"peft_type": "LORA", "r": 16}, "base model"),
        ({"weight_map": {}}, "index"),
        ({"temperature": 0.7, "eos_token_id": 2}, "generation_config.json"),
        ({"architecture": "vit_base_patch16_224", "pretrained_cfg": {}}, "timm"),
        ({"_class_name": "StableDiffusionPipeline"}, "unet/config.json"),
        ({"_class_name": "DDIMScheduler", "num_train_timesteps": 1000}, "scheduler"),
        ({"_class_name": "AutoencoderKL"}, "UNet2DConditionModel"),
        ({"zero_optimization": {"stage": 2}}, "DeepSpeed"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(named)) as caught:
        complete_config(config)
    assert caught.value.field == "model"


def test_other_names_become_the_types_own() -> None:
    config = complete_config({"model_type": "gpt2", "hidden_size": 1024, "num_attention_heads": 16})
    assert (config["n_embd"], config["n_head"]) == (1024, 16)
    assert "hidden_size" not in config


def test_a_multimodal_configuration_is_answered_by_its_language_model() -> None:
    answer = describe_completion(
        {"model_type": "llava", "text_config": {"hidden_size": 2048, "num_attention_heads": 16}, "vision_config": {}}
    )
    assert answer.config["model_type"] == "llama"
    assert answer.config["hidden_size"] == 2048
    assert "text_config" in answer.notes[0]


@pytest.mark.parametrize(
    ("config", "relative"),
    [
        ({"model_type": "qwen2_vl_text"}, "qwen2"),
        ({"model_type": "llama4_text", "num_local_experts": 16}, "mixtral"),
        ({"model_type": "exaone_moe", "num_experts": 128}, "qwen3_moe"),
        ({"model_type": "kimi_k2", "kv_lora_rank": 512, "scoring_func": "sigmoid"}, "deepseek_v3"),
        ({"model_type": "codet5p", "is_encoder_decoder": True, "d_kv": 64}, "t5"),
        ({"model_type": "nomic_bert", "type_vocab_size": 2}, "bert"),
        ({"model_type": "gemma9"}, "gemma"),
        ({"model_type": "something"}, "llama"),
        ({}, "llama"),
    ],
)
def test_an_unknown_type_is_answered_by_its_nearest_relative_and_says_so(config: dict[str, Any], relative: str) -> None:
    usual = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "vocab_size": 1000}
    answer = describe_completion({**usual, **config})
    assert answer.config["model_type"] == relative
    assert relative in answer.notes[-1]


def test_an_unknown_vision_type_needs_no_vocabulary() -> None:
    sizes = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "image_size": 224, "patch_size": 16}
    assert complete_config({"model_type": "ijepa", **sizes})["model_type"] == "vit"


@pytest.mark.parametrize(
    ("window", "pattern", "full"), [(4096, "LLLG", [3, 7]), (4096, 2, [1, 3, 5, 7]), (None, None, list(range(8)))]
)
def test_exaone_writes_its_windows_in_three_ways(
    window: int | None, pattern: str | int | None, full: list[int]
) -> None:
    given_config = {"num_hidden_layers": 8, "sliding_window": window, "sliding_window_pattern": pattern}
    types = complete_config({"model_type": "exaone4", **given_config})["layer_types"]
    assert [i for i, kind in enumerate(types) if kind == "full_attention"] == full


def test_a_known_type_has_nothing_to_note() -> None:
    assert describe_completion({"model_type": "gpt2"}).notes == ()


def test_the_given_configuration_is_not_changed() -> None:
    given_config: dict[str, Any] = {"model_type": "clip", "text_config": {"num_hidden_layers": 4}}
    before = json.dumps(given_config)
    complete_config(given_config)
    assert json.dumps(given_config) == before


def test_completing_twice_changes_nothing() -> None:
    for case in CASES:
        once = complete_config(case["given"])
        assert complete_config(once) == once


KEYS = st.sampled_from(
    """
    hidden_size n_embd num_hidden_layers num_layers num_attention_heads num_key_value_heads vocab_size head_dim
    layer_types text_config id2label rope_scaling sliding_window use_sliding_window max_window_layers architectures
    is_encoder_decoder pos_att_type depths embed_dim feed_forward_proj patch_size attention_types no_rope_layers
    no_rope_layer_interval kv_lora_rank qk_rope_head_dim
    """.split()
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-8, 8192)
    | st.floats(allow_nan=False)
    | st.sampled_from(["gelu", "x|y", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
MODEL_TYPES = st.sampled_from([*sorted(known_model_types()), "unheard-of"])


@pytest.mark.property
@given(model_type=MODEL_TYPES, keys=st.dictionaries(KEYS, VALUES, max_size=8))
def test_any_configuration_is_answered_or_refused_in_words(model_type: str, keys: dict[str, Any]) -> None:
    try:
        completed = complete_config({"model_type": model_type, **keys})
    except ScenarioError as error:
        assert error.field == "model"  # noqa: PT017  # both outcomes are right
        assert error.message  # noqa: PT017
    else:
        assert completed["model_type"] in known_model_types()
