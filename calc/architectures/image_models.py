"""Which image model is built by which architecture: torchvision's names, Hugging Face's and diffusers' types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.architectures import mobile, resnet, vision_transformers

if TYPE_CHECKING:
    from calc.architectures.model import Architecture

IMAGE_MODELS: dict[str, Architecture] = {
    "deit": vision_transformers.deit,
    "vit": vision_transformers.ImageClassifier,
    **dict.fromkeys(mobile.PLANS, mobile.MobileNet),
    **dict.fromkeys(resnet.VARIANTS, resnet.ResNet),
}
