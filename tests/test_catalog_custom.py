"""A model by hand: a stated rule, counts that come out, refusals in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.catalog.custom import infer_config, infer_shape, is_by_hand
from calc.errors import ScenarioError


@pytest.mark.parametrize(
    ("spec", "published"),
    [
        # Hugging Face's totals of the weight files.
        ({"layers": 32, "hidden_size": 4096, "feed_forward_size": 11008}, 6_738_415_616),  # Llama 2 7B
        ({"layers": 40, "hidden_size": 5120, "feed_forward_size": 13824}, 13_015_864_320),  # Llama 2 13B
        (
            {"layers": 80, "hidden_size": 8192, "heads": 64, "kv_heads": 8, "intermediate_size": 28672},
            68_976_648_192,  # Llama 2 70B
        ),
        (
            {
                "layers": 16,
                "hidden_size": 2048,
                "heads": 32,
                "kv_heads": 8,
                "intermediate_size": 8192,
                "vocab_size": 128256,
                "tie_word_embeddings": True,
            },
            1_235_814_400,  # Llama 3.2 1B
        ),
    ],
)
def test_stated_sizes_give_the_published_count(spec: dict[str, Any], published: int) -> None:
    assert infer_shape(spec).parameters == published


def test_llama_2_7b_is_recovered_from_its_count() -> None:
    config = infer_config({"parameters": 6_738_415_616})
    assert (config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]) == (32, 4096, 32)
    assert config["intermediate_size"] == 11008
    assert config["model_type"] == "llama"


def test_feed_forward_width_makes_the_count_come_out() -> None:
    shape = infer_shape({"parameters": 7e9, "layers": 32, "hidden_size": 4096})
    assert shape.parameters == pytest.approx(7e9, rel=0.002)


@pytest.mark.property
@given(parameters=st.integers(10**7, 10**13))
def test_any_count_is_met_within_two_percent(parameters: int) -> None:
    shape = infer_shape({"parameters": parameters})
    assert shape.parameters == pytest.approx(parameters, rel=0.02)
    assert shape.hidden_size % shape.heads == 0


@pytest.mark.property
@given(
    layers=st.integers(1, 200),
    heads=st.integers(1, 64),
    head_dim=st.sampled_from([16, 64, 80, 128]),
    groups=st.sampled_from([1, 2, 4]),
)
def test_stated_sizes_are_kept(layers: int, heads: int, head_dim: int, groups: int) -> None:
    heads *= groups
    config = infer_config(
        {"layers": layers, "hidden_size": heads * head_dim, "heads": heads, "kv_heads": heads // groups}
    )
    assert config["num_hidden_layers"] == layers
    assert config["head_dim"] == head_dim
    assert config["num_key_value_heads"] == heads // groups


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, "layers and hidden_size"),
        ({"layers": 12}, "hidden_size"),
        ({"parameters": 0}, "parameters"),
        ({"parameters": "7b"}, "parameters"),
        ({"parameters": True}, "parameters"),
        ({"parameters": float("nan")}, "parameters"),
        ({"parameters": 100_000}, "vocabulary"),
        ({"parameters": 1e14}, "parameters"),
        ({"parameters": 7e9, "layers": -1}, "layers"),
        ({"layers": 2, "hidden_size": 100, "heads": 7}, "heads"),
        ({"layers": 2, "hidden_size": 128, "heads": 8, "kv_heads": 3}, "kv_heads"),
        ({"layers": 2, "hidden_size": 128, "depth": 3}, "depth"),
        ({"layers": 2, "hidden_size": 128, "tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"parameters": 7e9, "layers": 2, "hidden_size": 128, "feed_forward_size": 512}, "parameters"),
        ({"parameters": 1e8, "layers": 96, "hidden_size": 12288}, "parameters"),
    ],
)
def test_what_is_wrong_is_named(spec: dict[str, Any], named: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        infer_config(spec)
    assert caught.value.field == "model"
    assert named in caught.value.message


def test_a_model_by_hand_is_told_from_a_configuration() -> None:
    assert is_by_hand({"parameters": 7e9})
    assert is_by_hand({"layers": 12, "hidden_size": 768})
    assert not is_by_hand({"model_type": "llama", "layers": 12})
    assert not is_by_hand({"hidden_size": 768, "num_hidden_layers": 12})
