"""What every protocol returns, and how its metrics are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
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
        check_comparable(query.space, gallery.space)
    return query, gallery
