"""Write the configuration defaults and their test cases from the installed transformers and diffusers.

Run it in an environment with transformers, diffusers and torch, after an upgrade of either:

    python tools/update_config_defaults.py

calc/catalog/config_defaults.json holds the default of every key that shapes a model, per ``model_type``: a published
``config.json`` leaves out what equals it. tests/data/config_cases.json holds what the library itself makes of a few
incomplete configurations; the tests compare `calc.catalog.configs.complete_config` with it.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import diffusers
import transformers
from transformers import CONFIG_MAPPING

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS_FILE = ROOT / "calc" / "catalog" / "config_defaults.json"
CASES_FILE = ROOT / "tests" / "data" / "config_cases.json"

DECODERS = """
gpt2 llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gpt_neox opt bloom phi phi3 olmo olmo2 olmo3 falcon mpt gptj
stablelm cohere cohere2 granite smollm3 starcoder2 gpt_bigcode gpt_neo glm glm4 nemotron ernie4_5 codegen xglm biogpt
helium arcee seed_oss cwm exaone4 hunyuan_v1_dense ministral ministral3 vaultgemma
mixtral olmoe qwen2_moe qwen3_moe deepseek_v2 deepseek_v3 phimoe granitemoe gpt_oss dots1 ernie4_5_moe glm4_moe
granitemoeshared flex_olmo minimax_m2
""".split()
ENCODERS = """
bert roberta xlm-roberta camembert distilbert electra albert deberta deberta-v2 modernbert mpnet mobilebert rembert
roformer big_bird longformer esm data2vec-text ernie roberta-prelayernorm xlm-roberta-xl
megatron-bert
""".split()
ENCODER_DECODERS = """
t5 mt5 umt5 longt5 bart mbart pegasus marian m2m_100 led blenderbot blenderbot-small plbart whisper t5gemma
""".split()
VISION_AND_AUDIO = """
vit deit beit swin swinv2 convnext convnextv2 dinov2 dinov2_with_registers vit_mae vit_msn data2vec-vision
segformer clip siglip wav2vec2 hubert wavlm unispeech unispeech-sat
""".split()
DIFFUSERS = """
UNet2DConditionModel UNet2DModel DiTTransformer2DModel PixArtTransformer2DModel SD3Transformer2DModel
FluxTransformer2DModel
""".split()

# Keys that shape neither weights nor memory: token ids, initialization, generation, outputs, bookkeeping.
NOT_SHAPE = {
    "transformers_version", "architectures", "output_hidden_states", "output_attentions", "return_dict", "dtype",
    "id2label", "label2id", "problem_type", "initializer_range", "initializer_factor", "initializer_cutoff_factor",
    "init_std", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id",
    "cls_token_id", "mask_token_id", "begin_suppress_tokens", "suppress_tokens", "forced_eos_token_id",
    "forced_bos_token_id", "name_or_path", "_name_or_path", "attn_implementation", "generation_config",
    "logit_scale_init_value", "out_features", "out_indices", "ignore_value", "semantic_loss_ignore_index",
    "reference_compile", "deterministic_flash_attn", "mask_index", "vocab_list", "esmfold_config", "mask_fill_value",
    "_out_features", "_out_indices",
}  # fmt: skip

# Incomplete configurations whose completion by the library is kept for the tests: one list per model_type.
CASES: dict[str, list[dict[str, Any]]] = {
    "llama": [
        {"num_attention_heads": 16, "hidden_size": 2048},
        {"num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256},
    ],
    "mistral": [{"num_attention_heads": 16, "sliding_window": None}],
    "qwen2": [
        {"num_hidden_layers": 6, "use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 2},
        {"sliding_window": 32768, "num_hidden_layers": 4, "num_key_value_heads": 2},
    ],
    "qwen3": [{"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8}],
    "gemma2": [{"num_hidden_layers": 5}],
    "gemma3_text": [{"num_hidden_layers": 13}, {"num_hidden_layers": 4, "sliding_window_pattern": 2}],
    "gpt2": [{"hidden_size": 1024, "num_attention_heads": 16}],
    "gpt_neox": [{"rotary_pct": 0.5, "hidden_size": 1024, "num_attention_heads": 16}],
    "phi": [{"num_attention_heads": 8}, {"partial_rotary_factor": 0.4}],
    "stablelm": [{"partial_rotary_factor": 0.5}],
    "bloom": [{"n_embed": 1024, "num_attention_heads": 16}],
    "falcon": [{"hidden_size": 512, "num_attention_heads": 8, "multi_query": False}],
    "opt": [{"hidden_size": 1024, "num_attention_heads": 16}],
    "olmo2": [{"num_attention_heads": 16}],
    "olmo3": [{"num_hidden_layers": 9, "hidden_size": 4096}],
    "cohere2": [{"num_hidden_layers": 6}],
    "smollm3": [{"num_hidden_layers": 6, "use_sliding_window": True, "sliding_window": 512}],
    "gpt_oss": [{"num_hidden_layers": 3}],
    "mpt": [{"hidden_size": 4096, "attn_config": {"alibi": False}}],
    "qwen2_moe": [{"num_hidden_layers": 6, "use_sliding_window": True, "max_window_layers": 4}],
    "qwen3_moe": [{"num_hidden_layers": 6}],
    "mixtral": [{"num_attention_heads": 16}],
    "deepseek_v2": [{"num_hidden_layers": 4, "qk_rope_head_dim": 32}],
    "deepseek_v3": [{"num_hidden_layers": 4, "num_attention_heads": 64}],
    "bert": [{"num_labels": 5}, {"id2label": {"0": "a", "1": "b", "2": "c"}}],
    "bart": [{}, {"encoder_layers": 6}],
    "deberta-v2": [{"pos_att_type": "p2c|c2p"}],
    "modernbert": [{"num_hidden_layers": 7}, {"num_hidden_layers": 6, "global_attn_every_n_layers": 2}],
    "distilbert": [{"hidden_size": 512, "num_attention_heads": 8}],
    "t5": [{"num_layers": 3}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}],
    "mt5": [{"num_layers": 3}],
    "vit": [{"hidden_size": 1024, "num_attention_heads": 16}],
    "swin": [{"depths": [2, 2, 18, 2], "embed_dim": 128}],
    "clip": [{"vision_config": {"patch_size": 16}, "text_config": {"num_hidden_layers": 4}}],
    "t5gemma": [{"encoder": {"num_hidden_layers": 3}}],
    "whisper": [{"num_hidden_layers": 6}],
}


def plain(value: Any) -> Any:
    """Return what JSON can hold of a default: tuples become lists, nested configurations their dictionaries."""
    if isinstance(value, transformers.PreTrainedConfig):
        return plain(value.to_dict())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} is no JSON value")


def field_default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of one field of a configuration class."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def describe(config_class: Any) -> dict[str, Any]:
    """Return defaults, aliases and nested configurations of one configuration class."""
    parts = {name: part_type(part) for name, part in nested(config_class).items()}
    defaults = {
        field.name: plain(field_default(field))
        for field in dataclasses.fields(config_class)
        if field.name not in NOT_SHAPE and field.name not in parts
    }
    instance = config_class()
    defaults["num_labels"] = instance.num_labels
    if hasattr(instance, "tie_word_embeddings"):
        defaults.setdefault("tie_word_embeddings", instance.tie_word_embeddings)
    rope = getattr(instance, "rope_parameters", None)
    if isinstance(rope, dict) and "partial_rotary_factor" in rope:
        defaults["partial_rotary_factor"] = rope["partial_rotary_factor"]
    defaults.pop("rope_parameters", None)  # angles of the rotary table: no bytes depend on them
    out: dict[str, Any] = {"defaults": dict(sorted(defaults.items()))}
    if config_class.attribute_map:
        out["aliases"] = dict(sorted(config_class.attribute_map.items()))
    if parts:
        out["parts"] = dict(sorted(parts.items()))
    return out


def nested(config_class: Any) -> dict[str, Any]:
    """Return the configuration classes that one names as its parts, but for those chosen by the user's file."""
    return {
        name: part
        for name, part in config_class.sub_configs.items()
        if isinstance(part, type) and issubclass(part, transformers.PreTrainedConfig) and name not in NOT_SHAPE
    }


def part_type(config_class: Any) -> str:
    """Return the name that a nested configuration has in the data: its ``model_type``, or its class's name."""
    return str(config_class.model_type or config_class.__name__)


def part_classes(config_class: Any) -> list[Any]:
    """Return the configuration classes nested in one, at any depth."""
    return [each for part in nested(config_class).values() for each in [part, *part_classes(part)]]


def text_parts(known: dict[str, Any]) -> dict[str, str]:
    """Return, for every ``model_type`` that wraps a language model in ``known``, the ``model_type`` of that part."""
    found = {}
    for model_type in CONFIG_MAPPING:
        try:
            config_class: Any = CONFIG_MAPPING[model_type]
            text = getattr(config_class(), "text_config", None)
        except Exception as error:  # noqa: BLE001  # some need optional packages or arguments; they are left out
            print(f"text part of {model_type} unknown: {error!s:.80}")
            continue
        if text is not None and text.model_type in known and model_type not in known:
            found[model_type] = text.model_type
    return dict(sorted(found.items()))


def diffusers_defaults(class_name: str) -> dict[str, Any]:
    """Return the constructor's defaults of one diffusers model class."""
    parameters = inspect.signature(getattr(diffusers, class_name).__init__).parameters
    return {"defaults": {name: plain(p.default) for name, p in sorted(parameters.items()) if name != "self"}}


def completed(model_type: str, given: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return what the library makes of one incomplete configuration, for the keys in ``known``."""
    config = CONFIG_MAPPING[model_type](**json.loads(json.dumps(given)))
    names = {*known[model_type]["defaults"], *known[model_type].get("parts", {})}
    names |= {"head_dim", "qk_head_dim", "dense_act_fn", "is_gated_act", "scale_decoder_outputs", "hidden_size"}
    names.discard("partial_rotary_factor")
    out = {name: plain(getattr(config, name)) for name in sorted(names) if hasattr(config, name)}
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and "partial_rotary_factor" in rope:
        out["partial_rotary_factor"] = rope["partial_rotary_factor"]
    for name, part in known[model_type].get("parts", {}).items():
        out[name] = {key: value for key, value in out[name].items() if key in known[part]["defaults"]}
    return out


def main() -> None:
    """Write both files."""
    known: dict[str, Any] = {}
    for model_type in [*DECODERS, *ENCODERS, *ENCODER_DECODERS, *VISION_AND_AUDIO]:
        config_class: Any = CONFIG_MAPPING[model_type]
        for each in [config_class, *part_classes(config_class)]:
            known[part_type(each)] = describe(each)
    for class_name in DIFFUSERS:
        known[class_name] = diffusers_defaults(class_name)
    DEFAULTS_FILE.write_text(
        json.dumps(
            {
                "source": f"transformers {transformers.__version__}, diffusers {diffusers.__version__}: "
                "the defaults of their configuration classes",
                "model_types": dict(sorted(known.items())),
                "text_parts": text_parts(known),
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )
    cases = [
        {"given": {"model_type": model_type, **given}, "completed": completed(model_type, given, known)}
        for model_type in sorted(known)
        if model_type in CONFIG_MAPPING
        for given in CASES.get(model_type, [{}])
    ]
    CASES_FILE.parent.mkdir(exist_ok=True)
    CASES_FILE.write_text(
        json.dumps({"source": f"transformers {transformers.__version__}", "cases": cases}, indent=1) + "\n",
        encoding="utf-8",
    )
    print(f"{len(known)} model types, {len(cases)} cases")


if __name__ == "__main__":
    main()
