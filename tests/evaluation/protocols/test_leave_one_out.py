from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import EvaluationError, SpaceMismatch, UnknownId
from midspan.evaluation.protocols.leave_one_out import LeaveOneOut
from midspan.spaces import Embeddings, Space


def items(
    angles: list[float], labels: list[str], *, space: str = "a", **columns: list[int]
) -> Embeddings:
    radians = np.deg2rad(angles)
    return Embeddings(
        ids=np.array([f"{row:03d}" for row in range(len(angles))]),
        vectors=np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32),
        space=Space(space, 2),
        columns={"labels": np.array(labels), **{n: np.array(c) for n, c in columns.items()}},
    )


FOUR = items([0, 10, 14, 90, 250], ["a", "a", "b", "b", "lone"])


def test_each_item_searches_among_the_others() -> None:
    result = LeaveOneOut().evaluate(FOUR, metrics=["recall@1", "map", "map@r"])
    # Ranks of the one partner: 0→10 first, 10→(14) 0 second, 14→(10, 0) 90 third, 90→14 first.
    np.testing.assert_allclose(result.per_query["map"], [1, 1 / 2, 1 / 3, 1, np.nan])
    assert result.metrics["recall@1"] == 0.5
    assert result.metrics["map"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1) / 4)
    assert result.metrics["map@r"] == 0.5
    assert (result.n_queries, result.n_gallery) == (5, 5)
    assert list(LeaveOneOut().evaluate(FOUR).metrics) == ["map", "recall@1", "map@r"]


def test_the_gallery_is_the_same_items_by_another_encoder() -> None:
    old = items([0, 10, 14, 90, 250], ["a", "a", "b", "b", "lone"], space="old")
    with pytest.raises(SpaceMismatch):
        LeaveOneOut().evaluate(FOUR, old)
    cross = LeaveOneOut().evaluate(FOUR, old[::-1], metrics=["map"], direct=True)
    assert cross.metrics == LeaveOneOut().evaluate(FOUR, metrics=["map"]).metrics
    with pytest.raises(UnknownId, match="1 ids are only in the first"):
        LeaveOneOut().evaluate(FOUR, old[:4], direct=True)


def test_a_column_keeps_neighbours_of_the_same_shoot_out() -> None:
    shots = items([0, 1, 40, 20], ["a", "a", "a", "b"], shoots=[1, 1, 2, 3])
    plain = LeaveOneOut().evaluate(shots, metrics=["recall@1"])
    assert plain.per_query["recall@1"][0] == 1
    apart = LeaveOneOut(exclude_column="shoots").evaluate(shots, metrics=["recall@1"])
    assert apart.per_query["recall@1"][0] == 0  # b at 20 is nearer than a at 40


def test_what_cannot_be_answered_is_refused() -> None:
    with pytest.raises(EvaluationError, match="none of the 2 queries has a relevant item"):
        LeaveOneOut().evaluate(items([0, 1], ["a", "b"]))
    bare = Embeddings(FOUR.ids, FOUR.vectors, FOUR.space)
    with pytest.raises(EvaluationError, match="has no labels"):
        LeaveOneOut().evaluate(bare)
