"""Retrieval of one set of embeddings in another, or of a set in itself, by labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from midspan.errors import EvaluationError, UnknownId
from midspan.evaluation.ranking import METRICS, parse_metric
from midspan.evaluation.ranks import Scorer, rank_chunks
from midspan.evaluation.relevance import NO_ROW, Ignored, SameLabel, label_codes
from midspan.evaluation.scores import FloatArray64
from midspan.html_table import html_table
from midspan.labels import check_overlap, codes, warn_numbered
from midspan.spaces import Embeddings, IntArray, StrArray


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What was measured: per query first, nan where a query has nothing to find."""

    per_query: Mapping[str, FloatArray64]  # metric → (Q,)
    whole: Mapping[str, float]  # metrics of the whole set, such as nmi
    ids: StrArray  # (Q,)
    n_queries: int
    n_gallery: int

    @property
    def answerable(self) -> int:
        """Queries that have something to find; means are taken over these."""
        first = next(iter(self.per_query.values()), None)
        return self.n_queries if first is None else int(np.isfinite(first).sum())

    def mean(self, metric: str) -> float:
        if metric in self.whole:
            return self.whole[metric]
        if metric not in self.per_query:
            known = ", ".join([*self.per_query, *self.whole])
            raise EvaluationError(f"{metric!r} was not measured here; measured: {known}")
        return float(np.nanmean(self.per_query[metric]))

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.4f}" for name, value in self.to_dict().items())
        return f"Retrieval({values}; {self.n_queries:,} queries, {self.n_gallery:,} items)"

    def _repr_html_(self) -> str:
        rows = [[name, f"{100 * value:.2f}"] for name, value in self.to_dict().items()]
        note = f"{self.n_queries:,} queries, {self.n_gallery:,} gallery items"
        return html_table("retrieval", rows, head=["metric", "%"], note=note)

    def to_dict(self) -> dict[str, float]:
        return {name: self.mean(name) for name in (*self.per_query, *self.whole)}


def evaluate(
    query: Embeddings,
    gallery: Embeddings | None = None,
    *,
    metrics: Sequence[str] = ("map", "recall@1"),
    exclude_column: str | None = None,
    junk_column: str | None = None,
    exclude_same_id: bool = True,
    direct: bool = False,
) -> Retrieval:
    """How well items with the query's label are found.

    Args:
        query: Labelled vectors that search.
        gallery: Labelled vectors that are searched. None: leave-one-out, every item searches among
            the others.
        metrics: Names from `midspan.evaluation.METRICS`, such as "map", "recall@5", "nmi".
        exclude_column: Gallery items that share this column's value with the query do not count
            (same track).
        junk_column: Only those that share the label as well do not count (Market-1501: same person,
            same camera).
        exclude_same_id: A gallery item with the id of the query is the same item seen by another
            encoder, and is left out; False keeps it.
        direct: Compare two spaces although nothing connects them.

    Returns:
        A Retrieval: values per query, and their means.

    Raises:
        EvaluationError: No labels, an unknown metric, or nothing to find.
        SpaceMismatch: The two sets are in spaces that nothing connects.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> vectors = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
        >>> pets = ms.Embeddings(
        ...     np.arange(4).astype(str),
        ...     vectors,
        ...     ms.Space("tiny", 2),
        ...     {"labels": np.array(["cat", "cat", "dog", "dog"])},
        ... )
        >>> ms.evaluate(pets)
        Retrieval(map 1.0000, recall@1 1.0000; 4 queries, 4 items)
    """
    parsed = {name: parse_metric(name) for name in metrics if name.strip().lower() != "nmi"}
    if not metrics:
        raise EvaluationError(f"no metric was asked for; known: {', '.join(METRICS)}")
    searched = query if gallery is None else gallery
    if len(query) == 0 or len(searched) == 0:
        raise EvaluationError(f"{len(query)} queries and {len(searched)} gallery items: too few")
    relevant, ignored = by_labels(
        query,
        searched,
        exclude_column=exclude_column,
        junk_column=junk_column,
        exclude_same_id=exclude_same_id or gallery is None,
    )
    per_query = {name: np.full(len(query), np.nan) for name in parsed}
    if parsed:
        scorer = Scorer.of(query, searched, metric=None, direct=direct)
        for chunk in rank_chunks(scorer, relevant=relevant, ignored=ignored):
            for name, metric in parsed.items():
                per_query[name][chunk.queries] = metric.per_query(chunk.ranks, chunk.n)
        if not any(np.isfinite(values).any() for values in per_query.values()):
            raise EvaluationError(
                f"none of the {len(query)} queries has a relevant item among the {len(searched)} "
                "of the gallery; do both use the same labels?"
            )
    whole = {}
    if len(parsed) < len(metrics):
        from midspan.evaluation.clustering import nmi

        cosine = searched.space.metric == "cosine"
        vectors = searched.normalised().vectors if cosine else searched.vectors
        whole["nmi"] = nmi(vectors, labels_of(searched, "gallery"))
    return Retrieval(
        per_query=per_query,
        whole=whole,
        ids=query.ids,
        n_queries=len(query),
        n_gallery=len(searched),
    )


def by_labels(
    query: Embeddings,
    gallery: Embeddings,
    *,
    exclude_column: str | None = None,
    junk_column: str | None = None,
    exclude_same_id: bool = True,
) -> tuple[SameLabel, Ignored]:
    """What is relevant and what is ignored, from the columns of both sides."""
    query_codes, gallery_codes = _codes(query, gallery)
    own = same_ids(query, gallery) if exclude_same_id else None
    if own is not None:
        shared = np.flatnonzero(own != NO_ROW)
        differ = shared[query_codes[shared] != gallery_codes[own[shared]]]
        if len(differ):
            raise EvaluationError(
                f"{len(differ)} ids are in both sets with different labels, first "
                f"{str(query.ids[differ[0]])!r}; if they are different items give them different "
                "ids, or (in Python) compare them with exclude_same_id=False"
            )
    ignored = None
    if exclude_column is not None and junk_column is not None:
        raise EvaluationError("give exclude_column or junk_column, not both")
    if exclude_column is not None:
        ignored = _column_codes(query, gallery, exclude_column)
    if junk_column is not None:
        values = _column_codes(query, gallery, junk_column)
        n_values = int(max(values[0].max(), values[1].max())) + 1
        ignored = query_codes * n_values + values[0], gallery_codes * n_values + values[1]
    return SameLabel.of(query_codes, gallery_codes), Ignored(own=own, codes=ignored)


def _codes(query: Embeddings, gallery: Embeddings) -> tuple[IntArray, IntArray]:
    """Labels of both sides as numbers of this one comparison; equal names, equal numbers."""
    mine, theirs = labels_of(query, "query"), labels_of(gallery, "gallery")
    same = query is gallery or (
        np.array_equal(mine, theirs) and np.array_equal(query.ids, gallery.ids)
    )
    if not same:
        sides = {"query": query, "gallery": gallery}
        if numbered := [what for what, side in sides.items() if side.numbered]:
            warn_numbered(what=" and ".join(numbered))
        check_overlap(mine, theirs)
    mine_codes, their_codes = codes(mine, theirs)
    return mine_codes, their_codes


def labels_of(embeddings: Embeddings, what: str) -> StrArray:
    if embeddings.labels is None:
        have = ", ".join(embeddings.columns) or "no columns"
        raise EvaluationError(
            f"the {what} has no labels ({have}); add a 'labels' column, it says what is relevant"
        )
    return embeddings.labels


def same_ids(query: Embeddings, gallery: Embeddings) -> IntArray:
    """(Q,) the gallery row with the query's id, NO_ROW where there is none."""
    if query is gallery or np.array_equal(query.ids, gallery.ids):
        return np.arange(len(query))
    _, mine, theirs = np.intersect1d(
        query.ids, gallery.ids, assume_unique=True, return_indices=True
    )
    rows = np.full(len(query), NO_ROW, dtype=np.int64)
    rows[mine] = theirs
    return rows


def _column_codes(query: Embeddings, gallery: Embeddings, name: str) -> tuple[IntArray, IntArray]:
    for what, side in (("query", query), ("gallery", gallery)):
        if name not in side.columns:
            have = ", ".join(side.columns) or "none"
            raise EvaluationError(f"the {what} has no column {name!r}; it has: {have}")
    return label_codes(query.columns[name], gallery.columns[name])


def pairs_of(first: Embeddings, second: Embeddings, *, what: str) -> tuple[Embeddings, Embeddings]:
    """The items of both sets in the first one's order; every item must be in both."""
    if np.array_equal(first.ids, second.ids):
        return first, second
    missing = np.setdiff1d(first.ids, second.ids), np.setdiff1d(second.ids, first.ids)
    if len(missing[0]) or len(missing[1]):
        lone = missing[0] if len(missing[0]) else missing[1]
        raise UnknownId(
            f"{what} need the same items: {len(missing[0])} ids are only in the first, "
            f"{len(missing[1])} only in the second, first {str(lone[0])!r}"
        )
    return first, second.take(first.ids)
