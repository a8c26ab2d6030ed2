"""Google Landmarks v2 retrieval: mAP@100 over the public and the private queries.

    retrieval_solution_v2.1.csv    id,images,Usage     images separated by spaces, or None
    index.csv, test.csv            id                  761,757 and 117,577 images

Ids are the hexadecimal names. Usage is Public, Private or Ignored; ignored queries do not count.
AP = (1/min(n, 100)) Σ_{i≤100} rel_i·prec_i with n all relevant images of the query; the mean is
over *all* queries of the solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from midspan.errors import EvaluationError, FormatError
from midspan.evaluation.protocols.listing import find, image_id, known_rows, table
from midspan.evaluation.protocols.outcome import Outcome, by_part, mean_of_answered, split_name
from midspan.evaluation.ranking import map_at_k
from midspan.evaluation.search import search_exact
from midspan.spaces import Embeddings, StrArray

DEPTH = 100
USAGES = ("public", "private", "ignored")


@dataclass(frozen=True, slots=True)
class Solution:
    queries: StrArray  # (Q,) ids, ignored ones left out
    relevant: tuple[frozenset[str], ...]  # (Q,) ids of index images
    usage: StrArray  # (Q,) 'public' or 'private'


def load_solution(root: Path) -> Solution:
    path = find(Path(root), "retrieval_solution_v2.1.csv")
    queries: dict[str, tuple[frozenset[str], str]] = {}
    for where, (query, images, usage) in table(path, columns=("id", "images", "Usage")):
        if usage.lower() not in USAGES:
            raise FormatError(f"{where}: expected Usage Public, Private or Ignored, got {usage!r}")
        if query in queries:
            raise FormatError(f"{where}: query {query!r} is listed twice")
        names = () if images == "None" else images.split()
        relevant = frozenset(image_id(name, where=where) for name in names)
        if usage.lower() != "ignored" and not relevant:
            raise FormatError(f"{where}: query {query!r} is scored but has no images")
        queries[image_id(query, where=where)] = (relevant, usage.lower())
    scored = {query: row for query, row in queries.items() if row[1] != "ignored"}
    if not scored:
        raise FormatError(f"{path}: has no Public or Private query")
    return Solution(
        queries=np.array(list(scored), dtype=np.str_),
        relevant=tuple(relevant for relevant, _ in scored.values()),
        usage=np.array([usage for _, usage in scored.values()], dtype=np.str_),
    )


def load_ids(root: Path, name: str) -> StrArray:
    """The images of 'index.csv' or 'test.csv'."""
    path = find(Path(root), name)
    ids = [image_id(row[0], where=where) for where, row in table(path, columns=("id",))]
    if not ids:
        raise FormatError(f"{path}: lists no image")
    return np.array(ids, dtype=np.str_)


@dataclass(frozen=True, kw_only=True)
class GLDv2:
    """mAP@100 of the public and of the private queries; names like 'private:map@100'.

    `skip_missing`: as in the challenge, a query without a vector counts 0 and an index image
    without a vector is never found.
    """

    root: Path
    skip_missing: bool = False

    default_metrics: ClassVar[tuple[str, ...]] = ("public:map@100", "private:map@100")

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        requested = []
        for usage, metric in by_part(metrics, parts=USAGES[:2]):
            depth = split_name(metric, known=("map@K",), protocol="gldv2")[1]
            if depth is None or depth < 1 or depth != int(depth):
                raise EvaluationError(
                    f"expected map@K with a whole K of at least 1, as map@100, got {metric!r}"
                )
            requested.append((f"{usage}:map@{int(depth)}", usage, int(depth)))
        solution = load_solution(self.root)
        index = self._part(
            query if gallery is None else gallery,
            load_ids(self.root, "index.csv"),
            meaning="search without them",
        )
        queries = self._part(query, solution.queries, meaning="count them 0")
        deepest = max((depth for *_, depth in requested), default=DEPTH)
        _, matches = search_exact(queries, index, k=deepest, direct=direct)
        ranked = {
            one: index.ids[rows] for one, rows in zip(queries.ids.tolist(), matches, strict=True)
        }
        values, per_query = {}, {}
        for name, usage, depth in requested:
            per_query[name] = np.array(
                [
                    average_precision(ranked.get(one, ()), relevant, depth=depth)
                    if used == usage
                    else np.nan
                    for one, relevant, used in zip(
                        solution.queries.tolist(), solution.relevant, solution.usage, strict=True
                    )
                ]
            )
            values[name] = mean_of_answered(per_query[name], what=name)
        return Outcome(values, per_query, n_queries=len(solution.queries), n_gallery=len(index))

    def _part(self, embeddings: Embeddings, ids: StrArray, *, meaning: str) -> Embeddings:
        """The vectors of these ids, without a copy if there are no others."""
        rows, known = known_rows(embeddings, ids, skip_missing=self.skip_missing, meaning=meaning)
        return embeddings if known.sum() == len(embeddings) else embeddings[rows[known]]


def average_precision(
    ranked: Sequence[str], relevant: frozenset[str], *, depth: int = DEPTH
) -> float:
    """AP at `depth`; a repeated image takes a rank but counts once.

    >>> round(average_precision(["a", "x", "b"], frozenset("abc")), 4)
    0.5556
    >>> round(average_precision(["a", "a", "b"], frozenset("ab")), 4)
    0.8333
    """
    first = {image: rank for rank, image in reversed(list(enumerate(ranked[:depth])))}
    ranks = np.array([sorted(first[image] for image in relevant & first.keys())], dtype=np.int64)
    return float(map_at_k(ranks, np.array([len(relevant)]), k=depth)[0])
