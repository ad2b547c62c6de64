"""Which image model is built by which architecture: torchvision's names, Hugging Face's and diffusers' types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.architectures import resnet

if TYPE_CHECKING:
    from calc.architectures.model import Architecture

IMAGE_MODELS: dict[str, Architecture] = {
    **dict.fromkeys(resnet.VARIANTS, resnet.ResNet),
}
