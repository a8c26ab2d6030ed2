"""What is gained by leaving out the items that a bridge doubts, compared with leaving out any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.bridges.base import Float64, unit
from midspan.bridges.retrieval import score_blocks
from midspan.errors import EvaluationError
from midspan.labels import codes
from midspan.spaces import Embeddings, check_comparable

COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)


@dataclass(frozen=True, slots=True)
class RiskCoverage:
    """Risk at each share of items kept: most certain first, and at random with its spread."""

    coverage: Float64  # (C,)
    risk: Float64
    random_risk: Float64  # mean over the random draws
    random_low: Float64  # 2.5 %
    random_high: Float64  # 97.5 %

    @property
    def area(self) -> float:
        """Mean difference to random rejection; below 0 the uncertainty earns its keep."""
        return float(np.mean(self.risk - self.random_risk))


def risk_coverage(
    errors: npt.NDArray[Any],
    uncertainty: npt.NDArray[Any],
    *,
    coverages: Sequence[float] = COVERAGES,
    draws: int = 200,
    seed: int = 0,
) -> RiskCoverage:
    """Mean error of the items that are kept, (N,) errors and (N,) uncertainties given.

    Args:
        errors: (N,) true errors.
        uncertainty: (N,) predicted uncertainties; the largest are left out first.
        coverages: Shares of the items that are kept.
        draws: Random rejections to compare with.
        seed: Of these draws.

    Returns:
        The mean error at each share, and that of random rejection with its spread.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> errors = np.linspace(0, 1, 100)
        >>> curve = ms.bridges.risk_coverage(errors, errors, coverages=(1.0, 0.5))
        >>> curve.risk.round(2).tolist(), bool(curve.area < 0)
        ([0.5, 0.25], True)
    """
    errors = np.asarray(errors, dtype=np.float64)
    order = _certain_first(uncertainty, len(errors))
    rng = np.random.default_rng(seed)
    shuffles = [rng.permutation(len(errors)) for _ in range(draws)]

    def risk(kept: npt.NDArray[Any]) -> float:
        return float(errors[kept].mean())

    return _curve(risk, order, shuffles, coverages)


@dataclass(frozen=True, slots=True)
class RejectionCurve:
    """Gallery rejection seen by the queries.

    `answered`: share of wrong first answers among queries that still have a mate in the gallery.
    `all_queries`: the same over all queries; a query whose mates were all left out is wrong.
    Removing items always costs the second something: read both.
    """

    answered: RiskCoverage
    all_queries: RiskCoverage


def rejection_curve(
    queries: Embeddings,
    gallery: Embeddings,
    *,
    coverages: Sequence[float] = COVERAGES,
    draws: int = 20,
    seed: int = 0,
) -> RejectionCurve:
    """Leave out the gallery items with the largest `uncertainty`, and search with what is left.

    Both sets need labels; the gallery needs the column `uncertainty` (GalleryEnsemble gives it).
    An item is no answer to a query of its own id.

    Args:
        queries: Labelled vectors.
        gallery: Labelled vectors with the column `uncertainty`.
        coverages: Shares of the gallery that are kept.
        draws: Random rejections to compare with.
        seed: Of these draws.

    Returns:
        Two curves: over queries that still have a mate, and over all queries.

    Raises:
        EvaluationError: Labels or the column are missing.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> labels = {"labels": np.arange(60) % 6}
        >>> gallery = ms.Embeddings(np.arange(60).astype(str), rng.normal(size=(60, 8)),
        ...     ms.Space("new", 8), {**labels, "uncertainty": rng.random(60)})
        >>> curve = ms.bridges.rejection_curve(gallery, gallery, coverages=(1.0, 0.5))
        >>> curve.answered.risk.shape
        (2,)
    """
    check_comparable(queries.space, gallery.space)
    if queries.labels is None or gallery.labels is None:
        raise EvaluationError("a rejection curve needs a 'labels' column in queries and gallery")
    if "uncertainty" not in gallery.columns:
        raise EvaluationError(
            "the gallery has no column 'uncertainty'; GalleryEnsemble.transform adds it, "
            "Confidence.predict gives one for a single bridge"
        )
    order = _certain_first(gallery.columns["uncertainty"], len(gallery))
    cosine = queries.space.metric == "cosine"
    left = unit(queries.vectors) if cosine else queries.vectors
    right = unit(gallery.vectors) if cosine else gallery.vectors
    scores = np.vstack([block for _, block in score_blocks(left, right, queries.space.metric)])
    scores[queries.ids[:, None] == gallery.ids] = -np.inf
    asked, held = codes(queries.labels, gallery.labels)
    mates = (asked[:, None] == held) & np.isfinite(scores)  # (Q, G)

    def wrong(kept: npt.NDArray[Any], *, all_queries: bool) -> float:
        kept = np.sort(kept)
        best = np.argmax(scores[:, kept], axis=1)
        hit = mates[np.arange(len(scores)), kept[best]]
        if all_queries:
            return float(1.0 - hit.mean())
        answerable = mates[:, kept].any(axis=1)
        return float(1.0 - hit[answerable].mean()) if answerable.any() else float("nan")

    rng = np.random.default_rng(seed)
    shuffles = [rng.permutation(len(gallery)) for _ in range(draws)]
    return RejectionCurve(
        answered=_curve(lambda kept: wrong(kept, all_queries=False), order, shuffles, coverages),
        all_queries=_curve(lambda kept: wrong(kept, all_queries=True), order, shuffles, coverages),
    )


def _certain_first(uncertainty: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    values = np.asarray(uncertainty, dtype=np.float64)
    if values.shape != (count,) or np.isnan(values).any():
        raise EvaluationError(
            f"{int(np.isnan(values).sum())} of {values.size} uncertainties are NaN for {count} "
            "items; an item seen by one encoder only has none: leave such items out first"
        )
    return np.argsort(values, kind="stable")


def _curve(
    risk: Any,
    order: npt.NDArray[Any],
    shuffles: list[npt.NDArray[Any]],
    coverages: Sequence[float],
) -> RiskCoverage:
    rows = []
    for coverage in coverages:
        if not 0.0 < coverage <= 1.0:
            raise EvaluationError(f"a coverage is a share in (0, 1], got {coverage}")
        kept = max(1, round(coverage * len(order)))
        by_chance = [risk(shuffle[:kept]) for shuffle in shuffles]
        low, high = np.quantile(by_chance, [0.025, 0.975])
        rows.append((coverage, risk(order[:kept]), float(np.mean(by_chance)), low, high))
    return RiskCoverage(*np.array(rows, dtype=np.float64).T)
