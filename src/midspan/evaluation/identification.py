"""1:N identification: closed-set rank k, open-set TPIR at a FPIR.

First per probe (`identify` → `Identified`), then reduced. A probe is *mated* if its subject is in
the gallery. Equal scores rank in the order of the gallery, so give it sorted by id. What has no
face scores −∞ and is never identified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation.ties import find_doubles, quick_keys
from midspan.evaluation.verification import BoolArray, FloatArray64, Scores, allowed
from midspan.labels import codes

IntArray = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Identified:
    """What each of P probes met in one gallery."""

    mated: BoolArray  # (P,) its subject is in the gallery
    rank: IntArray  # (P,) 1-based rank of the best mate; 0 without a mate, or none with a face
    mate_score: FloatArray64  # (P,) score of the best mate, else −∞
    top_score: FloatArray64  # (P,) largest score of all
    n_gallery: int

    def at(self, *, rank: int, threshold: float = -np.inf) -> BoolArray:
        """(P,) True where a mate is among the first `rank` and scores at least `threshold`.

        The general rule of IJB-S and TinyFace, after the released code of PFE; without a
        threshold it is the closed set.
        """
        if rank < 1:
            raise EvaluationError(f"ranks count from 1, got {rank}")
        return (self.rank >= 1) & (self.rank <= rank) & (self.mate_score >= threshold)


def identify(
    probes: npt.NDArray[np.float32],
    gallery: npt.NDArray[np.float32],
    *,
    probe_labels: Labels,
    gallery_labels: Labels,
    probe_present: BoolArray | None = None,
    gallery_present: BoolArray | None = None,
    block: int = 1 << 23,
) -> Identified:
    """What each probe met in the gallery: is its subject there, at which rank, with what score.

    Gallery rows that are bit for bit the same score the same, whatever BLAS makes of them.

    Args:
        probes: (P, D) unit vectors.
        gallery: (G, D) unit vectors, one for each subject or several, sorted by id.
        probe_labels: (P,) subjects.
        gallery_labels: (G,) subjects.
        probe_present: (P,) False for probes without a face; None: all have one.
        gallery_present: (G,) the same of the gallery.
        block: About so many scores at a time.

    Returns:
        The result per probe, for `rank_k`, `tpir_at_fpir` and `tpir_at_fpir_rank`.

    Raises:
        EvaluationError: There are no probes, or labels do not fit.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> vectors, people = np.eye(4, dtype=np.float32), np.arange(4)
        >>> found = ms.evaluation.identify(
        ...     vectors, vectors[:2], probe_labels=people, gallery_labels=people[:2]
        ... )
        >>> ms.evaluation.rank_k(found, ranks=(1,)).tolist()
        [1.0]
    """
    if probe_labels.dtype.kind == gallery_labels.dtype.kind == "U":  # text once, not in each block
        probe_labels, gallery_labels = codes(probe_labels, gallery_labels)
    doubles = find_doubles(quick_keys(gallery), lambda: [gallery])
    rows = max(1, block // max(len(gallery), 1))
    parts = []
    for start in range(0, len(probes), rows):
        part = slice(start, start + rows)
        scores = probes[part] @ gallery.T  # (rows, G)
        scores[:, doubles.rows] = scores[:, doubles.firsts]
        if probe_present is not None:
            scores[~probe_present[part]] = -np.inf
        if gallery_present is not None:
            scores[:, ~gallery_present] = -np.inf
        parts.append(
            identify_scores(scores, probe_labels=probe_labels[part], gallery_labels=gallery_labels)
        )
    if not parts:
        raise EvaluationError("no probes to identify")
    return Identified(
        mated=np.concatenate([part.mated for part in parts]),
        rank=np.concatenate([part.rank for part in parts]),
        mate_score=np.concatenate([part.mate_score for part in parts]),
        top_score=np.concatenate([part.top_score for part in parts]),
        n_gallery=len(gallery),
    )


def identify_scores(scores: Scores, *, probe_labels: Labels, gallery_labels: Labels) -> Identified:
    """As `identify`, from a matrix of scores.

    Args:
        scores: (P, G); a pair without a face is −inf.
        probe_labels: (P,) subjects.
        gallery_labels: (G,) subjects.

    Returns:
        The result per probe.

    Raises:
        EvaluationError: Scores and labels do not fit, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> scores, people = np.array([[0.9, 0.2], [0.8, 0.3]]), np.array([1, 2])
        >>> found = ms.evaluation.identify_scores(
        ...     scores, probe_labels=people, gallery_labels=people
        ... )
        >>> ms.evaluation.rank_k(found, ranks=(1, 2)).tolist()
        [0.5, 1.0]
    """
    if scores.shape != (len(probe_labels), len(gallery_labels)) or 0 in scores.shape:
        raise EvaluationError(
            f"expected scores (P, G), both above 0, got shape {scores.shape} for "
            f"{len(probe_labels)} probe labels and {len(gallery_labels)} gallery labels"
        )
    if np.isnan(scores).any():
        row = int(np.flatnonzero(np.isnan(scores).any(axis=1))[0])
        raise EvaluationError(f"scores of probe {row} hold NaN; a pair without a face is -inf")
    mates = probe_labels[:, None] == gallery_labels  # (P, G)
    mate_scores = np.where(mates, scores, -np.inf)
    place = mate_scores.argmax(axis=1)  # the first of equal mates
    best = np.take_along_axis(mate_scores, place[:, None], axis=1)  # (P, 1)
    before = (scores > best).sum(axis=1)
    earlier = np.arange(scores.shape[1]) < place[:, None]
    before += ((scores == best) & earlier).sum(axis=1)
    matched = best[:, 0] > -np.inf
    return Identified(
        mated=mates.any(axis=1),
        rank=np.where(matched, before + 1, 0).astype(np.int64),
        mate_score=best[:, 0].astype(np.float64),
        top_score=scores.max(axis=1).astype(np.float64),
        n_gallery=scores.shape[1],
    )


def rank_k(result: Identified, *, ranks: Sequence[int] = (1, 5, 10)) -> FloatArray64:
    """Closed set: share of the mated probes with a mate among the first k, for each k.

    Args:
        result: From `identify`.
        ranks: The values of k.

    Returns:
        A share for each k.

    Raises:
        EvaluationError: No probe is mated.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> scores, people = np.array([[0.9, 0.2], [0.8, 0.3]]), np.array([1, 2])
        >>> found = ms.evaluation.identify_scores(
        ...     scores, probe_labels=people, gallery_labels=people
        ... )
        >>> ms.evaluation.rank_k(found, ranks=(1, 2)).tolist()
        [0.5, 1.0]
    """
    mated = _some(result.mated, "mated")
    return np.array([result.at(rank=rank)[mated].mean() for rank in ranks])


def identified_at_fpir(result: Identified, *, fpir: float) -> BoolArray:
    """(P,) open set as for IJB-C 1:N: True where a mate is first *and* scores above τ.

    τ is the non-mated maximum number max(⌊n·FPIR⌋−1, 0), counted from 0, falling.
    """
    maxima = _falling_maxima(result)
    threshold = float(maxima[max(allowed(fpir, len(maxima)) - 1, 0)])
    return result.at(rank=1) & (result.mate_score > threshold)


def identified_at_fpir_rank(result: Identified, *, fpir: float, rank: int = 1) -> BoolArray:
    """(P,) open set as for IJB-S: True where a mate is among the first `rank` and scores ≥ τ.

    τ is the k-th largest of the non-mated maxima, k = ⌊n·FPIR⌋; with k = 0 a mate must be above
    the largest. Departs from PFE's code, which rounds k.
    """
    maxima = _falling_maxima(result)
    k = allowed(fpir, len(maxima))
    threshold = maxima[k - 1] if k else np.nextafter(maxima[0], np.inf)
    return result.at(rank=rank, threshold=float(threshold))


def tpir_at_fpir(result: Identified, *, fpir: Sequence[float] = (0.01, 0.1)) -> FloatArray64:
    """Share of the mated probes that are identified by the rule of IJB-C, for each FPIR.

    1 % and 10 % as in the published tables.

    Args:
        result: From `identify`.
        fpir: The false positive identification rates.

    Returns:
        A share for each rate.

    Raises:
        EvaluationError: No probe is mated, or none is non-mated.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> vectors, people = np.eye(4, dtype=np.float32), np.arange(4)
        >>> found = ms.evaluation.identify(
        ...     vectors, vectors[:2], probe_labels=people, gallery_labels=people[:2]
        ... )
        >>> ms.evaluation.tpir_at_fpir(found, fpir=(0.5,)).tolist()
        [1.0]
    """
    mated = _some(result.mated, "mated")
    return np.array([identified_at_fpir(result, fpir=rate)[mated].mean() for rate in fpir])


def tpir_at_fpir_rank(
    result: Identified, *, fpir: Sequence[float] = (0.01, 0.1), rank: int = 1
) -> FloatArray64:
    """Share of the mated probes that are identified by the rule of IJB-S, for each FPIR.

    Args:
        result: From `identify`.
        fpir: The false positive identification rates.
        rank: A mate among so many first counts.

    Returns:
        A share for each rate.

    Raises:
        EvaluationError: No probe is mated, or none is non-mated.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> vectors, people = np.eye(4, dtype=np.float32), np.arange(4)
        >>> found = ms.evaluation.identify(
        ...     vectors, vectors[:2], probe_labels=people, gallery_labels=people[:2]
        ... )
        >>> ms.evaluation.tpir_at_fpir_rank(found, fpir=(0.5,)).tolist()
        [1.0]
    """
    mated = _some(result.mated, "mated")
    rates = [identified_at_fpir_rank(result, fpir=rate, rank=rank)[mated].mean() for rate in fpir]
    return np.array(rates)


def two_gallery_average(first: FloatArray64, second: FloatArray64) -> FloatArray64:
    """IJB-C reports the plain mean of its two galleries, whatever their sizes.

    Args:
        first: Rates with the first gallery.
        second: The same rates with the second.

    Returns:
        Their mean, rate by rate.

    Raises:
        EvaluationError: There are not as many of each.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> ms.evaluation.two_gallery_average(np.array([0.8]), np.array([0.6])).round(2).tolist()
        [0.7]
    """
    if first.shape != second.shape:
        raise EvaluationError(f"rates of shape {first.shape} and {second.shape}: not the same ones")
    return (first + second) / 2


def _falling_maxima(result: Identified) -> FloatArray64:
    return np.sort(result.top_score[_some(~result.mated, "non-mated")])[::-1]


def _some(mask: BoolArray, what: str) -> BoolArray:
    if not mask.any():
        raise EvaluationError(
            f"none of the {len(mask)} probes is {what}: the rate is not defined; check that "
            "probe and gallery labels are of the same kind"
        )
    return mask
