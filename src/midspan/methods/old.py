"""The old artifacts: all that a method may know of the old encoder, computed once.

No network here: an old encoder that exists only as a file of vectors is as good as any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import DataError
from midspan.spaces import Space

PART = 2**16  # images whose old vectors are processed at a time: the rest stays in the mapped file
FEW = 4  # classes with fewer images keep all of them: quartiles of three values say nothing


@dataclass(frozen=True, slots=True)
class OldClassifier:
    """The frozen rows that the old encoder was trained with.

    Example:
        >>> import torch
        >>> from midspan.methods import OldClassifier
        >>> classifier = OldClassifier(torch.eye(3), bias=None, scale=10.0, normalised=True)
        >>> classifier.logits(torch.tensor([[0.0, 2.0, 0.0]])).tolist()
        [[0.0, 10.0, 0.0]]
    """

    rows: Tensor  # (C_old, D_old)
    bias: Tensor | None  # (C_old,)
    scale: float
    normalised: bool  # logits are scale·cosine, or plain dot products

    def logits(self, vectors: Tensor) -> Tensor:  # (B, D_old) → (B, C_old)
        if self.normalised:
            return self.scale * F.linear(F.normalize(vectors), F.normalize(self.rows))
        return F.linear(vectors, self.rows, self.bias)


@dataclass(frozen=True, slots=True)
class OldArtifacts:
    """Facts about the old encoder on the *new* training set; class ids are the new ones.

    Example:
        >>> import torch
        >>> import midspan as ms
        >>> from midspan.methods import OldArtifacts
        >>> vectors, labels = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> old = OldArtifacts.measure(
        ...     space=ms.Space("old", 4), vectors=vectors, labels=labels, num_classes=2
        ... )
        >>> old.counts.tolist(), old.centres[1].tolist()
        ([2, 2], [0.0, 1.0, 0.0, 0.0])
    """

    space: Space
    vectors: Tensor  # (N, D_old) unit
    labels: Tensor  # (N,)
    counts: Tensor  # (C,) images of each class
    centres: Tensor  # (C, D_old) mean of the unit vectors, not normalised again; 0 without images
    radii: Tensor  # (C,) largest distance to the centre, outliers left out
    angles: Tensor  # (C,) largest angle to the centre, all images
    classifier: OldClassifier | None
    label_map: Tensor  # (C,) class of the old classifier, or -1

    @classmethod
    def measure(
        cls,
        *,
        space: Space,
        vectors: Tensor,
        labels: Tensor,
        num_classes: int,
        classifier: OldClassifier | None = None,
        label_map: Tensor | None = None,
        views: Tensor | None = None,
    ) -> OldArtifacts:
        """Centres, radii and angles of each class from the old vectors of its images.

        views: (K, N, D_old), old vectors of K augmented views of each image; centres, radii and
        angles are then those of the views, because that is what the new encoder is shown.
        """
        if len(vectors) != len(labels):
            raise DataError(
                f"expected one label for each old vector, got {len(labels)} for {len(vectors)}"
            )
        vectors = F.normalize(vectors.float())
        counts = torch.bincount(labels, minlength=num_classes)
        seen, of = vectors, labels
        if views is not None:
            seen, of = F.normalize(views.float().flatten(0, 1)), labels.repeat(len(views))
        sums = torch.zeros(num_classes, vectors.shape[1]).index_add_(0, of, seen)
        centres = sums / torch.bincount(of, minlength=num_classes).clamp_min(1).unsqueeze(1)
        distances = (seen - centres[of]).norm(dim=1)
        largest = angle(seen, F.normalize(centres)[of])
        angles = torch.zeros(num_classes).scatter_reduce_(0, of, largest, "amax")
        if label_map is None:
            label_map = torch.full((num_classes,), -1)
        return cls(
            space=space,
            vectors=vectors,
            labels=labels,
            counts=counts,
            centres=centres,
            radii=_radii(distances, of, num_classes),
            angles=angles,
            classifier=classifier,
            label_map=label_map,
        )

    def each(self, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """(N,) one number an image, from (vectors, labels) of some of them at a time."""
        starts = range(0, max(1, len(self.labels)), PART)
        parts = (slice(start, start + PART) for start in starts)
        return torch.cat([measure(self.vectors[part], self.labels[part]) for part in parts])


def angle(one: Tensor, other: Tensor) -> Tensor:
    """Angles (N,) between unit rows. Exact near 0 and π, where acos loses half the digits."""
    sine = torch.linalg.vector_norm(one - other, dim=1)  # 2·sin(θ/2)
    cosine = torch.linalg.vector_norm(one + other, dim=1)  # 2·cos(θ/2)
    return 2.0 * torch.atan2(sine, cosine)


def _radii(distances: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Largest distance of each class inside q1 − 1.5·IQR … q3 + 1.5·IQR (AdvBCT's code)."""
    radii = torch.zeros(num_classes)
    order = torch.argsort(labels, stable=True)
    ends = torch.bincount(labels, minlength=num_classes).cumsum(0).tolist()
    start = 0
    for label, end in enumerate(ends):
        own = distances[order[start:end]]
        start = end
        if len(own) >= FEW:
            q1, q3 = torch.quantile(own, 0.25), torch.quantile(own, 0.75)
            inside = (own >= q1 - 1.5 * (q3 - q1)) & (own <= q3 + 1.5 * (q3 - q1))
            own = own[inside]
        if len(own):
            radii[label] = own.max()
    return radii
