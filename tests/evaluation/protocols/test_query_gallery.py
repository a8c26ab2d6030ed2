from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from midspan.errors import EvaluationError
from midspan.evaluation.protocols.query_gallery import QueryGallery
from midspan.spaces import Embeddings, Space


def items(
    angles: list[float], labels: list[str], *, space: str = "a", **columns: Any
) -> Embeddings:
    radians = np.deg2rad(angles)
    return Embeddings(
        ids=np.array([f"{row:03d}" for row in range(len(angles))]),
        vectors=np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32),
        space=Space(space, 2),
        columns={"labels": np.array(labels), **{n: np.array(c) for n, c in columns.items()}},
    )


ALL = items(
    [0, 60, 10, 90, 45],
    ["a", "b", "a", "b", "c"],
    is_query=[True, True, False, False, False],
    is_gallery=[False, False, True, True, True],
)


def test_two_sets() -> None:
    result = QueryGallery().evaluate(ALL[:2], ALL[2:])
    # 0 → 10 right; 60 → 45 (c), then 90 right.
    assert result.metrics == {"map": 0.75, "recall@1": 0.5}
    assert (result.n_queries, result.n_gallery) == (2, 3)


def test_one_set_with_columns() -> None:
    assert QueryGallery().evaluate(ALL).metrics == {"map": 0.75, "recall@1": 0.5}
    numbers = ALL.with_columns(
        {"is_query": np.array([1, 1, 0, 0, 0]), "is_gallery": np.array([0, 0, 1, 1, 1])}
    )
    assert QueryGallery().evaluate(numbers).n_gallery == 3


def test_an_item_that_is_both_does_not_find_itself() -> None:
    both = ALL.with_columns({"is_gallery": np.ones(5, dtype=bool)})
    result = QueryGallery().evaluate(both)
    np.testing.assert_allclose(result.per_query["recall@1"], [1, 0])
    assert result.n_gallery == 5


def test_two_encoders_of_all_items() -> None:
    """The columns pick the queries of the new and the gallery of the old."""
    old = items(
        [0, 60, 50, 90, 45],
        ["a", "b", "a", "b", "c"],
        space="old",
        is_query=[True, True, False, False, False],
        is_gallery=[False, False, True, True, True],
    )
    cross = QueryGallery().evaluate(ALL, old, direct=True, metrics=["recall@1"])
    np.testing.assert_allclose(cross.per_query["recall@1"], [0, 0])
    assert (cross.n_queries, cross.n_gallery) == (2, 3)


def test_a_column_keeps_items_out() -> None:
    shots = ALL.with_columns({"shoots": np.array([1, 2, 1, 3, 4])})
    result = QueryGallery(exclude_column="shoots").evaluate(shots, metrics=["recall@1"])
    np.testing.assert_array_equal(result.per_query["recall@1"], [np.nan, 0])


def test_what_cannot_be_answered_is_refused() -> None:
    plain = items([0, 1], ["a", "a"])
    with pytest.raises(EvaluationError, match="without a column 'is_query': give a gallery"):
        QueryGallery().evaluate(plain)
    half = plain.with_columns({"is_query": np.array([True, False])})
    with pytest.raises(EvaluationError, match="without a column 'is_gallery'"):
        QueryGallery().evaluate(half)
    for column, message in (
        (np.array([False, False]), "marks none of the 2 items"),
        (np.array(["yes", "no"]), "expected true or false"),
        (np.array([2, 1]), "expected true or false"),
        (np.array([1.0, 0.0]), "expected true or false"),
    ):
        with pytest.raises(EvaluationError, match=message):
            QueryGallery().evaluate(half.with_columns({"is_gallery": column}))
