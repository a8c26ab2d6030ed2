"""Several images of one item (views, frames) become one item with one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import VectorError
from midspan.evaluation.templates import fuse_templates, inverse_variance_fusion
from midspan.spaces import Column, Embeddings

VIEWS, VARIANCE, CONFIDENCE = "views", "variance", "confidence"


def fuse_views(embeddings: Embeddings, groups: npt.NDArray[Any]) -> Embeddings:
    """One item for each value of `groups` (N,), which becomes its id; ids come sorted.

    With a column 'variance' (N, K) each view counts by 1/σ² (see `inverse_variance_fusion`), else
    all count the same. Of the columns, those stay that agree inside of every group; 'variance' is
    the fused one, 'confidence' the mean of the views, 'views' their number.
    """
    groups = np.asarray(groups)
    if groups.shape != (len(embeddings),) or len(embeddings) == 0:
        raise VectorError(
            f"expected the item of each of {len(embeddings)} vectors, and at least one, got "
            f"groups of shape {groups.shape}"
        )
    variance = embeddings.columns.get(VARIANCE)
    known = variance is not None and variance.ndim == 2
    weights = variance if known else np.ones((len(embeddings), 1), dtype=np.float32)
    assert weights is not None
    fused = fuse_templates(embeddings.vectors, weights, groups, fusion=inverse_variance_fusion)
    _, first, place, counts = np.unique(
        groups, return_index=True, return_inverse=True, return_counts=True
    )
    columns: dict[str, Column] = {}
    for name, column in embeddings.columns.items():
        if name not in (VARIANCE, CONFIDENCE, VIEWS) and (column == column[first][place]).all():
            columns[name] = column[first]
    columns[VIEWS] = counts.astype(np.int64)
    if known and fused.variances is not None:
        columns[VARIANCE] = fused.variances
    confidence = embeddings.columns.get(CONFIDENCE)
    if confidence is not None:
        sums = np.zeros((len(counts), *confidence.shape[1:]))
        np.add.at(sums, place, confidence)
        shape = (-1,) + (1,) * (confidence.ndim - 1)
        columns[CONFIDENCE] = (sums / counts.reshape(shape)).astype(np.float32)
    return Embeddings(
        ids=fused.ids.astype(np.str_),
        vectors=fused.vectors,
        space=embeddings.space,
        columns=columns,
        numbered=embeddings.numbered,
    )


def first_views(groups: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Row of the first view of each item, in the order of `fuse_views`."""
    return np.unique(groups, return_index=True)[1].astype(np.int64)
