"""Any model of timm by its name: `timm:resnet50`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from midspan.data.decode import Channels
from midspan.encoders.backbones.base import Backbone, Size, sides
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import ConfigError, EncoderError, MissingDependency


class Timm(Backbone):
    """timm.create_model without its classifier; mean, std and size from its pretrained_cfg.

    pretrained: timm's published weights (downloaded once). pooled: the model's own pooling and last
    norm; False gives the feature map of a convolutional network, which a GeM head needs.
    Departs: resizing is ours (bilinear, no margin round the crop), not timm's `crop_pct`.
    """

    def __init__(
        self,
        *,
        model: str,
        pretrained: bool = True,
        channels: Channels = 3,
        pooled: bool = True,
    ) -> None:
        super().__init__()
        timm = _import_timm()
        try:
            self.network = timm.create_model(
                model, pretrained=pretrained, num_classes=0, in_chans=channels
            )
        except Exception as error:  # unknown name, no network, no weights for it …
            raise EncoderError(f"timm has no model {model!r} to give ({error})") from error
        # "local-dir:…" and "hf-hub:…" say where it was; what it is must do to rebuild it
        self.model = self.network.pretrained_cfg["architecture"] if ":" in model else model
        self.channels = channels
        self.pooled = pooled
        size = self.preprocessing(size=None)
        probe = torch.zeros(1, channels, size.height, size.width)
        with torch.no_grad():
            feature_map = self.network.eval().forward_features(probe)
            result = self(probe)
        self.network.train()
        self.channels_last = feature_map.ndim == 4 and feature_map.shape[1] > feature_map.shape[3]
        if not pooled and not self.channels_last:
            raise ConfigError(
                f"timm model {model!r} gives features {tuple(feature_map.shape)}, not a map "
                "(B, F, h, w); leave pooled = true"
            )
        self.features = int(result.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network(x) if self.pooled else self.network.forward_features(x)
        return features

    def config(self) -> dict[str, Any]:
        return {
            "name": "timm",
            "model": self.model,
            "pretrained": False,
            "channels": self.channels,
            "pooled": self.pooled,
        }

    def preprocessing(self, *, size: Size | None) -> Preprocessing:
        pretrained = self.network.pretrained_cfg
        _, height, width = pretrained["input_size"]
        if size:
            height, width = sides(size)
        mean, std = tuple(pretrained["mean"]), tuple(pretrained["std"])
        if self.channels == 1:
            mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
        return Preprocessing(
            height=height,
            width=width,
            channels=self.channels,
            fit="crop",
            mean=mean,
            std=std,
        )


def _import_timm() -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        library = error.name or "timm"
        raise MissingDependency(library, extra="timm", required_for="a timm: backbone") from error
    except Exception as error:  # a torchvision that was built for another torch
        raise EncoderError(
            f"timm is installed but does not load ({error}); it needs the torchvision that was "
            f"built for torch {torch.__version__}: see pytorch.org, or use an hf: backbone"
        ) from error
    return timm
