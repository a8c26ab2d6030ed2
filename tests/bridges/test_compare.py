from __future__ import annotations

import json

import numpy as np
import pytest

from midspan.bridges import Ridge, compare_bridges
from midspan.bridges.base import Pairs
from midspan.bridges.compare import Trial, title
from midspan.bridges.retrieval import average_precisions
from midspan.errors import ConfigError, EvaluationError
from tests.bridges.worlds import embeddings, encoders, rotation, unit64


def test_a_rotation_keeps_everything_and_no_bridge_keeps_nothing() -> None:
    old, _ = encoders(200)
    new = embeddings(old.vectors @ rotation(12), "new", labels=old.labels)
    result = compare_bridges(old, new, candidates=("procrustes", "ridge"), draws=100)
    assert result.metric == "mAP by class"
    assert result.row("procrustes").retention == pytest.approx(1.0, abs=1e-3)
    assert result.row("none").retention < 0.5
    assert result.row("none").high < result.row("ridge").low
    assert [row.name for row in result.rows] == ["none", "procrustes", "ridge"]


def test_labels_hold_out_whole_classes() -> None:
    old, new = encoders(200, classes=20)
    trial = Trial(Pairs.of(old, new), folds=5, seed=0)
    assert old.labels is not None
    seen = []
    for part in trial.parts:
        out = set(old.labels[trial.rows[part]].tolist())
        fit = np.setdiff1d(np.arange(200), trial.excluded(part))
        assert out.isdisjoint(old.labels[fit].tolist())
        assert len(fit) == 200 - 10 * len(out)
        seen += trial.rows[part].tolist()
    assert sorted(seen) == list(range(200))


def test_the_score_is_that_of_bridges_fitted_by_hand() -> None:
    old, new = encoders(120, classes=12)
    assert old.labels is not None
    trial = Trial(Pairs.of(old, new), folds=3, seed=1)
    values: list[float] = []
    for part in trial.parts:
        out = np.isin(old.labels, old.labels[trial.rows[part]])
        mapped = Ridge(alpha=0.2).fit(old[~out], new[~out]).apply(old.vectors[out])
        precisions = average_precisions(unit64(new.vectors[out]), mapped, old.labels[out], "cosine")
        values += precisions.tolist()
    expected = np.mean(values)
    candidate = {"name": "ridge", "alpha": 0.2}
    result = compare_bridges(old, new, candidates=[candidate], folds=3, seed=1, draws=50)
    row = result.row("ridge(alpha=0.2)")
    assert row.score == pytest.approx(float(expected), abs=1e-6)
    assert row.retention == pytest.approx(row.score / result.true_score)
    assert row.low <= row.retention <= row.high


def test_without_labels_each_query_wants_its_own_item() -> None:
    old, new = encoders(150, labelled=False)
    result = compare_bridges(old, new, candidates=("ridge",), draws=100)
    assert result.metric == "MRR of the own item"
    assert result.true_score == 1.0
    assert result.row("none").score < 0.25  # 30 items a fold: 0.13 by chance
    assert 0.5 < result.row("ridge").score < 1.0


def test_a_bridge_that_cannot_be_fitted_says_why() -> None:
    old, new = encoders(60, source_dim=80, target_dim=80)
    result = compare_bridges(old, new, candidates=("procrustes", "ridge"), folds=3, draws=50)
    assert np.isnan(result.row("procrustes").retention)
    assert "needs at least 80" in result.row("procrustes").note
    assert result.row("ridge").retention > 0


def test_unequal_dims_have_a_baseline_too() -> None:
    old, new = encoders(150, target_dim=20)
    result = compare_bridges(old, new, candidates=("ridge",), draws=50)
    assert result.row("none").retention < result.row("ridge").retention


def test_a_large_set_is_judged_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midspan.bridges.compare.HELD_OUT", 40)
    old, new = encoders(200, labelled=False)
    result = compare_bridges(old, new, candidates=("ridge",), folds=4, draws=20)
    assert (result.pairs, result.held_out, result.folds) == (200, 40, 4)


def test_the_result_is_plain_data() -> None:
    old, new = encoders(80)
    result = compare_bridges(old, new, candidates=("ridge",), draws=20)
    assert json.loads(json.dumps(result.to_dict()))["rows"][1]["name"] == "ridge"
    with pytest.raises(EvaluationError, match="'mlp' is not in this comparison"):
        result.row("mlp")


def test_what_it_refuses() -> None:
    old, new = encoders(80)
    with pytest.raises(EvaluationError, match="1 folds leave nothing"):
        compare_bridges(old, new, folds=1)
    with pytest.raises(ConfigError, match="did you mean 'ridge'"):
        compare_bridges(old, new, candidates=("rigde",))


def test_titles() -> None:
    assert title("ridge") == "ridge"
    assert title({"name": "low-rank", "rank": 8}) == "low-rank(rank=8)"
