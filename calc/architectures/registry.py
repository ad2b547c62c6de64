"""Which configuration is built by which architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.architectures import decoders, disentangled, encoder_decoders, encoders, llama_like, speech
from calc.architectures.image_models import IMAGE_MODELS

if TYPE_CHECKING:
    from calc.architectures.model import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    "arcee": llama_like.arcee,
    "albert": encoders.Albert,
    "bart": encoder_decoders.Bart,
    "bert": encoders.Bert,
    "blenderbot": encoder_decoders.Bart,
    "camembert": encoders.Roberta,
    "cohere": llama_like.cohere,
    "cohere2": llama_like.cohere2,
    "deberta-v2": disentangled.DebertaV2,
    "distilbert": encoders.DistilBert,
    "electra": encoders.Bert,
    "ernie4_5": llama_like.ernie,
    "gemma": llama_like.gemma,
    "gemma2": llama_like.gemma2,
    "gemma3_text": llama_like.gemma3,
    "glm": llama_like.glm,
    "glm4": llama_like.glm4,
    "gpt2": decoders.GPT2,
    "gpt_neox": llama_like.gpt_neox,
    "granite": llama_like.granite,
    "helium": llama_like.helium,
    "llama": llama_like.llama,
    "m2m_100": encoder_decoders.Bart,
    "marian": encoder_decoders.Bart,
    "mbart": encoder_decoders.Bart,
    "mistral": llama_like.llama,
    "modernbert": encoders.ModernBert,
    "mt5": encoder_decoders.T5,
    "nemotron": llama_like.nemotron,
    "olmo": llama_like.olmo,
    "olmo2": llama_like.olmo2,
    "olmo3": llama_like.olmo3,
    "opt": llama_like.opt,
    "pegasus": encoder_decoders.Bart,
    "phi": llama_like.phi,
    "phi3": llama_like.phi3,
    "qwen2": llama_like.qwen2,
    "qwen3": llama_like.qwen3,
    "roberta": encoders.Roberta,
    "seed_oss": llama_like.seed_oss,
    "smollm3": llama_like.smollm3,
    "stablelm": llama_like.stablelm,
    "starcoder2": llama_like.starcoder2,
    "t5": encoder_decoders.T5,
    "whisper": speech.Whisper,
    "xlm-roberta": encoders.Roberta,
    **IMAGE_MODELS,
}


def architecture(model_type: str) -> Architecture:
    """The architecture of a model type; KeyError where there is none."""
    return ARCHITECTURES[model_type]
