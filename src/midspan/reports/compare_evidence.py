"""What the comparison page shows besides the scores: curve, ROC and the matrix of all encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from midspan.evaluation import Comparison, Curve, backfill_curve, compatibility_matrix
from midspan.labels import codes
from midspan.reports.compare_page import Matrix
from midspan.reports.strips import labels_of
from midspan.spaces import Embeddings, FloatArray

if TYPE_CHECKING:
    from midspan.evaluation.verification import Roc

ROC_ITEMS = 2000  # two million pairs draw the same curve as all of them


@dataclass(frozen=True, slots=True)
class ComparisonEvidence:
    curves: Mapping[str, Curve]
    rocs: Mapping[str, Roc]
    matrix: Matrix | None


def evidence(
    comparison: Comparison,
    *,
    new: Embeddings,
    upper: Embeddings | None = None,
    exclude_column: str | None = None,
    seed: int = 0,
) -> ComparisonEvidence:
    """Measured from the vectors that were compared.

    The curve needs queries and both galleries in one comparable space, so there is none when the
    queries are mapped back into the old one; the matrix needs equal dims.
    """
    c = comparison
    new = new.take(c.ids).with_columns(c.old.columns)
    order = np.random.default_rng(seed).permutation(len(c.gallery))
    curves = {}
    if c.query.space.dim == c.gallery.space.dim == new.space.dim and c.direction != "backward":
        curves["random order"] = backfill_curve(
            query=c.query,
            gallery_old=c.gallery,
            gallery_new=new,
            order=order,
            metric=c.metric,
            before=c.hits["old_self"],
            exclude_column=exclude_column,
            direct=True,
        )
    chain = [c.old, new]
    names = [c.old.space.name, new.space.name]
    if upper is not None:
        chain.append(upper.take(c.ids).with_columns(c.old.columns))
        names.append(upper.space.name)
    matrix = None
    if len({part.space.dim for part in chain}) == 1:
        values = compatibility_matrix(chain, metric=c.metric, exclude_column=exclude_column)
        matrix = Matrix(values, names)
    some = np.sort(order[:ROC_ITEMS])
    rocs = {
        "old self": _roc(c.old[some], c.old[some]),
        "cross": _roc(c.query[some], c.gallery[some]),
        "new self": _roc(new[some], new[some]),
    }
    return ComparisonEvidence(
        curves, {name: roc for name, roc in rocs.items() if roc is not None}, matrix
    )


def _roc(query: Embeddings, gallery: Embeddings) -> Roc | None:
    """Over all pairs of two different items; None if there are none of one kind."""
    from midspan.evaluation.verification import roc

    scores = _scores(query, gallery)
    (labels,) = codes(labels_of(query))
    same = labels[:, None] == labels[None, :]
    other_item = ~np.eye(len(labels), dtype=bool)
    genuine, impostor = scores[same & other_item], scores[~same]
    if len(genuine) == 0 or len(impostor) == 0:
        return None
    return roc(genuine, impostor).compressed(500)


def _scores(query: Embeddings, gallery: Embeddings) -> FloatArray:  # (Q, G)
    if query.space.metric == "cosine":
        query, gallery = query.normalised(), gallery.normalised()
    scores: FloatArray = query.vectors @ gallery.vectors.T
    if query.space.metric == "l2":
        squares = (gallery.vectors**2).sum(axis=1)
        scores = 2 * scores - squares[None, :] - (query.vectors**2).sum(axis=1)[:, None]
    return scores
