from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import Kernel, Procrustes, fit_auto
from midspan.errors import EvaluationError, VectorError
from tests.bridges.worlds import embeddings, encoders, rotation


def test_a_rotation_is_left_to_the_simplest() -> None:
    old, _ = encoders(200, labelled=False)
    new = embeddings(old.vectors @ rotation(12), "new")
    selection = fit_auto(old, new, candidates=("procrustes", "ridge", "kernel"))
    assert selection.chosen == "procrustes"
    assert isinstance(selection.bridge, Procrustes)
    assert selection.bridge.n_pairs_ == 200
    assert "procrustes" in selection.why


def test_a_bent_map_gets_a_bridge_that_bends() -> None:
    old, new = encoders(400, noise=0.01, labelled=False)
    selection = fit_auto(old, new, candidates=("procrustes", "ridge", "kernel"), folds=3)
    assert isinstance(selection.bridge, Kernel)
    assert "ahead of ridge" in selection.why
    assert selection.metric == "MRR of the own item"
    scores = {tried.name: tried.score for tried in selection.tried}
    assert scores["procrustes"] < scores["ridge"] < scores["kernel"]


def test_the_simpler_wins_a_near_tie() -> None:
    old, new = encoders(150)
    selection = fit_auto(old, new, candidates=("ridge", {"name": "ridge", "seed": 1}), folds=3)
    assert selection.chosen == "ridge"
    same = [tried.score for tried in selection.tried]
    assert same[0] == pytest.approx(same[1], abs=1e-3)


def test_candidates_that_cannot_be_fitted_are_passed_over() -> None:
    old, new = encoders(60, source_dim=80, target_dim=80)
    selection = fit_auto(old, new, candidates=("procrustes", "ridge"), folds=3)
    assert selection.chosen == "ridge"
    assert "needs at least 80" in selection.tried[0].note
    assert np.isnan(selection.tried[0].score)
    assert "only candidate" in selection.why
    with pytest.raises(VectorError, match=r"no candidate could be fitted; procrustes"):
        fit_auto(old, new, candidates=("procrustes",), folds=3)


def test_no_candidates() -> None:
    old, new = encoders(60)
    with pytest.raises(EvaluationError, match="no candidates"):
        fit_auto(old, new, candidates=())


def test_the_same_seed_chooses_the_same() -> None:
    old, new = encoders(150)
    first, second = (fit_auto(old, new, folds=3, seed=4) for _ in range(2))
    assert first.chosen == second.chosen
    assert [t.score for t in first.tried] == [t.score for t in second.tried]
