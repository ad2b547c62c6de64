"""Whatever JSON is given as a scenario ends in a result or in an error that names a field; nothing else is raised."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calc.__main__ import answer as answer_one
from calc.evaluation import evaluate
from calc.scenario import KEYS
from tests.property.drawing import PARALLELISM

pytestmark = pytest.mark.property

EXAMPLES = settings(max_examples=2000 if os.environ.get("THOROUGH") else 150, suppress_health_check=list(HealthCheck))

ODD_VALUES: list[Any] = [
    None, "", " ", "abc", "0", "1e308", 0, -0.0, -1, 1, 1.0, 1.5, 10**30, 10**400, 1e308, -1e308, 1e-308, math.nan,
    math.inf, -math.inf, True, False, [], [1], ["q_proj"], [None], [[1]], {}, {"a": 1}, {"id": 3}, {"strategy": "ddp"},
    {"memory_gib": 24}, "gpt2",
]  # fmt: skip

FULL: dict[str, Any] = {
    "model": "gpt2",
    "task": "causal-lm",
    "sequence_length": 64,
    "target_length": 64,
    "image_size": 224,
    "audio_frames": 3000,
    "precision": "bf16",
    "optimizer": "adamw",
    "checkpointing": "none",
    "attention": "sdpa",
    "loss": "standard",
    "method": "lora",
    "lora_rank": 4,
    "lora_targets": "all-linear",
    "zero_grad": "free",
    "gpu": "h100-sxm-80gb",
    "gpus": 2,
    "nodes": 1,
    "parallelism": {"strategy": "ddp"},
    "global_batch": 16,
    "micro_batch": 2,
    "epochs": 1,
    "tokens": 1e9,
}
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "head_dim": 16,
    "attention_dropout": 0.0,
    "rope_scaling": None,
}
BY_HAND: dict[str, Any] = {
    "parameters": 1e8,
    "layers": 4,
    "hidden_size": 64,
    "heads": 4,
    "key_value_heads": 2,
    "feed_forward_size": 256,
    "vocabulary": 1000,
}


def answer(scenario: Any) -> None:
    result = answer_one(scenario, evaluate)
    json.dumps(result, allow_nan=False)
    if "error" in result:
        assert result["error"]["field"]
        assert len(result["error"]["message"]) > 5


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_an_odd_value_in_any_field(key: str, value: Any) -> None:
    answer({**FULL, key: value})


@pytest.mark.parametrize("key", [*CONFIG, "quantization_config", "text_config", "auto_map"])
@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_an_odd_value_in_a_config(key: str, value: Any) -> None:
    answer({"model": {**CONFIG, key: value}, "sequence_length": 16, "gpu": {"memory_gib": 1}})


@pytest.mark.parametrize("key", BY_HAND)
@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_an_odd_value_in_a_model_by_hand(key: str, value: Any) -> None:
    answer({"model": {**BY_HAND, key: value}, "sequence_length": 16, "gpu": {"memory_gib": 1}})


@pytest.mark.parametrize("key", ["id", "memory_gib", "overhead_gib"])
@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_an_odd_value_in_a_gpu(key: str, value: Any) -> None:
    answer({"model": "gpt2", "sequence_length": 16, "gpu": {"memory_gib": 8, key: value}})
    answer({"model": "gpt2", "sequence_length": 16, "gpu": {key: value}})


@pytest.mark.parametrize(
    "key", ["strategy", "tensor", "pipeline", "context", "expert", "cpu_offload", "sequence_parallel"]
)
@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_an_odd_value_in_a_parallelism(key: str, value: Any) -> None:
    answer({"model": "gpt2", "sequence_length": 16, "gpu": "h100-sxm-80gb", "gpus": 4, "parallelism": {key: value}})


@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_an_odd_scenario(value: Any) -> None:
    answer(value)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(ODD_VALUES)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from([*KEYS, *CONFIG, *BY_HAND]), st.text(max_size=5)), inner, max_size=4),
    ),
    max_leaves=8,
)


@EXAMPLES
@given(JSON)
def test_any_json(value: Any) -> None:
    answer(value)


@EXAMPLES
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_any_json_in_any_fields(changes: dict[str, Any]) -> None:
    answer({**FULL, **changes})


@EXAMPLES
@given(
    st.dictionaries(st.sampled_from(list(CONFIG)), JSON, max_size=3),
    st.sampled_from(["llama", "gpt2", "bert", "t5", "vit"]),
)
def test_any_json_in_a_config(changes: dict[str, Any], model_type: str) -> None:
    answer({"model": {"model_type": model_type, **CONFIG, **changes}, "sequence_length": 16, "gpu": {"memory_gib": 1}})


@EXAMPLES
@given(st.integers(-2, 1000), st.sampled_from(PARALLELISM), st.integers(-1, 300))
def test_any_number_of_gpus(gpus: int, parallelism: dict[str, Any], nodes: int) -> None:
    answer(
        {
            "model": "gpt2",
            "sequence_length": 16,
            "gpu": "h100-sxm-80gb",
            "gpus": gpus,
            "nodes": nodes,
            "parallelism": parallelism,
        }
    )
