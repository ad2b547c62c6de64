"""Which decoder is built for which ``model_type``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.architectures import gpt_like, gpt_oss, llama_like, mixtures

if TYPE_CHECKING:
    from calc.architectures.model import Architecture

DECODERS: dict[str, Architecture] = {
    "arcee": llama_like.arcee,
    "biogpt": llama_like.biogpt,
    "bloom": gpt_like.bloom,
    "codegen": gpt_like.codegen,
    "cohere": llama_like.cohere,
    "cohere2": llama_like.cohere2,
    "deepseek_v2": mixtures.deepseek_v2,
    "deepseek_v3": mixtures.deepseek_v3,
    "ernie4_5": llama_like.ernie,
    "falcon": gpt_like.falcon,
    "gemma": llama_like.gemma,
    "gemma2": llama_like.gemma2,
    "gemma3_text": llama_like.gemma3,
    "glm": llama_like.glm,
    "glm4": llama_like.glm4,
    "gpt2": gpt_like.gpt2,
    "gpt_bigcode": gpt_like.gpt_bigcode,
    "gpt_neo": gpt_like.gpt_neo,
    "gpt_neox": llama_like.gpt_neox,
    "gpt_oss": gpt_oss.gpt_oss,
    "gptj": gpt_like.gptj,
    "granite": llama_like.granite,
    "granitemoe": mixtures.granitemoe,
    "helium": llama_like.helium,
    "llama": llama_like.llama,
    "mistral": llama_like.llama,
    "mixtral": mixtures.mixtral,
    "mpt": gpt_like.mpt,
    "nemotron": llama_like.nemotron,
    "olmo": llama_like.olmo,
    "olmo2": llama_like.olmo2,
    "olmo3": llama_like.olmo3,
    "olmoe": mixtures.olmoe,
    "opt": llama_like.opt,
    "phi": llama_like.phi,
    "phi3": llama_like.phi3,
    "phimoe": mixtures.phimoe,
    "qwen2": llama_like.qwen2,
    "qwen2_moe": mixtures.qwen2_moe,
    "qwen3": llama_like.qwen3,
    "qwen3_moe": mixtures.qwen3_moe,
    "seed_oss": llama_like.seed_oss,
    "smollm3": llama_like.smollm3,
    "stablelm": llama_like.stablelm,
    "starcoder2": llama_like.starcoder2,
}
