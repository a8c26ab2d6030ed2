"""The running top k, one candidate list after the other."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.evaluation.topk import Best, pack, reaching, unpack


def test_keys_order_by_score_then_place() -> None:
    scores = np.array([1.0, -1.0, 0.0, -0.0, 1e-40, -np.inf, 3e38, -2.5], dtype=np.float32)
    places = np.array([5, 4, 3, 2, 1, 0, 2**32 - 1, 7])
    keys = pack(scores, places)
    expected = sorted(range(8), key=lambda i: (-scores[i], places[i]))
    assert np.argsort(-keys, kind="stable").tolist() == expected
    back, back_places = unpack(keys)
    assert back_places.tolist() == places.tolist()
    assert back.tolist() == scores.tolist()


@pytest.mark.parametrize("width", [1, 7, 8, 9, 100])
def test_reaching_lists_what_reaches_the_floor(width: int) -> None:
    rng = np.random.default_rng(width)
    scores = rng.integers(0, 4, (5, width)).astype(np.float32)
    floor = np.array([[0], [1], [2], [3], [4]], dtype=np.float32)
    line, column, values = reaching(scores, floor)
    expected = [(i, j) for i in range(5) for j in range(width) if scores[i, j] >= floor[i, 0]]
    assert list(zip(line.tolist(), column.tolist(), strict=True)) == expected
    assert values.tolist() == [float(scores[place]) for place in expected]


def test_best_keeps_the_k_largest_of_many_small_and_large_additions() -> None:
    rng = np.random.default_rng(0)
    best, k = Best(3, 5), 5
    everything: list[list[tuple[float, int]]] = [[], [], []]
    place = 0
    for size in (2, 1, 700, 3, 2000, 1):
        lines, keys = [], []
        for query in range(1, 3):  # query 0 gets nothing
            scores = rng.integers(0, 9, size).astype(np.float32)
            places = np.arange(place, place + size)
            place += size
            lines.append(np.full(size, query))
            keys.append(pack(scores, places))
            everything[query] += zip((-scores).tolist(), places.tolist(), strict=True)
        best.add(np.concatenate(lines), np.concatenate(keys), rows=size)
    scores, places = best.sorted()
    assert scores[0].tolist() == [-np.inf] * 5
    for query in (1, 2):
        expected = sorted(everything[query])[:k]
        assert places[query].tolist() == [place for _, place in expected]
        assert scores[query].tolist() == [-score for score, _ in expected]
    best.settle()
    assert best.floor[1, 0] == scores[1, -1]
