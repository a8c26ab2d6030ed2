"""LCE: class weights on the old class centres, images no further from them than before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.base import Batch, Method
from midspan.methods.old import OldArtifacts, angle
from midspan.methods.transformation import Maps

ROUNDING = 1e-6  # what float32 may add to an angle or cosine when a vector is normalised again


class LCE(Method):
    """Learning compatible embeddings: two terms on point-to-set distances.

    With w_j the unit old centre of class j and b_j its largest angle to an old image of the class:

    - align:    align · mean_j (1 - cos(row_j, w_j)) over all classes that have images;
    - boundary: boundary · mean_i max(0, ∠(ẑ_i, w_y) - b_y - slack), or in cosines
      max(0, cos(b_y + slack) - cos ∠) with boundary_form = "cosine" (the released code's form).

    transformation = "rbt" learns a map a direction along (`depth` blocks, 0 = linear only), so that
    dims may differ: align becomes the mean of the two directions, the boundary goes through
    new → old, and the vectors are compared backward or forward instead of directly.

    Paper: Meng et al., ICCV 2021. Defaults: align 10 and boundary 3, ours, because the 1 and 1 of
    AdvBCT's benchmark left cross below old self in short schedules with a margin loss, and a
    boundary of 10 takes from self (benchmarks/tune_methods.py); depth 0
    (AdvBCT's benchmark; the released code has 4); slack 0 rad (paper; larger for a new encoder that
    is weaker). The released code's 100 for align is on a mean over classes *and* d coordinates of
    the squared difference, which is 2/d · (1 - cos): align = 100 · 2/d here, 0.1 at its d = 2048
    and 1.6 at d = 128; its weight of the boundary is 1.
    Departs: (1 - cos) instead of the squared distance; vectors are normalised before the boundary,
    which the released code leaves out, so that its hinge is never open; angles by atan2, whose
    gradient is bounded where acos has none. Classes whose old vectors cancel out have no centre
    and take no part.

    Args:
        align: Weight of the term that aligns class rows with old centres.
        boundary: Weight of the term that keeps vectors within the old boundary.
        boundary_form: "angle", or "cosine" as the released code.
        slack: Radians beyond the old boundary that cost nothing.
        transformation: "rbt" learns a map in each direction, so that dims may differ.
        depth: Blocks of that map; 0: linear only.

    Example:
        >>> import torch
        >>> from midspan.methods import LCE
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = LCE.for_old(old, labels, dim=8)
        >>> proxies = torch.randn(4, 8)  # of the recognition loss
        >>> sorted(compat(torch.randn(40, 8), labels, old=old, class_rows=proxies))
        ['align', 'boundary']
    """

    uses_old: ClassVar[bool] = True
    directions: tuple[str, ...] = ("direct",)

    centres: Tensor
    limits: Tensor
    has_centre: Tensor

    def __init__(
        self,
        *,
        align: float = 10.0,
        boundary: float = 3.0,
        boundary_form: Literal["angle", "cosine"] = "angle",
        slack: float = 0.0,
        transformation: Literal["none", "rbt"] = "none",
        depth: int = 0,
    ) -> None:
        super().__init__()
        if slack < 0:
            raise ConfigError(f"lce: expected slack >= 0 (radians), got {slack}")
        self.align = align
        self.boundary = boundary
        self.boundary_form = boundary_form
        self.slack = slack
        self.transformation = transformation
        self.depth = depth
        self.learnt: Maps | None = None
        self.uses_classifier = True
        if transformation == "rbt":
            self.directions = ("backward", "forward")

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        if old is None:
            raise ConfigError("lce needs the old encoder: name its run or its vectors in [old]")
        if self.transformation == "rbt":
            self.learnt = Maps(old, dim=dim, depth=self.depth)
        elif old.space.dim != dim:
            raise ConfigError(
                f"lce without a transformation compares vectors as they are, so the new dim must "
                f"be the old one: old space {old.space}, new dim {dim}; set [method] "
                f"transformation = 'rbt', or [encoder] dim = {old.space.dim}"
            )
        centres = F.normalize(old.centres)  # (C, D_old)
        self.register_buffer("centres", centres)
        self.register_buffer("limits", (old.angles + ROUNDING + self.slack).clamp_max(math.pi))
        self.register_buffer("has_centre", old.centres.norm(dim=1) > ROUNDING)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        if batch.class_rows is None:
            raise ConfigError(
                "lce aligns the class weights of the recognition loss, and this loss has none; use "
                "a loss with a classifier, e.g. [loss] name = 'cosface'"
            )
        return {
            "align": self.align * self._align(batch.class_rows),
            "boundary": self.boundary * self._boundary(batch.vectors, batch.labels),
        }

    def maps(self) -> Mapping[str, nn.Module]:
        return {} if self.learnt is None else self.learnt.by_direction()

    def _align(self, class_rows: Tensor) -> Tensor:
        if self.learnt is not None:
            to_old, to_new = self.learnt.to_old, self.learnt.to_new
            losses = 1.0 - 0.5 * (
                F.cosine_similarity(to_old(class_rows), self.centres)
                + F.cosine_similarity(class_rows, to_new(self.centres))
            )
        else:
            losses = 1.0 - F.cosine_similarity(class_rows, self.centres)  # (C,)
        return _mean_where(losses, self.has_centre)

    def _boundary(self, vectors: Tensor, labels: Tensor) -> Tensor:
        if self.learnt is not None:
            vectors = self.learnt.to_old(vectors)
        units, centres, limits = F.normalize(vectors), self.centres[labels], self.limits[labels]
        if self.boundary_form == "cosine":
            beyond = limits.cos() - ROUNDING - (units * centres).sum(1)
        else:
            beyond = angle(units, centres) - limits
        return _mean_where(beyond.relu(), self.has_centre[labels])


def _mean_where(values: Tensor, counted: Tensor) -> Tensor:
    """Mean of the counted values; without any, 0 that still has a gradient."""
    return (values * counted).sum() / counted.sum().clamp_min(1)
