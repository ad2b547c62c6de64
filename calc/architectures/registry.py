"""Which configuration is built by which architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.architectures import decoders, encoders
from calc.architectures.image_models import IMAGE_MODELS

if TYPE_CHECKING:
    from calc.architectures.model import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    "bert": encoders.Bert,
    "camembert": encoders.Roberta,
    "distilbert": encoders.DistilBert,
    "gpt2": decoders.GPT2,
    "llama": decoders.Llama,
    "roberta": encoders.Roberta,
    "xlm-roberta": encoders.Roberta,
    **IMAGE_MODELS,
}


def architecture(model_type: str) -> Architecture:
    """The architecture of a model type; KeyError where there is none."""
    return ARCHITECTURES[model_type]
