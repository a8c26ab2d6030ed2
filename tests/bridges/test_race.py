"""Candidates over shared folds: what is shared changes nothing, who is behind stops."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import Blend, Ridge, fit_auto
from midspan.bridges.base import Pairs
from midspan.bridges.compare import Trial
from midspan.bridges.race import lead, race
from midspan.spaces import Embeddings, Space


def _pairs(n: int = 400, dim: int = 12) -> tuple[Embeddings, Embeddings]:
    rng = np.random.default_rng(0)
    labels = np.array([f"class {i % 40}" for i in range(n)])
    x = rng.standard_normal((40, dim))[np.arange(n) % 40] + 0.6 * rng.standard_normal((n, dim))
    y = np.tanh(1.5 * x @ rng.standard_normal((dim, dim))) + 0.05 * rng.standard_normal((n, dim))
    ids = np.array([f"{i:04d}" for i in range(n)])
    return (
        Embeddings(ids, x.astype(np.float32), Space("old", dim), {"labels": labels}),
        Embeddings(ids, y.astype(np.float32), Space("new", dim), {"labels": labels}),
    )


def _stretched() -> tuple[Embeddings, Embeddings]:
    """A linear map that no rotation is near to."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((400, 12)).astype(np.float32)
    turn, _ = np.linalg.qr(rng.standard_normal((12, 12)))
    y = (x @ turn * np.geomspace(0.02, 3.0, 12)) @ np.linalg.qr(rng.standard_normal((12, 12)))[0]
    ids = np.array([f"{i:04d}" for i in range(400)])
    return (
        Embeddings(ids, x, Space("old", 12)),
        Embeddings(ids, y.astype(np.float32), Space("new", 12)),
    )


@pytest.mark.parametrize("name", ["procrustes", "ridge", "low-rank", "local", "kernel", "blend"])
def test_a_candidate_in_company_scores_as_it_does_alone(name: str) -> None:
    old, new = _pairs()
    alone, _ = Trial(Pairs.of(old, new), folds=3, seed=0).values(name)
    trial = Trial(Pairs.of(old, new), folds=3, seed=0)
    others = ["ridge", "kernel", "blend", name]
    together = race(trial, others, label="", drop=False, progress=False)[-1]
    np.testing.assert_array_equal(together.values, alone)


def test_bridges_on_the_same_pairs_decompose_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from midspan.bridges import least_squares

    calls: list[int] = []
    real = least_squares.decompose

    def counted(rows: least_squares.Rows) -> least_squares.Spectrum:
        calls.append(len(rows))
        return real(rows)

    monkeypatch.setattr(least_squares, "decompose", counted)
    pairs = Pairs.of(*_pairs())
    first = Ridge().fit_pairs(pairs)
    Blend(members=({"name": "ridge"},)).fit_pairs(pairs)
    again = Ridge(alpha=None).fit_pairs(pairs)
    assert calls == [len(pairs)]
    np.testing.assert_array_equal(first.weight_, again.weight_)
    other = Ridge(seed=1).fit_pairs(pairs)
    assert other is not first


def test_a_candidate_that_maps_as_a_simpler_one_is_dropped() -> None:
    rng = np.random.default_rng(2)
    ids = np.array([f"{i:04d}" for i in range(120)])
    noise = rng.standard_normal((2, 120, 16)).astype(np.float32)  # `local` finds nothing to correct
    old, new = (Embeddings(ids, noise[i], Space(f"space {i}", 16)) for i in range(2))
    chosen = fit_auto(old, new, candidates=("ridge", "local"))
    by_name = {one.name: one for one in chosen.tried}
    assert by_name["local"].note == "dropped after 1 of 3 folds: it maps as ridge does"
    assert by_name["ridge"].note == ""
    assert chosen.chosen == "ridge"


def test_equal_scores_of_different_maps_drop_nobody() -> None:
    old, new = _stretched()
    trial = Trial(Pairs.of(old, new), folds=3, seed=0)
    trial.judge_fold = lambda fold, mapped: np.ones(len(mapped))  # type: ignore[method-assign]
    raced = race(trial, ["ridge", "kernel"], label="", drop=True, progress=False)
    assert [(one.folds, one.dropped) for one in raced] == [(3, ""), (3, "")]


def test_whoever_is_clearly_behind_is_dropped_and_named() -> None:
    old, new = _stretched()
    chosen = fit_auto(old, new, candidates=("procrustes", "ridge"))
    by_name = {one.name: one for one in chosen.tried}
    assert "dropped after 1 of 3 folds" in by_name["procrustes"].note
    assert np.isfinite(by_name["procrustes"].score)
    assert chosen.chosen == "ridge"
    assert "ahead of procrustes" in chosen.why
    full = race(
        Trial(Pairs.of(old, new), folds=5, seed=0),
        ("procrustes", "ridge"),
        label="",
        drop=False,
        progress=False,
    )
    best = max(full, key=lambda one: float(np.nanmean(one.values)))
    assert best.name == chosen.chosen


def test_lead_by_hand() -> None:
    best, other = np.array([1.0, 1.0, 0.5, np.nan]), np.array([0.5, 0.5, 0.5, 1.0])
    ahead, error = lead(best, other, np.array(["a", "a", "b", "b"]))
    assert ahead == pytest.approx(1 / 3)  # of the queries that both have
    assert error == pytest.approx(np.std([0.5, 0.0], ddof=1) / np.sqrt(2))
