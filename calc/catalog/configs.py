"""Hugging Face configurations: read, checked, and completed with what the library takes where a key is absent.

A published ``config.json`` leaves out what equals its class's default, and older ones use other names for some keys.
`complete_config` returns every key that shapes the model, under the names that the model's own code reads. Defaults
are data (``config_defaults.json``, written by ``tools/update_config_defaults.py`` from the library itself); what the
library derives from other keys is in `calc.catalog.config_rules`.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from calc.catalog.config_checks import check_heads, check_values, without_empty
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
from calc.catalog.config_rules import derive
from calc.errors import ScenarioError

# Names from before the library's present ones, still found in published files.
_OLD_NAMES: dict[str, dict[str, str]] = {
    "bloom": {"n_embed": "hidden_size"},
    "falcon": {"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"},
    "gpt_neox": {"rotary_pct": "partial_rotary_factor"},
    "codegen": {"n_ctx": "n_positions"},
}
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
        "this is an adapter's configuration. Paste the config.json of its base model, and choose LoRA as the method",
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
        "this is a timm configuration: a name without sizes. Choose the torchvision model from the list",
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


def describe_completion(config: Mapping[str, Any], modelled: Container[str] | None = None) -> CompletedConfig:
    """Return the completed configuration and what was assumed to complete it; see `complete_config`.

    ``modelled`` are the model types that can be answered, all known ones by default: others are answered as their
    nearest relative among them.
    """
    answered = known_model_types() if modelled is None else modelled
    given, notes = _unwrap(config)
    model_type = _model_type(given)
    if model_type is None or model_type not in answered:
        if model_type in known_model_types():
            given = _complete(given, str(model_type))
        given, note = _as_relative(given, model_type, answered)
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
        known = sorted(name for name in known_model_types() if name.endswith(("2DModel", "ConditionModel")))
        raise ScenarioError(FIELD, f"the diffusers model {class_name!r} is not known; these are: {', '.join(known)}")
    for keys, message in _OTHER_FILES:
        if any(key in config for key in keys):
            raise ScenarioError(FIELD, message)
    if isinstance(config.get("model"), Mapping) and "version" in config:
        raise ScenarioError(FIELD, "this is a tokenizer.json. Paste the model's config.json, which lies beside it")
    if any(key in config for key in _TOKEN_OPTIONS) and not any(key in config for key in WIDTH_KEYS):
        raise ScenarioError(
            FIELD, "this is a generation_config.json. Paste the model's config.json, which lies beside it"
        )


_EXPERTS = frozenset("mixtral olmoe qwen2_moe qwen3_moe phimoe granitemoe gpt_oss".split())
_ENCODER_DECODERS = frozenset("t5 mt5 umt5 longt5 bart mbart pegasus marian m2m_100 whisper".split())
_ENCODERS = frozenset("bert roberta electra modernbert mpnet albert distilbert".split())
_DECODERS = frozenset(
    "gpt2 llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gpt_neox opt bloom phi phi3 olmo olmo2 olmo3 falcon mpt "
    "gptj stablelm cohere cohere2 granite smollm3 starcoder2 gpt_bigcode gpt_neo glm glm4 nemotron ernie4_5".split()
)


def nearest_model_type(config: Mapping[str, Any], answered: Container[str] | None = None) -> str:
    """Return the ``model_type`` among the ``answered`` ones (default: all known) that a configuration resembles most.

    What decides, in this order: latent attention, experts, an encoder with a decoder, images, sound, a bidirectional
    encoder; within such a group the longest known name that the unknown one starts with, else the group's plainest.
    """
    among = known_model_types() if answered is None else answered
    architectures = " ".join(map(str, config.get("architectures") or ()))
    bidirectional = "type_vocab_size" in config and "ForCausalLM" not in architectures
    if config.get("kv_lora_rank"):
        scored = "scoring_func" in config or config.get("topk_method") == "noaux_tc"
        group, plainest = frozenset[str](), "deepseek_v3" if scored else "deepseek_v2"
    elif first_of(config, EXPERT_KEYS):
        group, plainest = _EXPERTS, "mixtral" if "num_local_experts" in config else "qwen3_moe"
    elif config.get("is_encoder_decoder"):
        group, plainest = _ENCODER_DECODERS, "t5" if "d_kv" in config else "bart"
    elif _is_vision(config):
        group, plainest = frozenset(), "swin" if isinstance(config.get("depths"), list) else "vit"
    elif "conv_dim" in config:
        group, plainest = frozenset(), "wav2vec2"
    elif bidirectional or "ForMaskedLM" in architectures:
        group, plainest = _ENCODERS, "bert"
    else:
        group, plainest = _DECODERS, "llama"
    name = str(config.get("model_type") or "").lower()
    return max((known for known in group if name.startswith(known) and known in among), key=len, default=plainest)


def _is_vision(config: Mapping[str, Any]) -> bool:
    return "patch_size" in config and "vocab_size" not in config


def _as_relative(
    config: Mapping[str, Any], model_type: str | None, answered: Container[str]
) -> tuple[dict[str, Any], str]:
    """Return the configuration under the key names of its nearest known relative, and the note that says so."""
    wanted = (WIDTH_KEYS, LAYER_KEYS, HEAD_KEYS, ("image_size",) if _is_vision(config) else ("vocab_size",))
    missing = [keys[0] for keys in wanted if first_of(config, keys) is None]
    if missing:
        what = "there is no model_type" if model_type is None else f"model_type {model_type!r} is not known"
        raise ScenarioError(FIELD, f"{what}, and without it these keys are needed: {', '.join(missing)}")
    relative = nearest_model_type(config, answered)
    entry = _data()["model_types"][relative]
    given = {key: value for key, value in config.items() if key not in {*WIDTH_KEYS, *LAYER_KEYS, *HEAD_KEYS}}
    for keys in (WIDTH_KEYS, LAYER_KEYS, HEAD_KEYS, FEED_FORWARD_KEYS, KEY_VALUE_HEAD_KEYS, EXPERT_KEYS):
        value, own = first_of(config, keys), _own_name(entry, keys)
        if value is not None and own is not None:
            given[own] = value
    # The relative's own sizes of heads say nothing about this model.
    groups = _own_name(entry, KEY_VALUE_HEAD_KEYS)
    if groups is not None and first_of(config, KEY_VALUE_HEAD_KEYS) is None:
        given[groups] = first_of(config, HEAD_KEYS)
    if "head_dim" in entry["defaults"] and config.get("head_dim") is None:
        given["head_dim"] = None
    note = f"There is no model_type; the model is answered as {relative}."
    if model_type is not None:
        note = f"model_type {model_type!r} is not modelled; it is answered as {relative}, its nearest relative."
    width, feed_forward = first_of(config, WIDTH_KEYS), _own_name(entry, FEED_FORWARD_KEYS)
    stated = first_of(config, (*FEED_FORWARD_KEYS, "moe_intermediate_size")) is not None
    if feed_forward is not None and not stated and isinstance(width, int):
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
    share = given.get("partial_rotary_factor", 1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ScenarioError(FIELD, f"partial_rotary_factor must be from 0 to 1, not {share!r}")
    pattern = given.get("sliding_window_pattern", 0)
    if pattern is None:  # EXAONE 4 without windows
        del given["sliding_window_pattern"]
    elif isinstance(pattern, str):  # "LLLG": three layers with a window, one without
        given["sliding_window_pattern"] = len(pattern)
    labels = given.get("id2label")
    if isinstance(labels, Mapping) and labels:
        given["num_labels"] = len(labels)
    for part, part_type in entry.get("parts", {}).items():
        inner = given.get(part)
        if inner is not None and not isinstance(inner, Mapping):
            raise ScenarioError(FIELD, f"{part} must be an object, not {inner!r}")
        given[part] = _complete(inner or {}, part_type)
    completed = {**entry["defaults"], **without_empty(given, entry["defaults"]), "model_type": model_type}
    check_values(completed, entry["defaults"])
    check_heads(completed, model_type)
    derive(completed, model_type, given=given, defaults=entry["defaults"])
    return completed
