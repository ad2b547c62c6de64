"""Which layers LoRA adapts, in the words of peft's ``target_modules``.

The replay names each linear layer as its library does, by the last part of the name. peft adapts every module whose
name ends in a target (peft/tuners/tuners_utils.py, check_target_module_exists), so where another layer's name ends
alike the target has to be longer.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from calc.memory import replay
from calc.scenario import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIKE_BERT = (
    "bert", "camembert", "data2vec-text", "deberta", "deberta-v2", "electra", "ernie", "megatron-bert", "rembert",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl",
)  # fmt: skip

# Model type: the attention's layers that share the end of their name with others, and a longer end that they do not
# share; or that the library names otherwise than the replay.
# transformers/models/<model type>/modeling_<model type>.py, the attention's class and its place in the block.
_LONGER_NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "gpt2": {"c_proj": "attn.c_proj"},
        "gpt_bigcode": {"c_proj": "attn.c_proj"},
        "modernbert": {"Wo": "attn.Wo"},
        "albert": {"dense": "attention.dense"},
        "siglip": {"out_proj": "self_attn.out_proj"},
        "data2vec-vision": {
            "q_proj": "query",
            "k_proj": "key",
            "v_proj": "value",
            "o_proj": "attention.output.dense",
        },
        **{model_type: {"dense": "attention.output.dense"} for model_type in _LIKE_BERT},
    }
)


def target_modules(scenario: Mapping[str, Any]) -> str | tuple[str, ...]:
    """Name a filled-in scenario's adapted layers as peft finds them: a word that it knows, or the ends of names.

    Empty where the names in the library are not known: torchvision's models compute their attention past the modules
    that peft would wrap, and diffusers' are no ``PreTrainedModel``, for which alone peft knows ``all-linear``.
    """
    parsed = parse(scenario)
    architecture = parsed.model.architecture
    in_diffusers = architecture[:1].isupper()
    in_transformers = "model_type" in parsed.model.config and not in_diffusers
    if isinstance(parsed.lora_targets, tuple):
        return parsed.lora_targets
    if parsed.lora_targets == "all-linear":
        return "all-linear" if in_transformers else ()
    if not in_transformers and not in_diffusers:
        return ()
    adapted = dict.fromkeys(
        parameter.name.removesuffix(".lora_A")
        for parameter in replay(parsed).parameters
        if parameter.name.endswith(".lora_A")
    )
    longer = _LONGER_NAMES.get(architecture, {})
    return tuple(longer.get(name, name) for name in adapted)
