"""Query and gallery of anyone's own data; relevant is what has the query's label.

Either two sets, or one set whose columns `is_query` and `is_gallery` say which item is what (an
item may be both). With two sets by two encoders the columns pick the queries of one and the
gallery of the other. A gallery item with the id of the query is the same item and does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from midspan.errors import EvaluationError
from midspan.evaluation import retrieval
from midspan.evaluation.protocols.outcome import Outcome, of_retrieval
from midspan.spaces import Embeddings


@dataclass(frozen=True, kw_only=True)
class QueryGallery:
    """`exclude_column` names a column whose value query and found item must not share."""

    exclude_column: str | None = None

    default_metrics: ClassVar[tuple[str, ...]] = ("map", "recall@1")

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        if gallery is None:
            for name in ("is_query", "is_gallery"):
                if name not in query.columns:
                    raise EvaluationError(
                        f"one set without a column {name!r}: give a gallery as well, or columns "
                        "is_query and is_gallery; without either use leave-one-out"
                    )
            gallery = query
        result = retrieval.evaluate(
            _marked(query, "is_query"),
            _marked(gallery, "is_gallery"),
            metrics=metrics,
            exclude_column=self.exclude_column,
            direct=direct,
        )
        return of_retrieval(result)


def _marked(embeddings: Embeddings, name: str) -> Embeddings:
    """The rows that the column marks; all of them without such a column."""
    if name not in embeddings.columns:
        return embeddings
    column = embeddings.columns[name]
    if column.dtype.kind not in "biu" or not np.isin(column, (0, 1)).all():
        raise EvaluationError(
            f"column {name!r}: expected true or false, 1 or 0, got {column.dtype}"
        )
    chosen = column.astype(bool)
    if not chosen.any():
        raise EvaluationError(f"column {name!r} marks none of the {len(embeddings)} items")
    return embeddings[chosen]
