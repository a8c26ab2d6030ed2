"""AdvBCT: an elastic ball around each old class centre, and a discriminator that must not see
whether a vector is new or old."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.base import Batch, Method
from midspan.methods.direct import same_dim
from midspan.methods.old import OldArtifacts

NEW, OLD = 0, 1  # the classes of the discriminator


class AdvBCT(Method):
    """p2s_weight · L_p2s + adversarial_weight · γ · L_adv, in addition to the recognition loss.

    Paper: CVPR 2023 (AdvBCT). With n the unit new vector, c the old class centre (mean of unit
    vectors) and r the largest distance of the class's old vectors to it, outliers left out:

    - "p2s": max(0, ‖n − c‖ − r_e), where r_e = (1 − w)·r + w·threshold and w = σ(u) is learnt for
      each class. Classes with fewer than two images have no radius and are left alone.
    - "adversarial": cross-entropy of a discriminator on new and old vectors. It learns to tell
      them apart; the encoder gets its gradient times −α and learns to prevent that.

    Defaults: adversarial_weight 1, hidden 100, u from U(−1, 1) and reversal "rising",
    α = 2/(1 + e^(−10p)) − 1 with p the share of training done: released code. threshold 0.4: paper,
    figure 5 (released setting 1.0). gamma "falling": paper, whose code has (E − e + 1)/E in epoch e
    of E. reduction "batch" and p2s_weight 25, ours: the released code's 1 on the "mean" over the
    samples outside pushes each the harder the fewer they are, and is too weak next to a cosine loss
    of scale 24; "batch" divides by all samples of bounded classes (docs/methods/advbct.md,
    benchmarks/tune_methods.py). The paper's equation is "sum". sgd_lr 0.1: discriminator and
    boundaries learn by SGD, as everything does in the released code; under AdamW, which scales
    gradients to one size, the falling γ would not slow the discriminator (None: the run's own).

    Departs:
    - One discriminator pass over new and old vectors together. The released code makes two, each
      with its own batch statistics, which hide any shift or scale between the two.
    - The discriminator sees unit vectors: the cache of old vectors holds directions only, and
      search compares by cosine.
    - γ falls at every step as 1 − p: the code's value less 1/E at the start of each epoch.
    - Centres and radii come from the new training set, so classes that the old encoder did not
      know are bounded too; classes = "known" leaves them out, as the released code does.
    - Eq. 12 swaps w and 1 − w where r < threshold; as w is learnt, that is the same boundary.

    p2s alone can only loosen a boundary, towards max(r, threshold): −∂L/∂r_e ≥ 0. `tightening`
    (default 0, not in the paper) adds its weight times the mean r_e of the batch, which pulls
    boundaries in where few samples touch them.

    Ablations: adversarial_weight = 0, p2s_weight = 0, elastic = false (r_e = r), and [train]
    recognition_weight = 0 for rows without classification.

    Args:
        p2s_weight: Of the point-to-set term.
        adversarial_weight: Of the adversarial term.
        threshold: Of the elastic boundary.
        elastic: Learn the boundary of each class; False: its radius.
        reduction: What the point-to-set term is divided by: "mean", "batch" or "sum".
        classes: Which are bounded: "all", or those "known" to the old encoder.
        tightening: Weight of the mean boundary, which pulls boundaries in.
        gamma: Weight of the adversarial term along training.
        reversal: α along training.
        hidden: Width of the discriminator.
        sgd_lr: Learning rate of discriminator and boundaries; None: the run's own.

    Example:
        >>> import torch
        >>> from midspan.methods import AdvBCT
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = AdvBCT.for_old(old, labels, dim=8)
        >>> terms = compat(torch.randn(40, 8), labels, old=old, rows=torch.arange(40))
        >>> sorted(terms)
        ['adversarial', 'p2s']
    """

    uses_old: ClassVar[bool] = True
    directions: tuple[str, ...] = ("direct",)

    centres: Tensor
    radii: Tensor
    bounded: Tensor

    def __init__(
        self,
        *,
        p2s_weight: float = 25.0,
        adversarial_weight: float = 1.0,
        threshold: float = 0.4,
        elastic: bool = True,
        reduction: Literal["mean", "batch", "sum"] = "batch",
        classes: Literal["all", "known"] = "all",
        tightening: float = 0.0,
        gamma: Literal["falling", "constant"] = "falling",
        reversal: Literal["rising", "constant"] = "rising",
        hidden: int = 100,
        sgd_lr: float | None = 0.1,
    ) -> None:
        super().__init__()
        if threshold < 0:
            raise ConfigError(f"advbct: expected threshold >= 0 (a radius), got {threshold}")
        self.p2s_weight = p2s_weight
        self.adversarial_weight = adversarial_weight
        self.threshold = threshold
        self.elastic = elastic
        self.reduction = reduction
        self.classes = classes
        self.tightening = tightening
        self.gamma = gamma
        self.reversal = reversal
        self.hidden = hidden
        self.sgd_lr = sgd_lr
        self.looseness: nn.Parameter | None = None  # (C,) u, w = σ(u)
        self.discriminator: nn.Module | None = None

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        old = same_dim(old, dim=dim, method="advbct")
        bounded = old.counts >= 2
        if self.classes == "known":
            if not (old.label_map >= 0).any():
                raise ConfigError(
                    "advbct with classes = 'known' needs to know which classes the old encoder was "
                    "trained on, but none of the new ones is among them, or only old vectors are "
                    "there; use classes = 'all'"
                )
            bounded = bounded & (old.label_map >= 0)
        self.register_buffer("centres", old.centres.detach().clone())
        self.register_buffer("radii", old.radii.detach().clone())
        self.register_buffer("bounded", bounded)
        if self.elastic and self.p2s_weight:
            self.looseness = nn.Parameter(torch.empty(num_classes).uniform_(-1.0, 1.0))
        if self.adversarial_weight:
            self.discriminator = nn.Sequential(
                nn.Linear(dim, self.hidden),
                nn.BatchNorm1d(self.hidden),
                nn.ReLU(),
                nn.Linear(self.hidden, 2),
            )

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        unit = F.normalize(batch.vectors)  # (B, D)
        terms: dict[str, Tensor] = {}
        if self.p2s_weight:
            terms |= self._p2s(unit, batch.labels)
        if self.discriminator is not None:
            assert batch.old is not None
            terms["adversarial"] = (
                self.adversarial_weight
                * gamma(batch.progress, schedule=self.gamma)
                * self._adversarial(unit, batch.old.detach(), batch.progress)
            )
        return terms

    def boundaries(self) -> Tensor:
        """(C,) r_e of each class, between its radius and the threshold."""
        if self.looseness is None:
            return self.radii
        return self.radii.lerp(
            torch.full_like(self.radii, self.threshold), self.looseness.sigmoid()
        )

    def _p2s(self, unit: Tensor, labels: Tensor) -> dict[str, Tensor]:
        distances = (unit - self.centres[labels]).norm(dim=1)  # (B,)
        boundaries, bounded = self.boundaries()[labels], self.bounded[labels]  # (B,), (B,)
        excess = (distances - boundaries).clamp_min(0.0) * bounded
        # No sample outside, or none of a bounded class: 0 that still has a gradient.
        over = {"mean": excess > 0, "batch": bounded}.get(self.reduction)
        count = 1 if over is None else over.sum().clamp_min(1)
        terms = {"p2s": self.p2s_weight * excess.sum() / count}
        if self.tightening:
            mean = (boundaries * bounded).sum() / bounded.sum().clamp_min(1)
            terms["tightening"] = self.tightening * mean
        return terms

    def _adversarial(self, unit: Tensor, old: Tensor, progress: float) -> Tensor:
        assert self.discriminator is not None
        strength = alpha(progress, schedule=self.reversal)
        both = torch.cat([reverse_gradient(unit, strength), old.to(unit.dtype)])  # (2B, D)
        scores: Tensor = self.discriminator(both).log_softmax(1)  # (2B, 2)
        new_scores, old_scores = scores.chunk(2)
        return -new_scores[:, NEW].mean() - old_scores[:, OLD].mean()


def gamma(progress: float, *, schedule: str) -> float:
    """Weight of the adversarial term: 1 at the start, 0 at the end; or always 1."""
    return 1.0 - progress if schedule == "falling" else 1.0


def alpha(progress: float, *, schedule: str) -> float:
    """How much of the reversed gradient reaches the encoder: from 0 towards 1; or always 1."""
    return 2.0 / (1.0 + math.exp(-10.0 * progress)) - 1.0 if schedule == "rising" else 1.0


def reverse_gradient(vectors: Tensor, strength: float) -> Tensor:
    """The same vectors; their gradient comes back times −strength."""
    reversed_: Tensor = _Reversal.apply(vectors, strength)  # type: ignore[no-untyped-call]
    return reversed_


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradients[0], None
