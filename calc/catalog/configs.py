"""Hugging Face configurations: read, checked, and completed with what the library takes where a key is absent.

A published ``config.json`` leaves out what equals its class's default, and older ones use other names for some keys.
`complete_config` returns every key that shapes the model, under the names that the model's own code reads. Defaults
are data (``config_defaults.json``, written by ``tools/update_config_defaults.py`` from the library itself); what the
library derives from other keys is in `_derive`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from calc.errors import ScenarioError

MAX_CONFIG_BYTES = 1_000_000
FIELD = "model"

# The same quantity under the names that different families give it, most usual first.
WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "model_dim")
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "depth")
HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
FEED_FORWARD_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "encoder_ffn_dim", "ff_dim")
KEY_VALUE_HEAD_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num")
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

# Names from before the library's present ones, still found in published files.
_OLD_NAMES: dict[str, dict[str, str]] = {
    "bloom": {"n_embed": "hidden_size"},
    "falcon": {"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"},
    "gpt_neox": {"rotary_pct": "partial_rotary_factor"},
    "codegen": {"n_ctx": "n_positions"},
}
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
_DROPOUT_SUFFIXES = ("dropout", "dropout_prob", "dropout_rate", "_pdrop", "layerdrop", "drop_path_rate")
_NO_RATES = ("token_dropout",)  # a switch of ESM

# Files that people mistake for a model's configuration: a key that gives them away, and what to do.
_OTHER_FILES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("tokenizer_class", "added_tokens_decoder"),
        "this is a tokenizer_config.json. Paste the model's config.json, which lies beside it",
    ),
    (("added_tokens", "normalizer"), "this is a tokenizer.json. Paste the model's config.json, which lies beside it"),
    (
        ("image_processor_type", "feature_extractor_type", "processor_class"),
        "this is a preprocessor's configuration. Paste the model's config.json, which lies beside it",
    ),
    (
        ("peft_type",),
        "this is an adapter's configuration. Paste the config.json of the base model that it names "
        "(base_model_name_or_path), and choose LoRA as the method",
    ),
    (("weight_map",), "this is the index of the weight files. Paste the model's config.json, which lies beside it"),
    (
        ("train_micro_batch_size_per_gpu", "zero_optimization"),
        "this is a DeepSpeed configuration. Paste the model's config.json",
    ),
    (
        ("num_train_timesteps", "beta_schedule"),
        "this is a diffusion scheduler's configuration. Paste unet/config.json or transformer/config.json",
    ),
    (
        ("pretrained_cfg",),
        "this is a timm configuration, which names an architecture but not its sizes. Choose the torchvision model of "
        "the same name from the list, or paste a transformers config.json",
    ),
)
_TOKEN_OPTIONS = ("max_new_tokens", "temperature", "top_p", "top_k", "eos_token_id")


@dataclass(frozen=True)
class CompletedConfig:
    """A configuration with every key that shapes the model.

    Attributes
    ----------
    config : dict
        The completed configuration; ``model_type`` is one that `known_model_types` lists.
    notes : tuple of str
        What was assumed on the way, in sentences for the reader. Empty where nothing was.
    """

    config: dict[str, Any]
    notes: tuple[str, ...] = ()


@cache
def _data() -> dict[str, Any]:
    text = resources.files("calc.catalog").joinpath("config_defaults.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def known_model_types() -> frozenset[str]:
    """Return every ``model_type`` (and diffusers class) whose defaults are known."""
    return frozenset(_data()["model_types"])


def defaults_source() -> str:
    """Return which libraries and versions the defaults come from."""
    return str(_data()["source"])


def parse_config_text(text: str) -> dict[str, Any]:
    """Return the object that a pasted or dropped ``config.json`` holds.

    Raises
    ------
    ScenarioError
        Where the text is too long, no JSON, no object, or what ``print(model)`` shows.
    """
    if len(text.encode("utf-8", "replace")) > MAX_CONFIG_BYTES:
        raise ScenarioError(FIELD, "the text is longer than 1 MB; a config.json is a few kilobytes")
    stripped = text.lstrip("\ufeff \t\r\n")
    if not stripped:
        raise ScenarioError(FIELD, "nothing was given. Paste the content of a config.json")
    head = stripped.split("\n", 1)[0].strip()
    if not stripped.startswith(("{", "[", '"')) and head.endswith("(") and head[:-1].isidentifier():
        raise ScenarioError(
            FIELD,
            "this is what print(model) shows; it lacks what the calculation needs, such as the number of heads. "
            "Use print(model.config.to_json_string()) and paste that",
        )
    if stripped.startswith(head.split(" ", 1)[0]) and head.endswith("Config {"):
        stripped = stripped.split(" ", 1)[1]  # print(model.config): the class's name, then JSON
    try:
        value = json.loads(stripped, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ScenarioError(
            FIELD, f"this is no JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise ScenarioError(FIELD, "this JSON is nested too deeply for a config.json") from None
    if not isinstance(value, dict):
        raise ScenarioError(FIELD, "a config.json is one JSON object: { ... }")
    return value


def _refuse_constant(name: str) -> float:
    raise ScenarioError(FIELD, f"{name} is no JSON number")


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with every key that shapes the model, under its model type's own names.

    Parameters
    ----------
    config : Mapping
        The content of a ``config.json`` of transformers, or of a diffusers model (with ``_class_name``).

    Returns
    -------
    dict
        ``model_type`` is one that `known_model_types` lists; for a diffusers model it is the class's name. Keys that
        are not known are kept as they are.

    Raises
    ------
    ScenarioError
        Field ``model``; the message names the key that is missing or wrong.
    """
    return describe_completion(config).config


def describe_completion(config: Mapping[str, Any]) -> CompletedConfig:
    """Return the completed configuration and what was assumed to complete it; see `complete_config`."""
    given, notes = _unwrap(config)
    model_type = _model_type(given)
    if model_type is None or model_type not in known_model_types():
        given, note = _as_relative(given, model_type)
        notes = (*notes, note)
        model_type = str(given["model_type"])
    return CompletedConfig(_complete(given, model_type), notes)


def _model_type(config: Mapping[str, Any]) -> str | None:
    class_name = config.get("_class_name")
    value = config.get("model_type") if class_name is None else class_name
    if value is None:
        return None
    if not isinstance(value, str):
        raise ScenarioError(FIELD, f"model_type must be a text such as 'llama', not {value!r}")
    return value


def _unwrap(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Refuse other files; take the language model out of a multimodal configuration."""
    given = dict(config)
    model_type = _model_type(given)
    if model_type is None or (model_type not in known_model_types() and "_class_name" in given):
        _refuse_other_files(given)
    if model_type in known_model_types():
        return given, ()
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        part = given.get(key)
        if isinstance(part, Mapping):
            text_type = part.get("model_type") or _data()["text_parts"].get(model_type)
            inner, notes = _unwrap({**part, "model_type": text_type} if text_type else part)
            if "tie_word_embeddings" in given:
                inner.setdefault("tie_word_embeddings", given["tie_word_embeddings"])
            note = f"Only the language model ({key}) of this {model_type or 'multimodal'} model is counted."
            return inner, (note, *notes)
    return given, ()


def _refuse_other_files(config: Mapping[str, Any]) -> None:
    class_name = config.get("_class_name")
    if isinstance(class_name, str) and "Pipeline" in class_name:
        raise ScenarioError(
            FIELD, "this is a pipeline's model_index.json. Paste unet/config.json or transformer/config.json instead"
        )
    if isinstance(class_name, str) and "num_train_timesteps" not in config:
        known = sorted(name for name in known_model_types() if name[0].isupper())
        raise ScenarioError(
            FIELD, f"the diffusers model {class_name!r} is not known; these are: {', '.join(known)}"
        )
    for keys, message in _OTHER_FILES:
        if any(key in config for key in keys):
            raise ScenarioError(FIELD, message)
    if isinstance(config.get("model"), Mapping) and "version" in config:
        raise ScenarioError(FIELD, "this is a tokenizer.json. Paste the model's config.json, which lies beside it")
    if any(key in config for key in _TOKEN_OPTIONS) and not any(key in config for key in WIDTH_KEYS):
        raise ScenarioError(
            FIELD, "this is a generation_config.json. Paste the model's config.json, which lies beside it"
        )


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def nearest_model_type(config: Mapping[str, Any]) -> str:
    """Return the known ``model_type`` that a configuration of an unknown one resembles most.

    What decides, in this order: latent attention, experts, an encoder with a decoder, images, a bidirectional
    encoder, then the longest known name that the unknown one starts with, then ``llama``.
    """
    name = str(config.get("model_type") or "").lower()
    by_name = max((t for t in known_model_types() if len(t) > 1 and name.startswith(t)), key=len, default="")
    experts = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "phimoe", "granitemoe", "gpt_oss")
    if config.get("kv_lora_rank"):
        return "deepseek_v3" if "scoring_func" in config or config.get("topk_method") == "noaux_tc" else "deepseek_v2"
    if _first(config, EXPERT_KEYS):
        if by_name in experts:
            return by_name
        return "mixtral" if "num_local_experts" in config else "qwen3_moe"
    if config.get("is_encoder_decoder"):
        seq2seq = ("t5", "mt5", "umt5", "longt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper")
        return by_name if by_name in seq2seq else "t5" if "d_kv" in config else "bart"
    if "patch_size" in config and "vocab_size" not in config:
        return "swin" if isinstance(config.get("depths"), list) else "vit"
    architectures = " ".join(map(str, config.get("architectures") or ()))
    if "ForMaskedLM" in architectures or ("type_vocab_size" in config and "ForCausalLM" not in architectures):
        encoders = ("bert", "roberta", "electra", "modernbert", "mpnet", "albert", "distilbert")
        return by_name if by_name in encoders else "bert"
    decoders = {t for t in known_model_types() if t in _CAUSAL_RELATIVES}
    return by_name if by_name in decoders else "llama"


_CAUSAL_RELATIVES = frozenset(
    "gpt2 llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gpt_neox opt bloom phi phi3 olmo olmo2 olmo3 falcon mpt "
    "gptj stablelm cohere cohere2 granite smollm3 starcoder2 gpt_bigcode gpt_neo glm glm4 nemotron ernie4_5".split()
)


def _as_relative(config: Mapping[str, Any], model_type: str | None) -> tuple[dict[str, Any], str]:
    """Return the configuration under the key names of its nearest known relative, and the note that says so."""
    image = "patch_size" in config and "vocab_size" not in config
    wanted = (WIDTH_KEYS, LAYER_KEYS, HEAD_KEYS, ("image_size",) if image else ("vocab_size",))
    missing = [keys[0] for keys in wanted if _first(config, keys) is None]
    if missing:
        what = "there is no model_type" if model_type is None else f"model_type {model_type!r} is not known"
        raise ScenarioError(FIELD, f"{what}, and without it these keys are needed: {', '.join(missing)}")
    relative = nearest_model_type(config)
    entry = _data()["model_types"][relative]
    names = {key: entry.get("aliases", {}).get(key, key) for key in ("hidden_size",)}
    names["hidden_size"] = _own_name(entry, WIDTH_KEYS)
    given = {key: value for key, value in config.items() if key not in {*WIDTH_KEYS, *LAYER_KEYS, *HEAD_KEYS}}
    for keys in (WIDTH_KEYS, LAYER_KEYS, HEAD_KEYS, FEED_FORWARD_KEYS, KEY_VALUE_HEAD_KEYS, EXPERT_KEYS):
        value = _first(config, keys)
        own = _own_name(entry, keys)
        if value is not None and own is not None:
            given[own] = value
    feed_forward = _own_name(entry, FEED_FORWARD_KEYS)
    note = f"model_type {model_type!r} is not known; it is answered as {relative}, its nearest relative."
    if model_type is None:
        note = f"There is no model_type; the model is answered as {relative}."
    if feed_forward is not None and _first(config, FEED_FORWARD_KEYS) is None:
        width = _first(config, WIDTH_KEYS)
        if isinstance(width, int):
            given[feed_forward] = 4 * width
            note += f" {feed_forward} is missing and taken as four times the width."
    given["model_type"] = relative
    return given, note


def _own_name(entry: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if key in entry["defaults"]), None)


def _complete(config: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Fill in defaults under the type's own key names, then what the library derives from them."""
    entry = _data()["model_types"][model_type]
    given = dict(config)
    for old, new in {**entry.get("aliases", {}), **_OLD_NAMES.get(model_type, {})}.items():
        if old in given and old not in entry["defaults"]:
            value = given.pop(old)
            given.setdefault(new, value)
    rope = given.get("rope_parameters") or given.get("rope_scaling")
    if isinstance(rope, Mapping) and "partial_rotary_factor" in rope:
        given["partial_rotary_factor"] = rope["partial_rotary_factor"]
    labels = given.get("id2label")
    if isinstance(labels, Mapping) and labels:
        given["num_labels"] = len(labels)
    for part, part_type in entry.get("parts", {}).items():
        inner = given.get(part)
        if inner is not None and not isinstance(inner, Mapping):
            raise ScenarioError(FIELD, f"{part} must be an object, not {inner!r}")
        given[part] = _complete(inner or {}, part_type)
    completed = {**entry["defaults"], **given, "model_type": model_type}
    _check_numbers(completed)
    _check_heads(completed, model_type)
    _derive(completed, model_type, given)
    return completed


def _derive(config: dict[str, Any], model_type: str, given: Mapping[str, Any]) -> None:
    """Set what the library's configuration classes compute from other keys, in place."""
    heads = config.get("num_attention_heads")
    for key in ("num_key_value_heads", "num_kv_heads"):
        if key in config and config[key] is None:
            config[key] = heads
    if "head_dim" in config and config["head_dim"] is None and isinstance(heads, int) and "hidden_size" in config:
        config["head_dim"] = config["hidden_size"] // heads
    if "use_sliding_window" in config and model_type.startswith("qwen") and not config["use_sliding_window"]:
        config["sliding_window"] = 0 if model_type == "qwen2_moe" else None
    if config.get("mlp_only_layers", ()) is None:
        config["mlp_only_layers"] = []
    if "feed_forward_proj" in config:
        _derive_t5(config, model_type, given)
    if model_type in {"deepseek_v2", "deepseek_v3"}:
        config["qk_head_dim"] = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
        config["head_dim"] = config["qk_rope_head_dim"]
    elif model_type == "falcon":
        config["ffn_hidden_size"] = config["ffn_hidden_size"] or 4 * config["hidden_size"]
    elif model_type == "gpt_bigcode":
        config["num_key_value_heads"] = 1 if config["multi_query"] else config["n_head"]
    elif model_type == "deberta-v2" and isinstance(config["pos_att_type"], str):
        config["pos_att_type"] = [part.strip() for part in config["pos_att_type"].lower().split("|")]
    elif model_type in {"swin", "swinv2"}:
        config["hidden_size"] = config["embed_dim"] * 2 ** (len(config["depths"]) - 1)
    elif model_type == "gpt_neo" and config["attention_types"] is None:
        config["attention_types"] = [[["global", "local"], config["num_layers"] // 2]]
    elif model_type == "smollm3" and config["no_rope_layers"] is None:
        interval = config["no_rope_layer_interval"]
        config["no_rope_layers"] = [int((i + 1) % interval != 0) for i in range(config["num_hidden_layers"])]
    elif model_type == "t5gemma":
        shared = {key: config[key] for key in ("dropout_rate", "attention_dropout")}
        config["encoder"] |= {"is_decoder": False, **shared}
        config["decoder"] |= {"is_decoder": True, **shared, "cross_attention_hidden_size": config["encoder"]["hidden_size"]}
    if "layer_types" in config and config["layer_types"] is None:
        config["layer_types"] = _layer_types(config, model_type)
    for key, source in _SAME_AS.items():
        if config.get(key, 0) is None:
            config[key] = config[source]


def _derive_t5(config: dict[str, Any], model_type: str, given: Mapping[str, Any]) -> None:
    if config.get("num_decoder_layers") is None:
        config["num_decoder_layers"] = config["num_layers"]
    parts = str(config["feed_forward_proj"]).split("-")
    config["dense_act_fn"] = "gelu_new" if config["feed_forward_proj"] == "gated-gelu" else parts[-1]
    config["is_gated_act"] = parts[0] == "gated"
    # These classes tie always; an untied published T5 1.1 only means that decoder outputs are not scaled.
    if model_type in {"t5", "longt5"}:
        config["scale_decoder_outputs"] = given.get("tie_word_embeddings") is not False
    config["tie_word_embeddings"] = True


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


def _check_numbers(config: dict[str, Any]) -> None:
    """Refuse sizes that are no positive whole number and rates outside 0 to 1; whole floats become integers."""
    for key, value in config.items():
        if key.endswith(_DROPOUT_SUFFIXES) and value is not None and not isinstance(value, str) and key not in _NO_RATES:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise ScenarioError(FIELD, f"{key} must be at least 0 and below 1, not {value!r}")
        elif key in _MAX_BY_KEY and value is not None and not isinstance(value, list | tuple):
            if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
                raise ScenarioError(FIELD, f"{key} must be a whole number, not {value!r}")
            if not 1 <= value <= _MAX_BY_KEY[key]:
                raise ScenarioError(FIELD, f"{key} must be from 1 to {_MAX_BY_KEY[key]:,}, not {value!r}")
            config[key] = int(value)


def _check_heads(config: Mapping[str, Any], model_type: str) -> None:
    """Refuse heads that do not divide, before anything is derived from them."""
    if model_type[0].isupper():
        return  # diffusers states head sizes directly
    own_head_dim = any(config.get(key) is not None for key in ("head_dim", "d_kv", "d_head", "kv_channels"))
    width_key = next((key for key in ("hidden_size", "n_embd", "d_model") if isinstance(config.get(key), int)), None)
    for head_key in (*HEAD_KEYS, "decoder_attention_heads"):
        heads = config.get(head_key)
        if not isinstance(heads, int) or width_key is None or own_head_dim:
            continue
        if config[width_key] % heads:
            raise ScenarioError(
                FIELD, f"{head_key} ({heads}) does not divide {width_key} ({config[width_key]}), and there is no head_dim"
            )
    heads = _first(config, HEAD_KEYS)
    for key in KEY_VALUE_HEAD_KEYS:
        groups = config.get(key)
        latent = "kv_lora_rank" in config  # latent attention keeps no key/value heads
        if isinstance(groups, int) and isinstance(heads, int) and heads % groups and not latent:
            raise ScenarioError(FIELD, f"{key} ({groups}) does not divide the number of attention heads ({heads})")
    per_token, experts = config.get("num_experts_per_tok"), _first(config, EXPERT_KEYS)
    if isinstance(per_token, int) and isinstance(experts, int) and per_token > experts:
        raise ScenarioError(FIELD, f"num_experts_per_tok ({per_token}) is more than the number of experts ({experts})")
