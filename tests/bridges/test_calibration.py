from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from midspan.bridges import Ridge, ScoreMap, calibrate, keep_false_accept_rate
from midspan.errors import EvaluationError, FormatError, RunError
from tests.bridges.worlds import encoders, unit64

Method = Literal["isotonic", "quantile"]
METHODS: tuple[Method, ...] = ("isotonic", "quantile")


@pytest.mark.parametrize("method", METHODS)
def test_a_monotone_distortion_is_undone(method: Method) -> None:
    rng = np.random.default_rng(0)
    true = rng.uniform(-1, 1, 5000)
    distorted = 0.3 * true**3 + 0.1 * true + 0.2
    fitted = ScoreMap(method=method).fit(distorted, true)
    inside = np.abs(true) < 0.95
    np.testing.assert_allclose(fitted(distorted)[inside], true[inside], atol=0.03)


@pytest.mark.parametrize("method", METHODS)
def test_no_order_is_changed_even_on_plateaus(method: Method) -> None:
    rng = np.random.default_rng(0)
    before = rng.random(1000)
    after = np.round(before) + 0.3 * rng.standard_normal(1000)
    fitted = ScoreMap(method=method).fit(before, after)
    values = np.linspace(-1, 2, 500)
    assert (np.diff(fitted(values)) > 0).all()
    np.testing.assert_allclose(fitted.inverse(fitted(values)), values, atol=1e-6)


def test_isotonic_is_the_mean_inside_each_part() -> None:
    rng = np.random.default_rng(0)
    before = np.repeat([0.1, 0.5, 0.9], 200)
    after = np.repeat([0.0, 1.0, 2.0], 200) + rng.standard_normal(600)
    fitted = ScoreMap(method="isotonic", knots=3).fit(before, after)
    expected = [after[before == value].mean() for value in (0.1, 0.5, 0.9)]
    np.testing.assert_allclose(fitted(np.array([0.1, 0.5, 0.9])), expected, atol=1e-9)


def test_beyond_the_seen_scores_it_goes_on() -> None:
    fitted = ScoreMap(method="quantile").fit(np.linspace(0, 1, 50), np.linspace(2, 3, 50))
    np.testing.assert_allclose(fitted(np.array([-1.0, 2.0])), [1.0, 4.0])


def test_isotonic_predicts_the_true_score_better_than_the_raw_one() -> None:
    old, new = encoders(900, noise=0.4, labelled=False)
    bridge = Ridge().fit(old[:300], new[:300])
    fitted = calibrate(bridge, old[300:600], new[300:600], method="isotonic")
    mapped, true = bridge.apply(old.vectors[600:]), unit64(new.vectors[600:])
    apart = ~np.eye(300, dtype=bool)
    now, then = (true @ mapped.T)[apart], (true @ true.T)[apart]
    assert np.mean((fitted(now) - then) ** 2) < 0.9 * np.mean((now - then) ** 2)


def test_one_threshold_lets_the_same_share_through_after_calibration() -> None:
    old, new = encoders(900, noise=0.4, labelled=False)
    bridge = Ridge().fit(old[:300], new[:300])
    fitted = calibrate(bridge, old[300:600], new[300:600])
    mapped, true = bridge.apply(old.vectors[600:]), unit64(new.vectors[600:])
    apart = ~np.eye(300, dtype=bool)
    now, then = (true @ mapped.T)[apart], (true @ true.T)[apart]
    for share in (0.9, 0.99):
        threshold = float(np.quantile(then, share))
        raw, calibrated = np.mean(now > threshold), np.mean(fitted(now) > threshold)
        assert calibrated == pytest.approx(1 - share, rel=0.2)
        assert abs(calibrated - (1 - share)) < abs(raw - (1 - share))


def test_round_trip(tmp_path: Path) -> None:
    fitted = ScoreMap().fit(np.linspace(0, 1, 99), np.linspace(0, 1, 99) ** 2)
    again = ScoreMap.load(fitted.save(tmp_path / "scores.json"))
    values = np.linspace(-1, 2, 77)
    assert np.array_equal(again(values), fitted(values))
    (tmp_path / "scores.json").write_text('{"format": "midspan-score-map", "method": "isotonic"}')
    with pytest.raises(FormatError, match="not a score map"):
        ScoreMap.load(tmp_path / "scores.json")
    with pytest.raises(FormatError, match="not a score map"):
        ScoreMap.load(tmp_path / "absent.json")


def test_the_false_accept_rate_is_kept() -> None:
    rng = np.random.default_rng(0)
    today = rng.normal(0.2, 0.1, 20_000)
    after = rng.normal(0.35, 0.15, 30_000)
    kept = keep_false_accept_rate(threshold=0.45, impostors_today=today, impostors_after=after)
    assert kept.target_rate == pytest.approx(np.mean(today > 0.45))
    assert kept.false_accept_rate <= kept.target_rate
    assert kept.false_accept_rate == pytest.approx(kept.target_rate, abs=1 / 30_000)
    assert kept.value > 0.45  # the new scores are higher: the old threshold would leak
    assert kept.false_accepts == int(np.sum(after > kept.value))
    with pytest.warns(DeprecationWarning, match="target_rate"):
        assert kept.wanted_rate == kept.target_rate


@pytest.mark.parametrize(("threshold", "accepted"), [(2.0, 0), (0.5, 5), (-1.0, 10)])
def test_the_threshold_by_hand(threshold: float, accepted: int) -> None:
    scores = np.arange(10) / 10  # 0 … 0.9
    kept = keep_false_accept_rate(
        threshold=threshold, impostors_today=scores - 0.05 + 0.1, impostors_after=scores
    )
    assert kept.false_accepts == accepted


def test_what_it_refuses() -> None:
    with pytest.raises(EvaluationError, match="too few"):
        ScoreMap().fit(np.ones(3), np.ones(3))
    with pytest.raises(EvaluationError, match="isotonic: expected pairs"):
        ScoreMap(method="isotonic").fit(np.arange(20), np.arange(30))
    with pytest.raises(EvaluationError, match="NaN"):
        ScoreMap().fit(np.full(20, np.nan), np.arange(20))
    with pytest.raises(EvaluationError, match="all scores are the same"):
        ScoreMap(method="quantile").fit(np.ones(20), np.arange(20))
    with pytest.raises(RunError, match="not fitted"):
        ScoreMap()(np.ones(3))
    with pytest.raises(EvaluationError, match="impostor scores"):
        keep_false_accept_rate(
            threshold=0.5, impostors_today=np.array([]), impostors_after=np.ones(3)
        )
