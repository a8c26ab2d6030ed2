"""Templates: one vector for all the images and video frames that show one subject.

`pool_templates` is the pooling of the IJB evaluations; `fuse_templates` weighs each member by its
uncertainty with any `Fusion`, of which `inverse_variance_fusion` (PFE, URL) is shipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from midspan.deprecation import renamed_argument
from midspan.errors import UnknownId, VectorError
from midspan.spaces import FloatArray

Labels = npt.NDArray[Any]
Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]

CHUNK = 16384  # members pooled at a time: 64 MiB of float64 at 512-d


@dataclass(frozen=True, slots=True)
class Templates:
    """Unit vectors of T templates; those without a face are zero and not `present`."""

    ids: Labels  # (T,) sorted
    vectors: FloatArray  # (T, D)
    present: npt.NDArray[np.bool_]  # (T,)
    variances: FloatArray | None = None  # (T, K) where the fusion gives them

    def __len__(self) -> int:
        return len(self.ids)

    def rows_of(self, ids: Labels) -> Ints:
        """Row of each template id; unknown ones are an error."""
        rows = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        missing = self.ids[rows] != ids
        if missing.any():
            raise UnknownId(
                f"{int(missing.sum())} of {len(ids)} template ids are not among these "
                f"{len(self)} templates, first {ids[missing][0]!s}"
            )
        return rows


class Fusion(Protocol):
    """Members of one template (n, D), their variances (n, K) → one vector (D,), variance (K,)."""

    def __call__(self, vectors: Floats, variances: Floats) -> tuple[Floats, Floats]: ...


@renamed_argument("wanted", "requested")
def pool_templates(
    vectors: Floats,
    template_ids: Labels,
    media_ids: Labels,
    *,
    rows: Ints | None = None,
    weights: Floats | None = None,
    requested: Labels | None = None,
) -> Templates:
    """Mean inside each medium, sum over the media, then unit length.

    So a long video counts as much as one photo. Member i is `vectors[i]`, or `vectors[rows[i]]`
    where an image is in several templates or in none.

    Args:
        vectors: (N, D) vectors of images.
        template_ids: (M,) the template of each member.
        media_ids: (M,) the photo or video that each member is from.
        rows: (M,) the vector of each member; None: member i is vector i.
        weights: (M,) multiply the vectors first (detector scores); as in the code everyone uses
            for IJB-B/C they do not enter the divisor of the mean.
        requested: The templates to return, whether members are at hand or not (default: those of
            the members); one without a member, or with all weights 0, is not present.

    Returns:
        One unit vector for each template, sorted by id.

    Raises:
        VectorError: Arrays do not fit together, or the members of a template cancel out.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> vectors, templates = np.eye(3, dtype=np.float32), np.array([7, 7, 9])
        >>> pooled = ms.evaluation.pool_templates(vectors, templates, media_ids=np.arange(3))
        >>> pooled.vectors.shape
        (2, 3)
    """
    rows = _check_members(vectors, rows, template_ids, media_ids)
    members = len(rows)
    factor = _one_over_medium_size(template_ids, media_ids)
    weights = np.ones(members) if weights is None else np.asarray(weights, dtype=np.float64)
    if weights.shape != (members,) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise VectorError(
            f"expected one finite weight, 0 or more, for each of {members} vectors, got shape "
            f"{weights.shape}"
        )
    factor = factor * weights
    ids = np.unique(template_ids if requested is None else requested)
    pooled = np.zeros((len(ids), vectors.shape[1]), dtype=np.float32)
    present = np.zeros(len(ids), dtype=bool)
    for part, starts, places in _chunks(ids, template_ids):
        weighted = vectors[rows[part]] * factor[part, None]  # float64
        sums = np.add.reduceat(weighted, starts, axis=0)
        seen = np.add.reduceat(weights[part], starts) > 0
        norms = np.linalg.norm(sums, axis=1)
        lost = seen & ~(np.isfinite(norms) & (norms > 0))
        if lost.any():
            raise VectorError(
                f"the members of template {ids[places[lost][0]]!s} sum to a vector without "
                "direction (zero or not finite); look at its vectors"
            )
        pooled[places[seen]] = sums[seen] / norms[seen, None]
        present[places[seen]] = True
    return Templates(ids=ids, vectors=pooled, present=present)


@renamed_argument("wanted", "requested")
def fuse_templates(
    vectors: Floats,
    variances: Floats,
    template_ids: Labels,
    *,
    fusion: Fusion,
    rows: Ints | None = None,
    requested: Labels | None = None,
) -> Templates:
    """One call of `fusion` for each template; media play no part (IJB-S is not media-normalised).

    Args:
        vectors: (N, D) vectors of images.
        variances: (N, K): K = D for one number per dimension (PFE), fewer for slices (URL), 1 for
            one number per image.
        template_ids: (M,) the template of each member.
        fusion: Such as `inverse_variance_fusion`.
        rows: As for `pool_templates`.
        requested: As for `pool_templates`.

    Returns:
        One vector and its variances for each template, sorted by id.

    Raises:
        VectorError: Arrays do not fit together, or the fusion has no direction.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> vectors, templates = np.eye(3, dtype=np.float32), np.array([7, 7, 9])
        >>> fused = ms.evaluation.fuse_templates(
        ...     vectors,
        ...     np.full((3, 1), 0.1, np.float32),
        ...     templates,
        ...     fusion=ms.evaluation.inverse_variance_fusion,
        ... )
        >>> fused.vectors.shape
        (2, 3)
    """
    rows = _check_members(vectors, rows, template_ids, template_ids)
    if variances.ndim != 2 or len(variances) != len(vectors):
        raise VectorError(f"expected variances ({len(vectors)}, K), got {variances.shape}")
    ids = np.unique(template_ids if requested is None else requested)
    fused = np.zeros((len(ids), vectors.shape[1]), dtype=np.float32)
    spread = np.full((len(ids), variances.shape[1]), np.inf, dtype=np.float32)
    present = np.zeros(len(ids), dtype=bool)
    for part, starts, places in _chunks(ids, template_ids):
        for own, place in zip(np.split(rows[part], starts[1:]), places, strict=True):
            fused[place], spread[place] = fusion(vectors[own], variances[own])
            present[place] = True
    return Templates(ids=ids, vectors=fused, present=present, variances=spread)


def inverse_variance_fusion(vectors: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """Weighted mean with weights ∝ 1/σ² in each dimension or slice; fused σ² is the smallest.

    As in the released code of PFE (arXiv:1904.09658): the smallest σ², not the (Σ 1/σ²)⁻¹ of a
    product of Gaussians. With K = D or K = 1 the result gets unit length as a whole (PFE), with
    slices each slice gets the same length, as URL normalises its slices (our choice; the paper
    does not say).

    Args:
        vectors: (n, D) members of one template.
        variances: (n, K) their variances, all above 0.

    Returns:
        ((D,) the fused vector, (K,) its variances).

    Raises:
        VectorError: K is no divisor of D, a variance is not above 0, or the members cancel out.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> views, variances = np.eye(2, dtype=np.float32), np.array([[0.01], [100.0]], np.float32)
        >>> fused, variance = ms.evaluation.inverse_variance_fusion(views, variances)
        >>> fused.round(2).tolist()  # the sure view decides
        [1.0, 0.0]
    """
    count, dim = vectors.shape
    slices = variances.shape[1]
    if variances.shape[0] != count or dim % slices:
        raise VectorError(
            f"expected variances ({count}, K) with K a divisor of {dim}, got {variances.shape} for "
            f"vectors {vectors.shape}"
        )
    if not (variances > 0).all():  # NaN fails too
        raise VectorError("variances must be above 0")
    smallest = variances.min(axis=0)  # (K,)
    if np.isinf(smallest).any():
        raise VectorError("no member has a finite variance: leave such images out")
    weights = smallest / variances  # (n, K) in [0, 1]; the common factor cancels below
    weights = weights / weights.sum(axis=0)
    parts = vectors.reshape(count, slices, dim // slices).astype(np.float64)
    mean = (weights[:, :, None] * parts).sum(axis=0)  # (K, D/K)
    if 1 < slices < dim:
        norms = np.linalg.norm(mean, axis=1, keepdims=True) * np.sqrt(slices)
    else:
        norms = np.linalg.norm(mean, axis=(0, 1), keepdims=True)
    if not (norms > 0).all():
        raise VectorError("the members cancel out: their fusion has no direction")
    return (mean / norms).reshape(dim), smallest


# ---- parts --------------------------------------------------------------------------------------


def _check_members(
    vectors: Floats, rows: Ints | None, template_ids: Labels, media_ids: Labels
) -> Ints:
    """The row of each member."""
    if vectors.ndim != 2 or len(vectors) == 0:
        raise VectorError(f"expected vectors (N, D) with N > 0, got {vectors.shape}")
    rows = np.arange(len(vectors)) if rows is None else rows
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(vectors)):
        raise VectorError(f"rows reach from {rows.min()} to {rows.max()} of {len(vectors)} vectors")
    for name, ids in (("template_ids", template_ids), ("media_ids", media_ids)):
        if ids.shape != rows.shape:
            raise VectorError(f"{name} have shape {ids.shape} for {len(rows)} members")
    return rows


def _one_over_medium_size(template_ids: Labels, media_ids: Labels) -> npt.NDArray[np.float64]:
    """(N,) one over the number of members that share template and medium."""
    template = np.unique(template_ids, return_inverse=True)[1].astype(np.int64)
    names, medium = np.unique(media_ids, return_inverse=True)
    group = np.unique(template * len(names) + medium, return_inverse=True)[1]
    size: npt.NDArray[np.float64] = 1.0 / np.bincount(group)
    return size[group]


def _chunks(ids: Labels, template_ids: Labels) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Members grouped by template, whole templates at a time: (rows, starts, place in ids)."""
    place = np.minimum(np.searchsorted(ids, template_ids), len(ids) - 1)
    asked = np.flatnonzero(ids[place] == template_ids)
    order = asked[np.argsort(place[asked], kind="stable")]
    places, starts = np.unique(place[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    first = 0
    while first < len(places):
        last = max(int(np.searchsorted(ends, starts[first] + CHUNK, side="right")), first + 1)
        yield (
            order[starts[first] : ends[last - 1]],
            starts[first:last] - starts[first],
            places[first:last],
        )
        first = last
