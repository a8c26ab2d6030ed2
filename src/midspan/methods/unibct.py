"""UniBCT: new vectors must recognise their class among old prototypes, which are refined by the
new encoder's own view of which images belong together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.losses.arcface import ArcFace
from midspan.losses.base import cosines
from midspan.methods.base import Batch, Method
from midspan.methods.direct import same_dim
from midspan.methods.old import OldArtifacts

PADDED = 2**23  # entries of the padded graphs that are processed at a time


class UniBCT(Method):
    """weight · cross-entropy of scale·cos(n, P_k), P_k the old prototype of each class with images.

    Paper: IJCAI 2022 (UniBCT), of which the terms are known through the ports in AdvBCT's and
    MixBCT's code. No old classifier is needed. The true class has an angular margin.

    Structural prototype refinement, when a share `refine_at` of training is done: inside a class
    of m images, E = softmax over the other images of n_i·n_j / temperature, each row summing to 1;
    P = mean of (1 − spread)·(I − spread·E)⁻¹ V with V the old vectors of the class. An image that
    the new encoder sees apart from its class then counts less.

    Defaults: weight 1 (both ports); scale 12 and margin 0, ours (benchmarks/tune_methods.py;
    AdvBCT's port has 30 and 0.3 rad, a little less of both self and cross); spread 0.9,
    temperature 0.05, refine_at 10/35 and 20/35 (MixBCT's port). The port keeps the term out until
    the first refinement, `starts_at` = 10/35; here it is there from the start
    (docs/methods/unibct.md). Up to `closed_form_up_to` = 256 images the system is solved; beyond,
    `steps` = 50 propagation steps are made (0.9^50 = 0.005 of the change is missing).

    Departs:
    - Rows of E sum to 1. In the port its columns do, and then the mean cannot change at all.
    - The graph takes each image's vector from its last training step (a bank of N·D numbers, kept
      with the checkpoint) instead of an extra pass over all images. An image that was not seen
      yet is outside of the graph: it keeps its plain share of the mean.
    - Prototypes are compared by cosine with a scale of our own; in the port the logits are plain
      products whose size is whatever the old vectors' norm was.
    - Only the mean is needed, so one system of m unknowns is solved for each class: the weights
      of its images, as PageRank does.

    Args:
        weight: Of the term.
        scale: Of the cosines.
        margin: Of the true class, in radians.
        refine_at: Shares of training after which prototypes are refined.
        starts_at: Share of training before which the term is left out.
        spread: Of the propagation inside a class.
        temperature: Of its graph.
        closed_form_up_to: Images of a class up to which the system is solved.
        steps: Propagation steps beyond that.

    Example:
        >>> import torch
        >>> from midspan.methods import UniBCT
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = UniBCT.for_old(old, labels, dim=8)
        >>> terms = compat(torch.randn(40, 8), labels, old=old, rows=torch.arange(40))
        >>> sorted(terms)
        ['prototype']
    """

    uses_old: ClassVar[bool] = True
    directions: tuple[str, ...] = ("direct",)

    prototypes: Tensor
    target_of: Tensor
    bank: Tensor
    seen: Tensor
    refinements: Tensor

    def __init__(
        self,
        *,
        weight: float = 1.0,
        scale: float = 12.0,
        margin: float = 0.0,
        refine_at: tuple[float, ...] = (10 / 35, 20 / 35),
        starts_at: float = 0.0,
        spread: float = 0.9,
        temperature: float = 0.05,
        closed_form_up_to: int = 256,
        steps: int = 50,
    ) -> None:
        super().__init__()
        if not 0 <= spread < 1:
            raise ConfigError(f"unibct: expected 0 ≤ spread < 1, got {spread}")
        if temperature <= 0:
            raise ConfigError(f"unibct: expected temperature > 0, got {temperature}")
        if any(not 0 <= share <= 1 for share in (*refine_at, starts_at)):
            raise ConfigError(
                "unibct: expected refine_at and starts_at as shares of training, between 0 and 1, "
                f"got {list(refine_at)} and {starts_at}"
            )
        self.weight = weight
        self.refine_at = tuple(sorted(refine_at))
        self.starts_at = starts_at
        self.spread = spread
        self.temperature = temperature
        self.closed_form_up_to = closed_form_up_to
        self.steps = steps
        self.head = ArcFace(scale=scale, margin=margin)
        self._refined = 0  # what `refinements` holds, without asking the device

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        old = same_dim(old, dim=dim, method="unibct")
        present = old.counts > 0
        target_of = torch.full((num_classes,), -1)
        target_of[present] = torch.arange(int(present.sum()))
        # The old vectors come from the cache again after a restart; the rest is saved.
        self._old_vectors = old.vectors.detach()  # (N, D)
        self._images = torch.argsort(old.labels, stable=True)  # (N,) class by class
        self._counts = old.counts[present]  # (P,)
        self.register_buffer("prototypes", old.centres[present].detach().clone())  # (P, D)
        self.register_buffer("target_of", target_of)  # (C,) new class → prototype, or -1
        kept = len(old.vectors) if self.refine_at else 0
        self.register_buffer("bank", torch.zeros(kept, dim))  # (N, D) unit new vectors
        self.register_buffer("seen", torch.zeros(kept, dtype=torch.bool))
        self.register_buffer("refinements", torch.zeros((), dtype=torch.int64))

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        due = sum(batch.progress >= share for share in self.refine_at)
        if due > self._refined:
            if due > int(self.refinements):  # else: made before a restart
                self.refine()
                self.refinements.fill_(due)
            self._refined = due
        if self._refined < len(self.refine_at):
            self._remember(batch)

        targets = self.target_of[batch.labels]
        known = targets >= 0
        if batch.progress < self.starts_at or not known.any():
            return {"prototype": 0.0 * batch.vectors.sum()}  # 0 that still has a gradient
        vectors, targets = batch.vectors[known], targets[known]
        logits = self.head.scale * cosines(vectors, self.prototypes)  # (B, P)
        loss = self.head(vectors=vectors, logits=logits, labels=targets)
        return {"prototype": self.weight * loss}

    @torch.no_grad()
    def _remember(self, batch: Batch) -> None:
        if batch.rows is None:
            raise ConfigError(
                "unibct keeps a bank of vectors for its refinement: say which training images "
                "these are (rows=…), or set refine_at = ()"
            )
        rows = batch.rows.to(self.bank.device)
        self.bank[rows] = F.normalize(batch.vectors.detach()).to(self.bank.dtype)
        self.seen[rows] = True

    @torch.no_grad()
    def refine(self) -> None:
        """Compute the prototypes again, from the vectors in the bank."""
        device, dtype = self.bank.device, self.bank.dtype
        ends = self._counts.cumsum(0)
        for classes, size in _groups(self._counts, apart_from=self.closed_form_up_to):
            place = torch.arange(size)
            present = place < self._counts[classes, None]  # (K, M), padded to the largest
            index = (ends - self._counts)[classes, None] + place
            images = self._images[index.clamp_max(len(self._images) - 1)]  # (K, M)
            weights = image_weights(
                self.bank[images.to(device)],
                present=present.to(device),
                seen=present.to(device) & self.seen[images.to(device)],
                spread=self.spread,
                temperature=self.temperature,
                steps=None if size <= self.closed_form_up_to else self.steps,
            )
            old = self._old_vectors[images].to(device, dtype)  # (K, M, D)
            self.prototypes[classes.to(device)] = torch.einsum("km,kmd->kd", weights, old)


def image_weights(
    vectors: Tensor,
    *,
    present: Tensor,
    seen: Tensor,
    spread: float,
    temperature: float,
    steps: int | None,
) -> Tensor:
    """(K, M) how much each image counts in the refined mean of its class; each class sums to 1.

    The mean of (1 − s)(I − sE)⁻¹V is xᵀV with x = s·Eᵀx + (1 − s)/m: solved, or iterated `steps`
    times from x = 1/m. vectors (K, M, D) are unit; `present` marks what is not padding, `seen`
    what belongs to the graph.
    """
    cos = vectors @ vectors.mT  # (K, M, M)
    alone = torch.eye(cos.shape[1], dtype=torch.bool, device=cos.device)
    linked = seen[:, :, None] & seen[:, None, :] & ~alone
    scores = (cos / temperature).masked_fill(~linked, -torch.inf)
    # Images without a neighbour point at themselves, so that their share stays 1/m.
    scores = scores.masked_fill(alone & ~linked.any(2, keepdim=True), 0.0)
    back = spread * scores.softmax(2).mT  # (K, M, M) s·Eᵀ
    even = present.to(cos.dtype) / present.sum(1, keepdim=True)  # (K, M)
    if steps is None:
        identity = alone.to(cos.dtype)
        solved: Tensor = torch.linalg.solve(identity - back, (1.0 - spread) * even[:, :, None])
        return solved[:, :, 0]
    weights = even
    for _ in range(steps):
        weights = (back @ weights[:, :, None])[:, :, 0] + (1.0 - spread) * even
    return weights


def _groups(counts: Tensor, *, apart_from: int) -> Iterator[tuple[Tensor, int]]:
    """(classes, size of the largest): like sizes together, as many as fit in PADDED.

    Classes of more images than `apart_from` are in separate groups.
    """
    order = counts.argsort(descending=True)
    large = int((counts > apart_from).sum())
    start = 0
    while start < len(order):
        size = int(counts[order[start]])
        stop = start + max(1, PADDED // (size * size))
        if start < large:
            stop = min(stop, large)
        yield order[start:stop], size
        start = stop
