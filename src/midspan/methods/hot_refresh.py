"""Hot-refresh (RACT): the old vector of an image is nearer than any other image, old or new."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.base import Batch, Method
from midspan.methods.direct import same_dim
from midspan.methods.old import OldArtifacts, OldClassifier
from midspan.methods.old_rows import with_synthesised_rows


class HotRefresh(Method):
    """Regression-alleviating compatible training, arXiv:2201.09724, in three `variant`s.

    n_i is the new, o_i the old unit vector of image i; negatives are images of other labels:

    - "contrastive": -log( e^{n_i·o_i/τ} / (e^{n_i·o_i/τ} + Σ e^{n_i·o_k/τ} + Σ e^{n_i·n_k/τ}) );
    - "triplet": mean of max(0, ‖n_i-o_i‖ - ‖n_i-o_k‖ + margin), plus the same with n_k;
    - "classifier": cross-entropy over the old classifier's logits next to the new classifier's with
      its true class left out; the target is the old row of the label. Classes that the old
      classifier did not know get their old centre as row, all of them if only vectors are known.

    The positive is the same image alone: others of its label are in neither sum. The `hardest`
    negatives of each family count, or all if there are fewer (0: always all). negatives = "old"
    leaves out everything new-to-new: the plain contrastive or triplet loss, BCT for "classifier".

    Defaults: weight 1, margin 0.8, hardest 10 (released code); temperature 0.1, ours
    (benchmarks/tune_methods.py; the paper and the released code's default have 0.05, its training
    files 0.01); scale 24, the logit scale of rows
    that are all synthesised (that of the recognition loss in benchmarks/configs).
    Departs: gradients also reach n_k, as the equation says; the released code gathers them across
    devices as constants. Masked pairs are -∞ before the hardest are chosen, so that they can never
    be among them.

    Args:
        weight: Of the term.
        variant: "contrastive", "triplet" or "classifier".
        negatives: "both" old and new images, or "old" alone.
        temperature: τ of "contrastive".
        hardest: Negatives of each family that count; 0: all.
        margin: Of "triplet".
        scale: Logit scale of rows that are all synthesised.

    Example:
        >>> import torch
        >>> from midspan.methods import HotRefresh
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = HotRefresh.for_old(old, labels, dim=8)
        >>> terms = compat(torch.randn(40, 8), labels, old=old, rows=torch.arange(40))
        >>> sorted(terms)
        ['contrastive']
    """

    uses_old: ClassVar[bool] = True
    directions: tuple[str, ...] = ("direct",)

    rows: Tensor
    bias: Tensor
    target_of: Tensor

    def __init__(
        self,
        *,
        weight: float = 1.0,
        variant: Literal["contrastive", "triplet", "classifier"] = "contrastive",
        negatives: Literal["both", "old"] = "both",
        temperature: float = 0.1,
        hardest: int = 10,
        margin: float = 0.8,
        scale: float = 24.0,
    ) -> None:
        super().__init__()
        if temperature <= 0 or hardest < 0:
            raise ConfigError(
                f"hot-refresh: expected temperature > 0 and hardest >= 0 (0: all negatives), got "
                f"temperature {temperature}, hardest {hardest}"
            )
        self.weight = weight
        self.variant = variant
        self.negatives = negatives
        self.temperature = temperature
        self.hardest = hardest
        self.margin = margin
        self.scale = scale
        self.uses_classifier = variant == "classifier" and negatives == "both"

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        old = same_dim(old, dim=dim, method="hot-refresh")
        if self.variant == "classifier":
            frozen, target_of = with_synthesised_rows(old, scale=self.scale)
            self.scale, self._normalised = frozen.scale, frozen.normalised
            zeros = torch.zeros(len(frozen.rows))
            bias = zeros if frozen.bias is None else frozen.bias
            self.register_buffer("rows", frozen.rows.detach().clone())
            self.register_buffer("bias", bias.detach().clone())
            self.register_buffer("target_of", target_of.clone())  # (C,) new class → row, or -1

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        if self.variant == "classifier":
            value = self._classifier(batch)
        else:
            assert batch.old is not None
            new, old = F.normalize(batch.vectors), F.normalize(batch.old.detach())
            same = batch.labels.unsqueeze(1) == batch.labels  # (B, B), the image itself included
            families = [old, new] if self.negatives == "both" else [old]
            negatives = [self._hardest(new @ other.T, same) for other in families]
            if self.variant == "triplet":
                value = self._triplet((new - old).norm(dim=1), negatives)
            else:
                value = self._contrastive((new * old).sum(1), negatives)
        return {self.variant: self.weight * value}

    def _hardest(self, cosines: Tensor, masked: Tensor) -> Tensor:  # (B, B) → (B, K)
        cosines = cosines.masked_fill(masked, -torch.inf)
        if not self.hardest or self.hardest >= cosines.shape[1]:
            return cosines
        return cosines.topk(self.hardest, dim=1).values

    def _contrastive(self, positive: Tensor, negatives: list[Tensor]) -> Tensor:
        logits = torch.cat([positive.unsqueeze(1), *negatives], dim=1) / self.temperature
        return (logits.logsumexp(1) - logits[:, 0]).mean()

    def _triplet(self, positive: Tensor, negatives: list[Tensor]) -> Tensor:
        total = positive.sum() * 0.0  # without any negative: 0 that still has a gradient
        for cosines in negatives:
            real = cosines.isfinite()
            distances = (2.0 - 2.0 * cosines.masked_fill(~real, 0.0)).clamp_min(1e-12).sqrt()
            losses = (positive.unsqueeze(1) - distances + self.margin).relu()
            total = total + (losses * real).sum() / real.sum().clamp_min(1)
        return total

    def _classifier(self, batch: Batch) -> Tensor:
        frozen = OldClassifier(
            rows=self.rows, bias=self.bias, scale=self.scale, normalised=self._normalised
        )
        logits = frozen.logits(batch.vectors)  # (B, C_old)
        if self.negatives == "both":
            if batch.logits is None:
                raise ConfigError(
                    "hot-refresh with variant = 'classifier' needs the logits of the recognition "
                    "loss, and this loss has no classifier; use e.g. [loss] name = 'cosface', or "
                    "negatives = 'old'"
                )
            others = batch.logits.scatter(1, batch.labels.unsqueeze(1), -torch.inf)  # (B, C)
            logits = torch.cat([logits, others], dim=1)
        targets = self.target_of[batch.labels]
        losses = F.cross_entropy(logits, targets, ignore_index=-1, reduction="none")
        return losses.sum() / (targets >= 0).sum().clamp_min(1)
