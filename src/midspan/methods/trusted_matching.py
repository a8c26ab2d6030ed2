"""Trusted matching: new vectors match the old encoder's as far as it can be trusted, image by
image, while classes and negatives keep them apart."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.base import Batch, Method
from midspan.methods.old import OldArtifacts

SMALLEST = 1e-2  # of the largest variance: old directions of less are not raised further
PART = 2**16  # images whose old vectors are added up at a time
SEARCH_STEPS = 20  # halvings of the interval in which the least repair is: 1e-6 of it is left


class TrustedMatching(Method):
    """Three terms on n, the unit new vector, against o, the unit old vector of the same view.

    With c_k the unit old centre of class k, y the label:

    - "class":    class_weight · CE(scale·cos(n, c), y): the old centres as a classifier;
    - "contrast": contrast_weight · −log( e^{n·t/τ} / (e^{n·t/τ} + Σ e^{n·o_k/τ} + Σ e^{n·n_k/τ}) ),
      the sums over the `hardest` images of other classes;
    - "pull":     pull_weight · mean trust_i·‖unit(W·n) − unit(W·o)‖², over the images and their
      mixtures; W = Σ^(−whitening/2), Σ the covariance of all old vectors.

    With `whitening` = 0 the pull is that of L2, which sees the few directions in which the old
    vectors vary most. At 1 all directions of the old space count alike.

    trust_i = σ(lead_i / trust_width), lead_i = cos(o_i, c_y) − max_{k≠y} cos(o_i, c_k) with image i
    left out of its own centre: near 1 where the old encoder was right, near 0 where it was wrong.
    A mixture of two images is trusted as the mean of the two, weighted by their shares, and needs
    no label: the old encoder is a function that can be matched on any image ([train] mixup).

    t = o, or with `repair` > 0 the least move towards c_y by which t leads every other centre by
    `repair_margin`: t = unit((1 − β)·o + β·c_y), β ≤ repair.

    A new encoder of more dims than the old one is compatible by a prefix: n is then its first
    D_old dims, normalised; the other dims are free. [encoder] start = "ridge" starts training at
    the closed-form map to the old vectors.

    Own method. Terms: UniBCT's prototypes, Hot-refresh's contrast and the L2 baseline's pull.
    Defaults are those of first trials on validation classes of small image sets; for heads over
    frozen features `benchmarks/heads.py tune` chooses others.

    Args:
        class_weight: Of the term "class".
        contrast_weight: Of the term "contrast".
        pull_weight: Of the term "pull".
        scale: Of the cosines in "class".
        temperature: τ of "contrast".
        hardest: Images of other classes that count in "contrast".
        trust_width: How sharply trust falls where the old encoder was wrong.
        whitening: 0: the plain distance; 1: all directions of the old space count alike.
        prefix_weight: Of recognition by the compared prefix, where the dims differ.
        repair: The most that a target moves towards its class centre.
        repair_margin: By which it then leads every other centre.

    Example:
        >>> import torch
        >>> from midspan.methods import TrustedMatching
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = TrustedMatching.for_old(old, labels, dim=8)
        >>> terms = compat(torch.randn(40, 8), labels, old=old, rows=torch.arange(40))
        >>> sorted(terms)
        ['class', 'contrast', 'pull']
    """

    uses_old: ClassVar[bool] = True
    directions: tuple[str, ...] = ("direct",)

    centres: Tensor
    trust: Tensor
    whitener: Tensor

    def __init__(
        self,
        *,
        class_weight: float = 1.0,
        contrast_weight: float = 1.0,
        pull_weight: float = 10.0,
        scale: float = 12.0,
        temperature: float = 0.1,
        hardest: int = 10,
        trust_width: float = 0.05,
        whitening: float = 0.0,
        prefix_weight: float = 1.0,
        repair: float = 0.0,
        repair_margin: float = 0.05,
    ) -> None:
        super().__init__()
        if temperature <= 0 or hardest < 0 or trust_width < 0 or not 0 <= repair <= 1:
            raise ConfigError(
                "trusted-matching: expected temperature > 0, hardest >= 0 (0: all negatives), "
                "trust_width >= 0 (0: trust every image) and 0 <= repair <= 1, got "
                f"{temperature}, {hardest}, {trust_width} and {repair}"
            )
        self.class_weight = class_weight
        self.contrast_weight = contrast_weight
        self.pull_weight = pull_weight
        self.scale = scale
        self.temperature = temperature
        self.hardest = hardest
        self.trust_width = trust_width
        self.whitening = whitening
        self.prefix_weight = prefix_weight
        self.repair = repair
        self.repair_margin = repair_margin
        self.uses_mixed = pull_weight > 0
        self._old_dim = 0

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        if old is None:
            raise ConfigError(
                "trusted-matching needs the old encoder: name its run or its vectors in [old]"
            )
        if old.space.dim > dim:
            raise ConfigError(
                "trusted-matching compares the first dims of the new vectors with the old ones, so "
                f"the new dim must be at least the old one: old space {old.space}, new dim {dim}; "
                f"set [encoder] dim = {old.space.dim} or more"
            )
        self._old_dim = old.space.dim
        self.uses_classifier = self.prefix_weight > 0 and dim > old.space.dim
        self.register_buffer("centres", F.normalize(old.centres.detach()))  # (C, D_old)
        self.register_buffer("trust", self._trust(old))  # (N,)
        if self.whitening:
            self.register_buffer("whitener", whitener(old.vectors, self.whitening))

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.old is not None
        new = self._units(batch.vectors)  # (B, D_old)
        old = batch.old.detach().to(new.dtype)
        terms: dict[str, Tensor] = {}
        if self.class_weight:
            logits = self.scale * new @ self.centres.to(new.dtype).T  # (B, C)
            terms["class"] = self.class_weight * F.cross_entropy(logits, batch.labels)
        if self.uses_classifier:
            terms["prefix"] = self.prefix_weight * self._recognised(new, batch)
        if self.contrast_weight:
            terms["contrast"] = self.contrast_weight * self._contrast(new, old, batch.labels)
        if self.pull_weight:
            terms["pull"] = self.pull_weight * self._pull(new, old, batch)
        return terms

    def _units(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors[:, : self._old_dim])

    def _recognised(self, new: Tensor, batch: Batch) -> Tensor:
        """The prefix alone separates the classes, by the same dims of the class weights."""
        if batch.class_rows is None:
            raise ConfigError(
                "trusted-matching with more dims than the old encoder needs the class weights "
                "(C, D) of the new classifier; pass class_rows, or set prefix_weight = 0"
            )
        rows = F.normalize(batch.class_rows[:, : self._old_dim].to(new.dtype))
        return F.cross_entropy(self.scale * new @ rows.T, batch.labels)

    def _contrast(self, new: Tensor, old: Tensor, labels: Tensor) -> Tensor:
        targets = old if not self.repair else self.repaired(old, labels)
        same = labels.unsqueeze(1) == labels  # (B, B), the image itself included
        positive = (new * targets).sum(1, keepdim=True)  # (B, 1)
        negatives = [self._hardest(new @ others.T, same) for others in (old, new)]
        logits = torch.cat([positive, *negatives], dim=1) / self.temperature
        return (logits.logsumexp(1) - logits[:, 0]).mean()

    def _hardest(self, cosines: Tensor, masked: Tensor) -> Tensor:  # (B, B) → (B, K)
        cosines = cosines.masked_fill(masked, -torch.inf)
        if not self.hardest or self.hardest >= cosines.shape[1]:
            return cosines
        return cosines.topk(self.hardest, dim=1).values

    def _pull(self, new: Tensor, old: Tensor, batch: Batch) -> Tensor:
        squared = self._apart(new, old)  # (B,)
        weighted = self._trust_of(batch.rows, old, batch.labels) * squared
        mixed = batch.mixed
        if mixed is not None:
            apart = self._apart(self._units(mixed.vectors), mixed.old.detach().to(new.dtype))
            trust = self.trust.to(new.dtype)
            both = torch.lerp(trust[mixed.others], trust[mixed.rows], mixed.share.to(new.dtype))
            weighted = torch.cat([weighted, both * apart])
        return weighted.mean()

    def _apart(self, new: Tensor, old: Tensor) -> Tensor:
        """(B,) squared distances of unit vectors, by the spread of the old ones."""
        if self.whitening:
            whitener = self.whitener.to(new.dtype)
            new, old = F.normalize(new @ whitener), F.normalize(old @ whitener)
        return (new - old).square().sum(1)

    def _trust_of(self, rows: Tensor | None, old: Tensor, labels: Tensor) -> Tensor:
        """(B,) from the table; for images that have no row there, by the centres as they are."""
        if rows is not None:
            return self.trust[rows.to(self.trust.device)].to(old.dtype)
        return self._from_lead(lead(old @ self.centres.to(old.dtype).T, labels))

    def _trust(self, old: OldArtifacts) -> Tensor:
        """(N,) with each image left out of its own centre."""
        unit = F.normalize(old.centres)

        def measure(vectors: Tensor, labels: Tensor) -> Tensor:
            cosines = vectors @ unit.T  # (n, C)
            count = old.counts[labels].unsqueeze(1)
            rest = F.normalize(count * old.centres[labels] - vectors)  # the class without it
            own = (vectors * rest).sum(1).masked_fill(count.squeeze(1) < 2, 0.0)
            return lead(cosines.scatter(1, labels.unsqueeze(1), own.unsqueeze(1)), labels)

        return self._from_lead(old.each(measure)).detach()

    def _from_lead(self, leads: Tensor) -> Tensor:
        if not self.trust_width:
            return torch.ones_like(leads)
        return (leads / self.trust_width).sigmoid()

    def repaired(self, old: Tensor, labels: Tensor) -> Tensor:
        """(B, D) old vectors, moved as little towards their class centre as makes them right."""
        centres = self.centres.to(old.dtype)
        own = centres[labels]  # (B, D)
        from_old, from_own = old @ centres.T, own @ centres.T  # (B, C) each

        def leads(share: Tensor) -> Tensor:  # (B, 1) → (B,)
            moved = torch.lerp(old, own, share)
            cosines = torch.lerp(from_old, from_own, share) / moved.norm(dim=1, keepdim=True)
            return lead(cosines, labels)

        low = torch.zeros(len(old), 1, dtype=old.dtype, device=old.device)
        high = torch.full_like(low, self.repair)
        enough = leads(low) >= self.repair_margin
        for _ in range(SEARCH_STEPS):
            middle = (low + high) / 2
            reached = (leads(middle) >= self.repair_margin).unsqueeze(1)
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        share = torch.where(enough.unsqueeze(1), torch.zeros_like(high), high)
        return F.normalize(torch.lerp(old, own, share))


def whitener(vectors: Tensor, power: float) -> Tensor:
    """(N, D) → (D, D) the covariance to the power −power/2, scaled to 1 where it is largest."""
    total = torch.zeros(vectors.shape[1], dtype=torch.float64)
    squares = torch.zeros(vectors.shape[1], vectors.shape[1], dtype=torch.float64)
    for start in range(0, len(vectors), PART):  # vectors may be a mapped file
        wide = vectors[start : start + PART].double()
        total += wide.sum(0)
        squares += wide.T @ wide
    mean = total / len(vectors)
    variances, axes = torch.linalg.eigh(squares / len(vectors) - torch.outer(mean, mean))
    variances = (variances / variances.amax().clamp_min(1e-12)).clamp_min(SMALLEST)
    raised: Tensor = (axes * variances.pow(-power / 2)) @ axes.T
    return raised.float()


def lead(cosines: Tensor, labels: Tensor) -> Tensor:
    """(B, C) → (B,) the cosine to the own class minus the largest to another one."""
    index = labels.unsqueeze(1)
    others = cosines.scatter(1, index, -torch.inf).amax(1)
    return cosines.gather(1, index).squeeze(1) - others
