"""MixBCT: one recognition loss sees new and old vectors mixed in one batch."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.base import Batch, Method
from midspan.methods.direct import same_dim
from midspan.methods.old import OldArtifacts


class MixBCT(Method):
    """A random `share` of each batch enters the recognition loss with its old vector.

    Paper: arXiv:2308.06948 (MixBCT). The class weights must then suit old and new vectors alike, so
    the new ones gather where the old ones are. It has no term and no weight.

    Only credible images are replaced: in each class the `credible` part of images whose old
    vectors are closest to the class centre, rounded up, so a class of one image is credible.
    Defaults: share 0.3, credible 0.9 (paper's code). share · batch, rounded down, are drawn among
    the batch's credible images, so that at least one image is always the encoder's own; all
    credible ones if there are fewer.

    Departs: old vectors are known as directions only, so they get the mean norm of the batch's new
    vectors. Losses that compare by cosine, as in the paper, do not see it; for the others old and
    new vectors are then of one size.

    Args:
        share: Of each batch that enters with its old vector.
        credible: Part of each class that may.

    Example:
        >>> import torch
        >>> from midspan.methods import MixBCT
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = MixBCT.for_old(old, labels, dim=8)
        >>> terms = compat(torch.randn(40, 8), labels, old=old, rows=torch.arange(40))
        >>> sorted(terms)
        []
    """

    uses_old: ClassVar[bool] = True
    directions: tuple[str, ...] = ("direct",)

    centres: Tensor
    reach: Tensor

    def __init__(self, *, share: float = 0.3, credible: float = 0.9) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise ConfigError(f"mixbct: expected 0 ≤ share < 1, got {share}")
        if not 0 < credible <= 1:
            raise ConfigError(f"mixbct: expected 0 < credible ≤ 1, got {credible}")
        self.share = share
        self.credible = credible

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        old = same_dim(old, dim=dim, method="mixbct")
        self.register_buffer("centres", old.centres.detach().clone())  # (C, D)
        self.register_buffer("reach", _reach(old, self.credible))  # (C,)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        return {}

    def mix(self, vectors: Tensor, *, old: Tensor | None, labels: Tensor) -> Tensor:
        assert old is not None
        old = old.detach().to(vectors.dtype)
        credible = (old - self.centres[labels]).norm(dim=1) < self.reach[labels]  # (B,)
        # The loop seeds torch's global generator for each step.
        draws = torch.rand(len(vectors), device=vectors.device).masked_fill(~credible, torch.inf)
        first, places = draws.topk(int(self.share * len(vectors)), largest=False)
        replaced = torch.zeros_like(credible).index_fill_(0, places[first.isfinite()], True)
        norm = vectors.detach().norm(dim=1).mean()
        return torch.where(replaced.unsqueeze(1), F.normalize(old) * norm, vectors)


def _reach(old: OldArtifacts, credible: float) -> Tensor:
    """(C,) distance to the centre below which an image is among the closest part of its class.

    Halfway between the last image inside and the first outside, so that rounding decides nothing;
    infinite where all are inside.
    """
    distances = old.each(lambda own, labels: (own - old.centres[labels]).norm(dim=1)).detach()
    reach = torch.full((len(old.counts),), torch.inf)
    order = torch.argsort(old.labels, stable=True)
    for label, own in enumerate(torch.split(distances[order], old.counts.tolist())):
        # 0.9 · 10 images are 9, not 10 because 0.9 is stored a little too large
        inside = math.ceil(round(credible * len(own), 6))
        if inside < len(own):
            ranked = own.sort().values
            reach[label] = (ranked[inside - 1] + ranked[inside]) / 2
    return reach
