from __future__ import annotations

import math

import pytest

from midspan.reports import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.74219, "0.742"),
        (0.0, "0.000"),
        (-0.0001, "0.000"),
        (-0.25, "−0.250"),
        (math.nan, "–"),
        (math.inf, "–"),
        (None, "–"),
    ],
)
def test_fraction_formats_three_digits(value: float | None, text: str) -> None:
    assert numbers.fraction(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0241, "+0.024"), (-0.1, "−0.100"), (0.0001, "±0.000"), (-0.0001, "±0.000"), (None, "–")],
)
def test_signed_formats_the_sign(value: float | None, text: str) -> None:
    assert numbers.signed(value) == text


def test_signed_tiny_difference_is_not_zero() -> None:
    assert numbers.amount(0.00002) == "less than 0.001"
    assert numbers.amount(-0.0314) == "0.031"
    assert numbers.amount(0.0) == "0.000"


def test_percent_formats_one_digit() -> None:
    assert numbers.percent(0.0312) == "3.1 %"
    assert numbers.percent(None) == "–"
    assert numbers.percent(math.nan) == "–"


def test_interval_formats_both_bounds() -> None:
    assert numbers.interval((0.7, 0.75)) == "0.700 to 0.750"
    assert numbers.interval((-0.01, 0.02)) == "−0.010 to 0.020"
    assert numbers.interval(None) == ""
    assert numbers.interval((math.nan, 0.5)) == ""


def test_times_formats_factors() -> None:
    assert numbers.times(0.742, 0.009) == "82×"
    assert numbers.times(0.019, 0.009) == "2.1×"
    assert numbers.times(0.5, 0.0) == "–"
    assert numbers.times(math.nan, 0.1) == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.31, "0.3 s"),
        (41.4, "41 s"),
        (59.7, "1 min 0 s"),
        (75, "1 min 15 s"),
        (3700, "1 h 1 min"),
        (math.nan, "–"),
    ],
)
def test_duration_formats_seconds_to_hours(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text


def test_metric_name_is_readable() -> None:
    assert numbers.metric_name("map") == "mAP"
    assert numbers.metric_name("map@300") == "mAP@300"
    assert numbers.metric_name("recall@10") == "Recall@10"
    assert numbers.metric_name("my score") == "my score"
