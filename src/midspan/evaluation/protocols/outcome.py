"""What every protocol returns, and how its metrics are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation.retrieval import Retrieval
from midspan.spaces import Embeddings, check_comparable


@dataclass(frozen=True, slots=True)
class Outcome:
    """Named values, all fractions, and what each query (probe, pair) contributed.

    `per_query` holds NaN for queries that a metric leaves out.
    """

    metrics: Mapping[str, float]
    per_query: Mapping[str, npt.NDArray[np.float64]]
    n_queries: int
    n_gallery: int

    @property
    def answerable(self) -> int:
        """Queries that at least one metric counts; means are taken over these."""
        if not self.per_query:
            return self.n_queries
        return int(np.isfinite(np.stack(list(self.per_query.values()))).any(axis=0).sum())


def of_retrieval(result: Retrieval) -> Outcome:
    return Outcome(
        metrics=result.to_dict(),
        per_query=result.per_query,
        n_queries=result.n_queries,
        n_gallery=result.n_gallery,
    )


def mean_of_answered(values: npt.NDArray[np.float64], *, what: str) -> float:
    if np.isnan(values).all():
        raise EvaluationError(f"{what}: none of the {len(values)} queries has anything to find")
    return float(np.nanmean(values))


def by_part(metrics: Sequence[str], *, parts: Sequence[str]) -> list[tuple[str, str]]:
    """'hard:map' → ('hard', 'map'); a bare 'map' stands for every part."""
    named = []
    for name in metrics:
        part, colon, metric = name.partition(":")
        if colon and part not in parts:
            raise EvaluationError(f"metric {name!r} is of no known part; use {', '.join(parts)}")
        named += [(part, metric)] if colon else [(each, name) for each in parts]
    return named


def split_name(name: str, *, known: Sequence[str], protocol: str) -> tuple[str, float | None]:
    """'tar@1e-4' → ('tar', 1e-4), 'eer' → ('eer', None), if `known` has 'tar@FAR' or 'eer'."""
    kind, at, value = name.partition("@")
    for template in known:
        if template.partition("@")[:2] == (kind, at):
            if not at:
                return kind, None
            try:
                return kind, float(value)
            except ValueError:
                break
    raise EvaluationError(f"{protocol} has no metric {name!r}; it has {', '.join(known)}")


def sides(
    query: Embeddings, gallery: Embeddings | None, *, direct: bool
) -> tuple[Embeddings, Embeddings]:
    """(query side, gallery side) whose vectors may be compared by cosine; one set may be both.

    `direct` waives the record of compatibility, not the number of dimensions.
    """
    gallery = query if gallery is None else gallery
    for side in (query, gallery):
        if side.space.metric != "cosine":
            raise EvaluationError(
                f"this protocol compares by cosine, but the vectors are in {side.space}"
            )
    if query.space.dim != gallery.space.dim or not direct:
        check_comparable(query.space, gallery.space, override="direct")
    return query, gallery
