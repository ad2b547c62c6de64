"""Which configuration is built by which architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.architectures import disentangled, encoder_decoders, encoders, speech
from calc.architectures.decoders import DECODERS
from calc.architectures.image_models import IMAGE_MODELS

if TYPE_CHECKING:
    from calc.architectures.model import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    **DECODERS,
    "albert": encoders.Albert,
    "bart": encoder_decoders.Bart,
    "bert": encoders.Bert,
    "blenderbot": encoder_decoders.Bart,
    "blenderbot-small": encoder_decoders.Bart,
    "camembert": encoders.Roberta,
    "data2vec-text": encoders.Roberta,
    "deberta": disentangled.Deberta,
    "deberta-v2": disentangled.DebertaV2,
    "distilbert": encoders.DistilBert,
    "electra": encoders.Bert,
    "ernie": encoders.Bert,
    "hubert": speech.Wav2Vec2,
    "m2m_100": encoder_decoders.Bart,
    "marian": encoder_decoders.Bart,
    "mbart": encoder_decoders.Bart,
    "modernbert": encoders.ModernBert,
    "mpnet": encoders.MPNet,
    "mt5": encoder_decoders.T5,
    "pegasus": encoder_decoders.Bart,
    "plbart": encoder_decoders.Bart,
    "roberta": encoders.Roberta,
    "t5": encoder_decoders.T5,
    "umt5": encoder_decoders.T5,
    "unispeech": speech.Wav2Vec2,
    "unispeech-sat": speech.Wav2Vec2,
    "wav2vec2": speech.Wav2Vec2,
    "whisper": speech.Whisper,
    "xlm-roberta": encoders.Roberta,
    **IMAGE_MODELS,
}


def architecture(model_type: str) -> Architecture:
    """The architecture of a model type; KeyError where there is none."""
    return ARCHITECTURES[model_type]
