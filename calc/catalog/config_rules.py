"""What transformers derives from a configuration's keys, and what no configuration may hold.

The library's configuration classes compute some values from others where these are absent (key/value heads, the
feed-forward width, which layers attend in a window). `derive` does the same; ``tests/data/config_cases.json`` holds
what the library itself made of the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calc.errors import ScenarioError

FIELD = "model"

# The same quantity under the names that different families give it, most usual first.
WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "model_dim")
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "depth")
HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
FEED_FORWARD_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "encoder_ffn_dim")
KEY_VALUE_HEAD_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num")
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

# Keys that take another key's value where they are not given.
_SAME_AS = {
    "pooler_output_size": "hidden_size",
    "output_hidden_size": "hidden_size",
    "embedding_size": "hidden_size",
    "projection_size": "hidden_size",
    "word_embed_proj_dim": "hidden_size",
    "decoder_vocab_size": "vocab_size",
}
_MAX_BY_KEY = {
    **dict.fromkeys((*WIDTH_KEYS, *FEED_FORWARD_KEYS), 1_000_000),
    **dict.fromkeys((*LAYER_KEYS, "decoder_layers", "num_decoder_layers", "num_single_layers"), 10_000),
    **dict.fromkeys((*HEAD_KEYS, *KEY_VALUE_HEAD_KEYS, "decoder_attention_heads"), 100_000),
    **dict.fromkeys(EXPERT_KEYS, 100_000),
    "decoder_ffn_dim": 1_000_000,
    "moe_intermediate_size": 1_000_000,
    "head_dim": 100_000,
    "d_kv": 100_000,
    "embedding_size": 1_000_000,
    "vocab_size": 100_000_000,
    "max_position_embeddings": 1_000_000_000,
    "n_positions": 1_000_000_000,
    "num_experts_per_tok": 100_000,
    "patch_size": 10_000,
    "image_size": 100_000,
    "num_channels": 10_000,
    "num_labels": 100_000_000,
    "num_mel_bins": 10_000,
}
_RATE_SUFFIXES = ("dropout", "dropout_prob", "dropout_rate", "_pdrop", "layerdrop", "drop_path_rate")
_NO_RATES = ("token_dropout",)  # a switch of ESM


def first_of(config: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """Return the first of some keys' values that is given, or None."""
    return next((config[key] for key in keys if config.get(key) is not None), None)


def derive(config: dict[str, Any], model_type: str, given: Mapping[str, Any]) -> None:
    """Set what the library's class for ``model_type`` computes from other keys, in place.

    Parameters
    ----------
    config : dict
        Defaults and given keys together.
    model_type : str
        Whose rules apply.
    given : Mapping
        The given keys alone, for the rules that ask whether a key was stated.
    """
    _fill_absent(config)
    if model_type.startswith("qwen") and not config.get("use_sliding_window", True):
        config["sliding_window"] = 0 if model_type == "qwen2_moe" else None
    if "feed_forward_proj" in config:
        _t5_family(config)
    # These classes tie always; an untied published T5 1.1 only means that decoder outputs are not scaled.
    if model_type in {"t5", "longt5"}:
        config["scale_decoder_outputs"] = given.get("tie_word_embeddings") is not False
    if model_type in _BY_TYPE:
        _BY_TYPE[model_type](config)
    if "layer_types" in config and config["layer_types"] is None:
        config["layer_types"] = _layer_types(config, model_type)


def _fill_absent(config: dict[str, Any]) -> None:
    """Give keys that stand for another one, and are absent, that one's value."""
    heads = config.get("num_attention_heads")
    for key in ("num_key_value_heads", "num_kv_heads"):
        if key in config and config[key] is None:
            config[key] = heads
    if "head_dim" in config and config["head_dim"] is None and isinstance(heads, int) and "hidden_size" in config:
        config["head_dim"] = config["hidden_size"] // heads
    for key, source in _SAME_AS.items():
        if key in config and config[key] is None:
            config[key] = config[source]
    if "mlp_only_layers" in config and config["mlp_only_layers"] is None:
        config["mlp_only_layers"] = []


def _t5_family(config: dict[str, Any]) -> None:
    if config.get("num_decoder_layers") is None:
        config["num_decoder_layers"] = config["num_layers"]
    parts = str(config["feed_forward_proj"]).split("-")
    config["dense_act_fn"] = "gelu_new" if config["feed_forward_proj"] == "gated-gelu" else parts[-1]
    config["is_gated_act"] = parts[0] == "gated"
    config["tie_word_embeddings"] = True


def _deepseek(config: dict[str, Any]) -> None:
    config["qk_head_dim"] = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    config["head_dim"] = config["qk_rope_head_dim"]


def _falcon(config: dict[str, Any]) -> None:
    config["ffn_hidden_size"] = config["ffn_hidden_size"] or 4 * config["hidden_size"]


def _gpt_bigcode(config: dict[str, Any]) -> None:
    config["num_key_value_heads"] = 1 if config["multi_query"] else config["n_head"]


def _gpt_neo(config: dict[str, Any]) -> None:
    if config["attention_types"] is None:
        config["attention_types"] = [[["global", "local"], config["num_layers"] // 2]]


def _deberta_v2(config: dict[str, Any]) -> None:
    if isinstance(config["pos_att_type"], str):
        config["pos_att_type"] = [part.strip() for part in config["pos_att_type"].lower().split("|")]


def _swin(config: dict[str, Any]) -> None:
    config["hidden_size"] = config["embed_dim"] * 2 ** (len(config["depths"]) - 1)


def _smollm3(config: dict[str, Any]) -> None:
    interval = config["no_rope_layer_interval"]
    if config["no_rope_layers"] is None:
        config["no_rope_layers"] = [int((i + 1) % interval != 0) for i in range(config["num_hidden_layers"])]


def _t5gemma(config: dict[str, Any]) -> None:
    shared = {key: config[key] for key in ("dropout_rate", "attention_dropout")}
    width = config["encoder"]["hidden_size"]
    config["encoder"] |= {"is_decoder": False, **shared}
    config["decoder"] |= {"is_decoder": True, "cross_attention_hidden_size": width, **shared}


_BY_TYPE: dict[str, Callable[[dict[str, Any]], None]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "falcon": _falcon,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "deberta-v2": _deberta_v2,
    "swin": _swin,
    "swinv2": _swin,
    "smollm3": _smollm3,
    "t5gemma": _t5gemma,
}


def _layer_types(config: Mapping[str, Any], model_type: str) -> list[str] | None:
    """Return which layers attend in a window only, as the library's class for this type lays them out."""
    layers = config["num_hidden_layers"]
    if model_type == "smollm3":
        windowed = config["use_sliding_window"] and config["sliding_window"] is not None
        return ["sliding_attention" if windowed and not has else "full_attention" for has in config["no_rope_layers"]]
    if model_type in {"qwen2", "qwen3"}:
        first = config["max_window_layers"] if config["sliding_window"] is not None else layers
        return ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    if model_type == "qwen2_moe":
        last = config["max_window_layers"] if config["use_sliding_window"] else 0
        return ["sliding_attention" if (i + 1) % 2 and i < last else "full_attention" for i in range(layers)]
    if model_type == "modernbert":
        period = config.get("global_attn_every_n_layers", 3)
        return ["sliding_attention" if i % period else "full_attention" for i in range(layers)]
    period = {
        "gemma2": 2,
        "t5_gemma_module": 2,
        "gpt_oss": 2,
        "gemma3_text": config.get("sliding_window_pattern", 6),
        "cohere2": config.get("sliding_window_pattern", 4),
        "olmo3": 4,
    }.get(model_type)
    if period is None:
        return None
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]


def check_numbers(config: dict[str, Any]) -> None:
    """Refuse sizes that are no positive whole number and rates outside 0 to 1; whole floats become integers.

    Raises
    ------
    ScenarioError
        Field ``model``; the message names the key and what is allowed.
    """
    for key, value in config.items():
        if value is None or isinstance(value, str | list | tuple | Mapping):
            if key in _MAX_BY_KEY and isinstance(value, str | Mapping):
                raise ScenarioError(FIELD, f"{key} must be a whole number, not {value!r}")
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if key.endswith(_RATE_SUFFIXES) and key not in _NO_RATES:
            if not number or not 0 <= value < 1:
                raise ScenarioError(FIELD, f"{key} must be at least 0 and below 1, not {value!r}")
        elif key in _MAX_BY_KEY:
            if not number or value != value // 1:
                raise ScenarioError(FIELD, f"{key} must be a whole number, not {value!r}")
            if not 1 <= value <= _MAX_BY_KEY[key]:
                raise ScenarioError(FIELD, f"{key} must be from 1 to {_MAX_BY_KEY[key]:,}, not {value!r}")
            config[key] = int(value)


def check_heads(config: Mapping[str, Any], model_type: str) -> None:
    """Refuse heads that do not divide, before anything is derived from them.

    Raises
    ------
    ScenarioError
        Field ``model``; the message names both keys.
    """
    if model_type[0].isupper():
        return  # diffusers states head sizes directly
    width_key = next((key for key in ("hidden_size", "n_embd", "d_model") if isinstance(config.get(key), int)), None)
    states_head_size = any(config.get(key) is not None for key in ("head_dim", "d_kv", "d_head", "kv_channels"))
    if width_key is not None and not states_head_size:
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
