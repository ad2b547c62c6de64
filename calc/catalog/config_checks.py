"""What no configuration may hold: wrong kinds of values, absurd sizes, heads that do not divide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calc.catalog.config_keys import (
    EXPERT_KEYS,
    FEED_FORWARD_KEYS,
    FIELD,
    HEAD_KEYS,
    KEY_VALUE_HEAD_KEYS,
    LAYER_KEYS,
    WIDTH_KEYS,
    first_of,
)
from calc.errors import ScenarioError

_MAX_BY_KEY = {
    **dict.fromkeys((*LAYER_KEYS, "decoder_layers", "num_decoder_layers", "num_single_layers"), 10_000),
    **dict.fromkeys((*WIDTH_KEYS, *FEED_FORWARD_KEYS, "decoder_ffn_dim", "moe_intermediate_size"), 1_000_000),
    "shared_expert_intermediate_size": 1_000_000,
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "hidden_dim", "projection_dim"), 1_000_000),
    **dict.fromkeys((*HEAD_KEYS, *KEY_VALUE_HEAD_KEYS, "decoder_attention_heads"), 100_000),
    **dict.fromkeys((*EXPERT_KEYS, "num_experts_per_tok"), 100_000),
    **dict.fromkeys(("head_dim", "d_kv", "kv_lora_rank", "q_lora_rank", "v_head_dim"), 100_000),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim"), 100_000),
    **dict.fromkeys(("no_rope_layer_interval", "sliding_window_pattern", "global_attn_every_n_layers"), 10_000),
    **dict.fromkeys(("vocab_size", "num_labels"), 100_000_000),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 1_000_000_000),
    **dict.fromkeys(("patch_size", "num_channels", "num_mel_bins"), 10_000),
    "image_size": 100_000,
}
_MAY_BE_NULL = {*KEY_VALUE_HEAD_KEYS, "head_dim", "q_lora_rank"}
_RATE_SUFFIXES = ("dropout", "dropout_prob", "dropout_rate", "_pdrop", "layerdrop", "drop_path_rate")
_NO_RATES = ("token_dropout",)  # a switch of ESM
_MAX_STAGES = 10
_KIND_OF_NULL_DEFAULTS = {
    "layer_types": "a list",
    "no_rope_layers": "a list",
    "attention_types": "a list",
    "mlp_only_layers": "a list",
    "sliding_window": "a number",
    "rope_parameters": "an object",
    "rope_scaling": "an object",
}
_ROUNDS_HEADS_DOWN = ("glm4_moe",)
"""Whose own defaults are heads that do not divide the width; published configurations state head_dim."""
_HEIGHT_AND_WIDTH = ("image_size", "patch_size")
# Diffusion models may give each resolution its own value.
_PER_STAGE = (
    "attention_head_dim",
    "num_attention_heads",
    "transformer_layers_per_block",
    "layers_per_block",
    "cross_attention_dim",
    "only_cross_attention",
)
_ENTRY_PER_STAGE = {
    "hidden_sizes": "depths",
    "num_heads": "depths",
    "down_block_types": "block_out_channels",
    "up_block_types": "block_out_channels",
    **dict.fromkeys(_PER_STAGE, "block_out_channels"),
}
"""Keys whose lists hold one entry for each stage, and the key that tells the stages."""


def is_diffusers(model_type: str) -> bool:
    """Tell whether a model type is a diffusers class, which has no ``model_type``, but a class name."""
    return model_type[:1].isupper()


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "an object" if isinstance(value, Mapping) else "a list"


def without_empty(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given keys without those whose null stands for the default: switches, texts, lists and objects."""
    return {
        key: value
        for key, value in given.items()
        if value is not None or key not in defaults or defaults[key] is None or _kind(defaults[key]) == "a number"
    }


def check_values(config: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse values of another kind than the library's default, sizes out of range, and rates outside 0 to 1.

    Whole numbers written with a decimal point become integers, in place.

    Raises
    ------
    ScenarioError
        Field ``model``; the message names the key and what is allowed.
    """
    several = _PER_STAGE if is_diffusers(str(config["model_type"])) else _HEIGHT_AND_WIDTH
    for key, value in config.items():
        known = key in defaults or key in _KIND_OF_NULL_DEFAULTS
        if known and not (key in several and isinstance(value, list | tuple)):
            _check_kind(key, value, defaults.get(key))
        optional = defaults.get(key) is None
        if key.endswith(_RATE_SUFFIXES) and key not in _NO_RATES and not (value is None and optional):
            if _kind(value) != "a number" or not 0 <= value < 1:
                raise ScenarioError(FIELD, f"{key} must be at least 0 and below 1, not {value!r}")
        elif isinstance(value, list | tuple) and (key in several or isinstance(defaults.get(key), list | tuple)):
            _check_sizes(key, value)
        elif key in _MAX_BY_KEY and (value is not None or not (optional or key in _MAY_BE_NULL)):
            config[key] = _whole_number(key, value)
    layers = first_of(config, LAYER_KEYS)
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list) and len(layer_types) != layers:
        raise ScenarioError(FIELD, f"layer_types has {len(layer_types)} entries for {layers} layers")
    for key, stages in _ENTRY_PER_STAGE.items():
        _check_entries(config, key, stages)


def _check_entries(config: Mapping[str, Any], key: str, stages: str) -> None:
    """Refuse a list that does not have an entry for each of a model's stages."""
    entries, per_stage = config.get(key), config.get(stages)
    if not isinstance(entries, list | tuple) or not isinstance(per_stage, list | tuple):
        return
    if len(entries) != len(per_stage):
        raise ScenarioError(FIELD, f"{key} must have as many entries as {stages}, {len(per_stage)}, not {len(entries)}")


def _check_kind(key: str, value: Any, default: Any) -> None:
    wanted = _KIND_OF_NULL_DEFAULTS.get(key) if default is None else _kind(default)
    if value is None or wanted is None or _kind(value) == wanted:
        return
    raise ScenarioError(FIELD, f"{key} must be {wanted}, not {value!r}")


def _check_sizes(key: str, values: list[Any] | tuple[Any, ...]) -> None:
    """Refuse stages (of vision models) that are no positive whole numbers."""
    if key not in {"depths", "hidden_sizes", "num_heads", *_HEIGHT_AND_WIDTH}:
        return
    whole = all(isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1_000_000 for value in values)
    if not 1 <= len(values) <= _MAX_STAGES or not whole:
        raise ScenarioError(FIELD, f"{key} must be a list of 1 to {_MAX_STAGES} positive whole numbers, not {values!r}")


def _whole_number(key: str, value: Any) -> int:
    if _kind(value) != "a number" or value != value // 1:
        raise ScenarioError(FIELD, f"{key} must be a whole number, not {'null' if value is None else repr(value)}")
    if not 1 <= value <= _MAX_BY_KEY[key]:
        raise ScenarioError(FIELD, f"{key} must be from 1 to {_MAX_BY_KEY[key]:,}, not {value!r}")
    return int(value)


def check_heads(config: Mapping[str, Any], model_type: str) -> None:
    """Refuse heads that do not divide, before anything is derived from them.

    Raises
    ------
    ScenarioError
        Field ``model``; the message names both keys.
    """
    if is_diffusers(model_type):
        return  # diffusers states head sizes directly
    width_key = next((key for key in ("hidden_size", "n_embd", "d_model") if isinstance(config.get(key), int)), None)
    states_head_size = any(config.get(key) is not None for key in ("head_dim", "d_kv", "d_head", "kv_channels"))
    if width_key is not None and not states_head_size and model_type not in _ROUNDS_HEADS_DOWN:
        for key in (*HEAD_KEYS, "decoder_attention_heads"):
            if isinstance(config.get(key), int) and config[width_key] % config[key]:
                raise ScenarioError(
                    FIELD, f"{key} ({config[key]}) does not divide {width_key} ({config[width_key]}); give head_dim too"
                )
    heads = first_of(config, HEAD_KEYS)
    if isinstance(heads, int) and "kv_lora_rank" not in config:  # latent attention keeps no key/value heads
        for key in KEY_VALUE_HEAD_KEYS:
            if isinstance(config.get(key), int) and heads % config[key]:
                raise ScenarioError(FIELD, f"{key} ({config[key]}) does not divide the attention heads ({heads})")
    per_token, experts = config.get("num_experts_per_tok"), first_of(config, EXPERT_KEYS)
    if isinstance(per_token, int) and isinstance(experts, int) and per_token > experts:
        raise ScenarioError(FIELD, f"num_experts_per_tok ({per_token}) is more than the experts ({experts})")
