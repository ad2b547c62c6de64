"""What configurations call their sizes: the same quantity has a name per family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELD = "model"
"""The scenario's field that every refusal of a configuration names."""

# Most usual first.
WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "model_dim")
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "depth")
HEAD_KEYS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "attention_heads",
    "encoder_attention_heads",
)
FEED_FORWARD_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "encoder_ffn_dim")
KEY_VALUE_HEAD_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num")
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def first_of(config: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """Return the first of some keys' values that is given, or None."""
    return next((config[key] for key in keys if config.get(key) is not None), None)
