"""Which image model is built by which architecture: torchvision's names, Hugging Face's and diffusers' types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.architectures import (
    contrastive,
    convnext,
    diffusion,
    flux,
    inception,
    maxvit,
    mobile,
    plain,
    regnet,
    resnet,
    segmentation,
    shufflenet,
    swin,
    swin_hugging_face,
    vision_transformers,
)

if TYPE_CHECKING:
    from calc.architectures.model import Architecture

IMAGE_MODELS: dict[str, Architecture] = {
    "DiTTransformer2DModel": diffusion.DiT,
    "FluxTransformer2DModel": flux.Flux,
    "UNet2DConditionModel": diffusion.UNet,
    "beit": vision_transformers.beit,
    "clip": contrastive.clip,
    "convnext": convnext.hugging_face_convnext,
    "convnextv2": convnext.hugging_face_convnext,
    "data2vec-vision": vision_transformers.beit,
    "deit": vision_transformers.vit,
    "dinov2": vision_transformers.dinov2,
    "dinov2_with_registers": vision_transformers.dinov2,
    "siglip": vision_transformers.clip_classifier,
    "swin": swin_hugging_face.Swin,
    "vit": vision_transformers.vit,
    "vit_msn": vision_transformers.vit,
    "alexnet": plain.alexnet,
    **dict.fromkeys(convnext.VARIANTS, convnext.torchvision_convnext),
    **dict.fromkeys(plain.DENSENETS, plain.DenseNet),
    **dict.fromkeys(inception.NETWORKS, inception.Inception),
    **dict.fromkeys(maxvit.VARIANTS, maxvit.MaxVit),
    **dict.fromkeys(mobile.PLANS, mobile.MobileNet),
    **dict.fromkeys(regnet.VARIANTS, regnet.RegNet),
    **dict.fromkeys(resnet.VARIANTS, resnet.ResNet),
    **dict.fromkeys(segmentation.NAMES, segmentation.Segmentation),
    **dict.fromkeys(shufflenet.CHANNELS, shufflenet.ShuffleNet),
    **dict.fromkeys(plain.SQUEEZENET_POOLS, plain.squeezenet),
    **dict.fromkeys(swin.VARIANTS, swin.Swin),
    **dict.fromkeys(vision_transformers.VARIANTS, vision_transformers.torchvision_vit),
    **dict.fromkeys(plain.VGG_NAMES, plain.vgg),
}
