"""Which image model is built by which architecture: torchvision's names, Hugging Face's and diffusers' types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.architectures import convnext, inception, mobile, plain, regnet, resnet, shufflenet, swin, swin_hugging_face, vision_transformers

if TYPE_CHECKING:
    from calc.architectures.model import Architecture

IMAGE_MODELS: dict[str, Architecture] = {
    "convnext": convnext.hugging_face_convnext,
    "convnextv2": convnext.hugging_face_convnext,
    "deit": vision_transformers.deit,
    "swin": swin_hugging_face.Swin,
    "vit": vision_transformers.ImageClassifier,
    "alexnet": plain.alexnet,
    **dict.fromkeys(convnext.VARIANTS, convnext.torchvision_convnext),
    **dict.fromkeys(plain.DENSENETS, plain.DenseNet),
    **dict.fromkeys(inception.NETWORKS, inception.Inception),
    **dict.fromkeys(mobile.PLANS, mobile.MobileNet),
    **dict.fromkeys(regnet.VARIANTS, regnet.RegNet),
    **dict.fromkeys(resnet.VARIANTS, resnet.ResNet),
    **dict.fromkeys(shufflenet.CHANNELS, shufflenet.ShuffleNet),
    **dict.fromkeys(plain.SQUEEZENET_POOLS, plain.squeezenet),
    **dict.fromkeys(swin.VARIANTS, swin.Swin),
    **dict.fromkeys(plain.VGG_NAMES, plain.vgg),
}
