"""What transformers derives from a configuration's keys.

The library's configuration classes compute some values from others where these are absent (key/value heads, the
feed-forward width, which layers attend in a window). `derive` does the same; ``tests/data/config_cases.json`` holds
what the library itself made of the same files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.catalog.config_keys import FIELD
from calc.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Keys that take another key's value where they are not given.
_SAME_AS = {
    "pooler_output_size": "hidden_size",
    "output_hidden_size": "hidden_size",
    "embedding_size": "hidden_size",
    "projection_size": "hidden_size",
    "word_embed_proj_dim": "hidden_size",
    "decoder_vocab_size": "vocab_size",
}


def derive(config: dict[str, Any], model_type: str, *, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Set what the library's class for ``model_type`` computes from other keys, in place.

    Parameters
    ----------
    config : dict
        Defaults and given keys together.
    model_type : str
        Whose rules apply.
    given : Mapping
        The given keys alone, for the rules that ask whether a key was stated.
    defaults : Mapping
        The type's own keys; others pass through untouched.
    """
    _fill_absent(config, defaults)
    if model_type.startswith("qwen") and "use_sliding_window" in defaults and not config["use_sliding_window"]:
        config["sliding_window"] = 0 if model_type == "qwen2_moe" else None
    if "feed_forward_proj" in defaults:
        _t5_family(config)
    # These classes tie always; an untied published T5 1.1 only means that decoder outputs are not scaled.
    if model_type in {"t5", "longt5"} and "scale_decoder_outputs" not in given:
        config["scale_decoder_outputs"] = given.get("tie_word_embeddings") is not False
    if model_type in _BY_TYPE:
        _BY_TYPE[model_type](config)
    if "layer_types" in defaults and config["layer_types"] is None:
        config["layer_types"] = _layer_types(config, model_type)


def _fill_absent(config: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Give keys that stand for another one, and are absent, that one's value."""
    heads = config.get("num_attention_heads")
    for key in ("num_key_value_heads", "num_kv_heads"):
        if key in defaults and config[key] is None:
            config[key] = heads
    if "head_dim" in defaults and config["head_dim"] is None:
        config["head_dim"] = config["hidden_size"] // heads
    for key, source in _SAME_AS.items():
        if key in defaults and config[key] is None:
            config[key] = config[source]
    if "mlp_only_layers" in defaults and config["mlp_only_layers"] is None:
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


def _deberta(config: dict[str, Any]) -> None:
    kinds = config["pos_att_type"]
    if isinstance(kinds, str):
        kinds = config["pos_att_type"] = [part.strip() for part in kinds.lower().split("|")]
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise ScenarioError(FIELD, f"pos_att_type must be a text such as 'c2p|p2c', or a list of such, not {kinds!r}")


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


def _ernie_moe(config: dict[str, Any]) -> None:
    if config["moe_layer_end_index"] == -1:
        config["moe_layer_end_index"] = config["num_hidden_layers"] - 1


_BY_TYPE: dict[str, Callable[[dict[str, Any]], None]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "ernie4_5_moe": _ernie_moe,
    "falcon": _falcon,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "deberta": _deberta,
    "deberta-v2": _deberta,
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
    if model_type in {"dots1", "ministral", "qwen2", "qwen3"}:
        first = config.get("max_window_layers", 0) if config["sliding_window"] is not None else layers
        return ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    if model_type == "qwen2_moe":
        last = config["max_window_layers"] if config["use_sliding_window"] else 0
        return ["sliding_attention" if (i + 1) % 2 and i < last else "full_attention" for i in range(layers)]
    if model_type in {"cwm", "modernbert"}:
        period = config.get("global_attn_every_n_layers", 4 if model_type == "cwm" else 3)
        return ["sliding_attention" if i % period else "full_attention" for i in range(layers)]
    period = {
        "exaone4": 1 if config.get("sliding_window") is None else config.get("sliding_window_pattern", 4),
        "gemma2": 2,
        "vaultgemma": 2,
        "t5_gemma_module": 2,
        "gpt_oss": 2,
        "gemma3_text": config.get("sliding_window_pattern", 6),
        "cohere2": config.get("sliding_window_pattern", 4),
        "olmo3": 4,
    }.get(model_type)
    if period is None:
        return None
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]
