"""What transformers does not do for some model types: it refuses, or does nothing, where a file asks for it.

Read off the models of transformers 5.24, made without weights for each model type that the replay knows.
"""

from __future__ import annotations

WITHOUT_ATTENTION = frozenset({"convnext", "convnextv2"})
"""Nothing is chosen there, and from_pretrained refuses the choice."""

WITHOUT_SDPA = frozenset(
    "big_bird bloom convnext convnextv2 deberta deberta-v2 gemma2 gpt_neo gpt_oss led longformer longt5 megatron-bert "
    "mpnet mpt rembert roformer swinv2 t5gemma vaultgemma wavlm xglm".split()
)
"""Whose ``_supports_sdpa`` is False: from_pretrained raises a ValueError, and by itself takes eager."""

WITHOUT_FLASH_ATTENTION = frozenset(
    "beit big_bird bloom convnext convnextv2 data2vec-vision deberta deberta-v2 led longformer longt5 megatron-bert "
    "mpnet mpt mt5 rembert roformer swin swinv2 t5 umt5 wavlm xglm".split()
)
"""Whose ``_supports_flash_attn`` is False: from_pretrained raises a ValueError."""

WITHOUT_CHECKPOINTING = frozenset("albert convnext convnextv2 mpnet".split())
"""Whose ``supports_gradient_checkpointing`` is False: Trainer raises a ValueError."""

WITHOUT_BLOCKS = frozenset(
    "albert big_bird biogpt blenderbot blenderbot-small deberta deberta-v2 distilbert electra led marian megatron-bert "
    "mobilebert mpnet pegasus rembert roformer unispeech unispeech-sat wav2vec2 wavlm".split()
)
"""Whose ``_no_split_modules`` is empty: FSDP finds no units, and would gather all weights at once."""
