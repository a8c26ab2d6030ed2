"""A small attribute network: variations that cannot be applied are mined from labelled images.

URL (Shi et al., CVPR 2020, supplement) learns attributes such as age and smiling on one data set
and uses its predictions for the training images as further variations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.data import ImageSet
from midspan.data.decode import Channels
from midspan.errors import DataError, FormatError
from midspan.image_size import ImageSize
from midspan.spaces import FloatArray, IntArray

WIDTHS = (64, 128, 256, 512)  # kernels of the four layers, as in the supplement


class AttributeNet(nn.Module):
    """Four 3×3 convolutions, the mean over the image, one probability for each attribute.

    Departs: strides of 2 and batch norm are ours, and there is no adversarial term between the
    labelled images and those to be mined; mine images of the same kind.
    """

    def __init__(
        self, *, names: Sequence[str], size: int, channels: Channels, widths: Sequence[int] = WIDTHS
    ) -> None:
        super().__init__()
        self.names, self.size, self.channels = tuple(names), size, channels
        self.widths = tuple(widths)
        layers: list[nn.Module] = []
        for before, after in zip((channels, *self.widths), self.widths, strict=False):
            layers.append(nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False))
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.top = nn.Linear(self.widths[-1], len(self.names))

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) in [-1, 1] → (B, A) logits
        logits: Tensor = self.top(self.layers(x).mean(dim=(2, 3)))
        return logits

    @torch.inference_mode()
    def predict(self, images: ImageSet, *, batch_size: int = 256) -> FloatArray:
        """(N, A) probabilities."""
        self.eval()
        parts = [
            self(self._read(images, np.arange(start, min(start + batch_size, len(images)))))
            for start in range(0, len(images), batch_size)
        ]
        logits: FloatArray = torch.cat(parts).sigmoid().numpy()
        return logits

    def _read(self, images: ImageSet, rows: IntArray) -> Tensor:
        pixels = images.load(rows, ImageSize(self.size, self.size, self.channels))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(127.5).sub(1.0)

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        facts = {
            "names": self.names,
            "size": self.size,
            "channels": self.channels,
            "widths": self.widths,
        }
        weights = {name: value.contiguous() for name, value in self.state_dict().items()}
        save_file(weights, path, metadata={"attributes": json.dumps(facts)})
        return path

    @classmethod
    def load(cls, path: str | Path) -> AttributeNet:
        path = Path(path)
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads((file.metadata() or {})["attributes"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            net = cls(**facts)
            net.load_state_dict(tensors)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise FormatError(
                f"{path}: not an attribute network ({error}); fit_attributes makes them"
            ) from error
        return net.eval()


def fit_attributes(
    images: ImageSet,
    *,
    columns: Sequence[str],
    size: int = 32,
    channels: Channels = 3,
    epochs: int = 10,
    batch_size: int = 64,
    lr: float = 1e-3,
    seed: int = 0,
    widths: Sequence[int] = WIDTHS,
) -> AttributeNet:
    """Learn attributes from columns of 0 and 1 of a labelled image set (CSV or .npz)."""
    targets = torch.from_numpy(np.stack([_binary(images, name) for name in columns], axis=1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = AttributeNet(names=columns, size=size, channels=channels, widths=widths)
    optimiser = torch.optim.AdamW(net.parameters(), lr=lr)
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            if len(rows) == 1:
                continue  # batch norm needs two
            logits = net(net._read(images, rows))
            loss = F.binary_cross_entropy_with_logits(logits, targets[torch.from_numpy(rows)])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return net.eval()


def mine(net: AttributeNet, images: ImageSet, *, threshold: float = 0.5) -> Tensor:
    """(N, A) 0 or 1: the attributes that the network predicts."""
    return torch.from_numpy((net.predict(images) > threshold).astype(np.float32))


def _binary(images: ImageSet, name: str) -> npt.NDArray[np.float32]:
    column = images.columns.get(name)
    if column is None:
        known = ", ".join(sorted(images.columns)) or "none"
        raise DataError(f"the images have no column {name!r}; their columns: {known}")
    try:
        values = np.asarray(column).astype(np.float32)
    except ValueError:
        values = np.full(len(images), np.nan, dtype=np.float32)
    if values.shape != (len(images),) or not np.isin(values, (0.0, 1.0)).all():
        raise DataError(f"column {name!r}: expected only 0 and 1, got other values")
    return values
