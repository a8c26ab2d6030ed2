"""Doubled rows and orders of ids."""

from __future__ import annotations

import numpy as np

from midspan.evaluation.ties import Groups, find_doubles, id_order, inverse, quick_keys


def doubles_of(vectors: np.typing.NDArray[np.float32]) -> dict[int, int]:
    doubles = find_doubles(quick_keys(vectors), lambda: np.array_split(vectors, 3))
    return dict(zip(doubles.rows.tolist(), doubles.firsts.tolist(), strict=True))


def test_doubled_rows_are_found_with_their_first() -> None:
    vectors = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    assert doubles_of(vectors) == {}
    vectors[[4, 11, 19]] = vectors[2]
    vectors[7] = vectors[6]
    assert doubles_of(vectors) == {4: 2, 7: 6, 11: 2, 19: 2}


def test_equal_beginnings_make_no_doubles() -> None:
    """Quick keys see the first coordinates only."""
    vectors = np.random.default_rng(0).standard_normal((6, 100)).astype(np.float32)
    vectors[:, :50] = 0
    vectors[5] = vectors[1]
    assert len(set(quick_keys(vectors).tolist())) == 1
    assert doubles_of(vectors) == {5: 1}


def test_groups_unfold_to_all_members_with_the_best_score() -> None:
    vectors = np.array([[1], [2], [1], [3], [1], [3]], dtype=np.float32)
    groups = Groups(find_doubles(quick_keys(vectors), lambda: [vectors]))
    line, rows, scores = groups.unfold(
        np.array([0, 0, 1, 1]), np.array([2, 1, 4, 0]), np.array([0.5, 0.9, 0.3, 0.4], np.float32)
    )
    members = sorted(zip(line.tolist(), rows.tolist(), scores.tolist(), strict=True))
    tenth = np.array([0.4, 0.5, 0.9], np.float32).tolist()
    assert members == [
        (0, 0, tenth[1]), (0, 1, tenth[2]), (0, 2, tenth[1]), (0, 4, tenth[1]),
        (1, 0, tenth[0]), (1, 2, tenth[0]), (1, 4, tenth[0]),
    ]  # fmt: skip
    assert line.tolist() == sorted(line.tolist())


def test_order_of_ids() -> None:
    assert id_order(None) is None
    assert id_order(np.array(["a", "b", "c"])) is None
    order = id_order(np.array(["b", "10", "9"]))
    assert order is not None
    assert order.tolist() == [1, 2, 0]
    assert inverse(order, length=3).tolist() == [2, 0, 1]
    assert inverse(np.array([2, -1, 0, 1]), length=3).tolist() == [2, 3, 0]
