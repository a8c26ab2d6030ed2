"""Verdicts need evidence: an interval beyond the limit, not a value beyond it."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.upgrade.gate import judge
from midspan.upgrade.verdicts import (
    Answers,
    FlipCounts,
    GateResult,
    Limits,
    judged,
    share_interval,
)

RNG = np.random.default_rng(3)


def hits(right: int, wrong: int) -> np.ndarray:
    return np.array([1.0] * right + [0.0] * wrong)


def judgement(before: np.ndarray, after: np.ndarray, **settings: object) -> GateResult:
    limits = Limits(**settings)  # type: ignore[arg-type]
    return judge(Answers(before, after, before, after), limits=limits)


def flips(found: GateResult) -> FlipCounts:
    assert found.flips is not None
    return found.flips


def test_one_flip_in_fifty_queries_is_no_evidence_of_failure() -> None:
    before, after = hits(50, 0), hits(49, 1)
    found = judgement(before, after, max_negative_flips=0.01)
    assert flips(found).negative == pytest.approx(0.02)
    assert found.verdict == "INCONCLUSIVE"
    assert {check.verdict for check in found.checks} == {"INCONCLUSIVE"}
    assert found.checks[0].name == "negative flips"
    assert found.checks[0].more_queries is not None
    assert found.checks[0].more_queries > 50


def test_many_flips_both_ways_pass_where_quality_grew() -> None:
    """Retention 102.6 % with 14 % flips both ways."""
    n = 1000
    before, after = hits(760, 240), hits(760, 240)
    after[:140] = 0.0  # right, now wrong
    after[760 : 760 + 160] = 1.0  # wrong, now right
    found = judge(Answers(before, after, np.full(n, 0.56), np.full(n, 0.56 * 1.026)))
    assert found.verdict == "PASS"
    assert [check.name for check in found.checks] == ["retention"]
    assert found.checks[0].value == pytest.approx(1.026)
    assert flips(found).negative == pytest.approx(0.14)
    assert flips(found).positive == pytest.approx(0.16)
    assert flips(found).chance == pytest.approx(0.76 * 0.24)  # errors independent, equally good
    assert flips(found).p_worse > 0.5


def test_more_flips_down_than_up_than_chance_allows_are_shown() -> None:
    before, after = hits(500, 500), hits(500, 500)
    after[:100] = 0.0
    after[500:540] = 1.0
    found = judge(Answers(before, after, before, after))
    assert flips(found).p_worse < 1e-4
    assert found.verdict == "FAIL"  # retention 0.88


@pytest.mark.parametrize(
    ("low", "value", "high", "verdict"),
    [
        (0.985, 0.99, 1.0, "PASS"),
        (0.97, 0.99, 1.0, "INCONCLUSIVE"),
        (0.95, 0.97, 0.99, "INCONCLUSIVE"),
        (0.9, 0.95, 0.975, "FAIL"),
    ],
)
def test_the_interval_decides_not_the_value(
    low: float, value: float, high: float, verdict: str
) -> None:
    check = judged("retention", value, low, high, queries=100, least=0.98)
    assert check.verdict == verdict
    assert (check.more_queries is None) == (verdict != "INCONCLUSIVE")


@pytest.mark.parametrize(
    ("queries", "low", "value", "high", "verdict"),
    [
        (12, 0.8, 1.0, 1.2, "PASS"),
        (12, 0.8, 0.99, 1.2, "INCONCLUSIVE"),  # a loss, within the limit by chance or not
        (300, 0.98, 0.985, 0.99, "PASS"),
        (300, 0.96, 0.97, 0.99, "INCONCLUSIVE"),  # a worse value, and no evidence of it
        (300, 0.9, 0.95, 0.975, "FAIL"),
        (12, 0.1, 0.2, 0.3, "INCONCLUSIVE"),  # so few may all be unlucky
    ],
)
def test_where_every_item_has_asked_no_measured_loss_passes_and_the_interval_fails(
    queries: int, low: float, value: float, high: float, verdict: str
) -> None:
    check = judged("retention", value, low, high, queries=queries, least=0.98, exhaustive=True)
    assert (check.verdict, check.more_queries) == (verdict, None)


def test_the_number_of_further_queries_decides_when_they_come() -> None:
    after = np.array([0.5] * 6 + [1.0] * 194)
    before = np.ones(200)
    first = judge(Answers(before, before, before, after))
    (check,) = first.checks
    assert first.verdict == "INCONCLUSIVE"
    assert check.more_queries is not None
    times = -(-(200 + check.more_queries) // 200)
    many = judge(Answers(*(np.tile(one, times) for one in (before, before, before, after))))
    assert many.verdict == "PASS"
    fewer = max(1, (200 + check.more_queries) // 200 // 3)
    few = judge(Answers(*(np.tile(one, fewer) for one in (before, before, before, after))))
    assert few.verdict == "INCONCLUSIVE"


def test_a_value_on_the_limit_needs_more_queries_than_anybody_has() -> None:
    assert judged("retention", 0.98, 0.9, 1.1, queries=50, least=0.98).more_queries is None


def test_few_queries_decide_nothing() -> None:
    found = judgement(np.ones(8), np.ones(8))
    assert found.verdict == "INCONCLUSIVE"
    assert found.checks[0].more_queries == 12
    bad = judgement(np.ones(8), np.zeros(8))
    assert bad.verdict == "INCONCLUSIVE"


def test_no_flip_in_fifty_queries_is_not_certainly_below_one_in_a_hundred() -> None:
    low, high = share_interval(0, 50)
    assert low == 0.0
    assert 0.05 < high < 0.08


def test_the_interval_of_a_share_covers_it() -> None:
    for share in (0.02, 0.2):
        found = RNG.binomial(200, share, size=500)
        inside = [
            low <= share <= high for low, high in (share_interval(int(n), 200) for n in found)
        ]
        assert 0.92 < np.mean(inside) <= 0.99


def grouped(worse: float, *, groups: int, each: int = 20) -> GateResult:
    """Equal quality before and after with noise, but for the last group."""
    rng = np.random.default_rng(0)
    names = np.repeat([f"g{n:03d}" for n in range(groups)], each)
    before = np.clip(rng.normal(0.7, 0.1, len(names)), 0, 1)
    after = np.clip(before + rng.normal(0, 0.1, len(names)), 0, 1)
    after[names == names[-1]] *= 1 - worse
    return judge(Answers(before, before, before, after), limits=Limits(0.9), groups=names)


def test_a_group_that_is_significantly_worse_fails() -> None:
    found = grouped(0.4, groups=40)
    assert found.checks[0].verdict == "PASS"
    assert found.verdict == "FAIL"
    failed = [name for name, checks in found.groups.items() if checks[0].verdict == "FAIL"]
    assert failed == ["g039"]
    assert found.groups["g039"][0].p is not None
    assert found.groups["g039"][0].p < 0.05


def test_many_groups_do_not_fail_by_chance() -> None:
    """With 100 groups at least some are below their limit by chance."""
    failures = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        names = np.repeat(np.arange(100), 12).astype(str)
        before = rng.normal(0.7, 0.1, len(names))
        after = before + rng.normal(0, 0.1, len(names))
        found = judge(Answers(before, before, before, after), groups=names)
        assert any(checks[0].value < 0.98 for checks in found.groups.values())
        failures += found.verdict == "FAIL"
    assert failures <= 1


def test_groups_that_are_too_small_are_counted() -> None:
    names = np.array(["large"] * 40 + [f"s{n}" for n in range(10)])
    found = judge(Answers(*(np.ones(50),) * 4), groups=names)
    assert list(found.groups) == ["large"]
    assert found.notes == ("10 groups have too few queries to be judged",)
