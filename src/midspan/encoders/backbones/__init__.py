"""Networks that turn an image into features; one file each, imported on first use."""

from __future__ import annotations

from typing import Any

BACKBONES = {
    "small-cnn": "midspan.encoders.backbones.small_cnn:SmallCNN",
    "small-resnet": "midspan.encoders.backbones.small_resnet:SmallResNet",
    "vectors": "midspan.encoders.backbones.vectors:Vectors",
    "hf": "midspan.encoders.backbones.huggingface:HuggingFace",
    "timm": "midspan.encoders.backbones.timm_model:Timm",
    "efficientnet-lite0": "midspan.encoders.backbones.efficientnet_lite:lite0",
    "efficientnet-lite1": "midspan.encoders.backbones.efficientnet_lite:lite1",
    "efficientnet-lite2": "midspan.encoders.backbones.efficientnet_lite:lite2",
}


def parse_backbone(text: str) -> dict[str, Any]:
    """ "timm:resnet50" → {"name": "timm", "model": "resnet50"}; a plain name stays one.

    "hf:org/clip?output=projected" names an output of the model too.
    """
    name, _, model = text.partition(":")
    if name == "hf" and "?output=" in model:
        model, _, output = model.rpartition("?output=")
        return {"name": name, "model": model, "output": output}
    return {"name": name, "model": model} if model else {"name": name}
