"""What the face protocols share: templates from embeddings, and named identification rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation.identification import Identified
from midspan.evaluation.protocols.outcome import Outcome, split_name
from midspan.evaluation.templates import Fusion, Templates, fuse_templates, pool_templates
from midspan.evaluation.verification import BoolArray
from midspan.spaces import Embeddings

Labels = npt.NDArray[Any]
AtFpir = Callable[[Identified, float], BoolArray]

IDENTIFICATION = ("rank@K", "tpir@FPIR")


def make_templates(
    embeddings: Embeddings,
    *,
    rows: npt.NDArray[np.int64],
    template_ids: Labels,
    media_ids: Labels,
    requested: Labels,
    weights: str | None = None,
    fusion: Fusion | None = None,
) -> Templates:
    """Members are rows of the embeddings: pooled by media, with a column of weights if named; or
    fused by the column 'variances'."""
    vectors = embeddings.vectors
    if fusion is None:
        return pool_templates(
            vectors,
            template_ids,
            media_ids,
            rows=rows,
            weights=None if weights is None else column(embeddings, weights)[rows],
            requested=requested,
        )
    if weights is not None:
        raise EvaluationError("give either weights or a fusion: a fusion weighs by itself")
    variances = column(embeddings, "variances")
    variances = variances[:, None] if variances.ndim == 1 else variances
    return fuse_templates(
        vectors, variances, template_ids, rows=rows, fusion=fusion, requested=requested
    )


def column(embeddings: Embeddings, name: str) -> Labels:
    if name not in embeddings.columns:
        have = ", ".join(sorted(embeddings.columns)) or "none"
        raise EvaluationError(f"the embeddings have no column {name!r}; they have {have}")
    return embeddings.columns[name]


def identification(
    results: Sequence[Identified], *, metrics: Sequence[str], protocol: str, at_fpir: AtFpir
) -> Outcome:
    """Rates of one or more galleries searched by the same probes: the mean over the galleries.

    Per probe stands the gallery in which it is mated (NaN if in none, the mean if in several).
    """
    values, per_query = {}, {}
    for name in metrics:
        kind, number = split_name(name, known=IDENTIFICATION, protocol=protocol)
        rates = []
        hits = np.full((len(results), len(results[0].mated)), np.nan)
        for row, one in enumerate(results):
            assert number is not None
            hit = one.at(rank=int(number)) if kind == "rank" else at_fpir(one, number)
            if not one.mated.any():
                raise EvaluationError(
                    f"{protocol}: none of the {len(one.mated)} probes has a mate in the gallery; "
                    "check that both label the same subjects alike"
                )
            rates.append(hit[one.mated].mean())
            hits[row, one.mated] = hit[one.mated]
        values[name] = float(np.mean(rates))
        counts = (~np.isnan(hits)).sum(axis=0)
        sums = np.nansum(hits, axis=0)
        per_query[name] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return Outcome(
        metrics=values,
        per_query=per_query,
        n_queries=len(results[0].mated),
        n_gallery=sum(one.n_gallery for one in results),
    )
