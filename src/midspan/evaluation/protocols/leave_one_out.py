"""Leave-one-out: each item searches among all others; relevant is what has its label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from midspan.evaluation import retrieval
from midspan.evaluation.protocols.outcome import Outcome, of_retrieval
from midspan.spaces import Embeddings


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut:
    """For anyone's own data with a column `labels`; items without a partner are left out.

    A gallery is the same items by another encoder: each query's own item is left out there too.
    `exclude_column` names a column whose value query and found item must not share (a track, a
    shop, a photographer).
    """

    exclude_column: str | None = None

    default_metrics: ClassVar[tuple[str, ...]] = ("map", "recall@1", "map@r")

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        if gallery is not None:
            query, gallery = retrieval.pairs_of(query, gallery, what="leave-one-out sides")
        result = retrieval.evaluate(
            query, gallery, metrics=metrics, exclude_column=self.exclude_column, direct=direct
        )
        return of_retrieval(result)
