"""Numbers as people read them: three decimals, real minus signs, times in words."""

from __future__ import annotations

import math
from collections.abc import Iterable

MISSING = "–"

METRIC_NAMES = {
    "map": "mAP",
    "map@r": "MAP@R",
    "map_trapezoid": "mAP (trapezoid)",
    "r_precision": "R-precision",
    "nmi": "NMI",
    "eer": "EER",
}


def metric_name(metric: str) -> str:
    """'map' → 'mAP', 'map@300' → 'mAP@300', 'recall@1' → 'Recall@1'; others as they came."""
    if metric in METRIC_NAMES:
        return METRIC_NAMES[metric]
    if metric.startswith("map@"):
        return "mAP" + metric.removeprefix("map")
    return metric[:1].upper() + metric[1:] if metric.startswith(("recall", "rank")) else metric


def fraction(value: float | None, *, digits: int = 3) -> str:
    """0.7421 → '0.742'; NaN and None → a dash."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")  # no negative zero
    return text.replace("-", "−")


def signed(value: float | None, *, digits: int = 3) -> str:
    """0.024 → '+0.024', −0.1 → '−0.100', what rounds to nothing → '±0.000'."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = fraction(value, digits=digits)
    if float(text.replace("−", "-")) == 0:
        return f"±{text}"
    return text if value < 0 else f"+{text}"


def amount(value: float, *, digits: int = 3) -> str:
    """Size of a difference in a sentence; a difference that rounds to nothing is not 'nothing'."""
    smallest = 10.0**-digits
    if 0 < abs(value) < smallest / 2:
        return f"less than {smallest:.{digits}f}"
    return fraction(abs(value), digits=digits)


def percent(value: float | None, *, digits: int = 1) -> str:
    """0.0312 → '3.1 %'."""
    text = fraction(None if value is None else value * 100, digits=digits)
    return text if text == MISSING else f"{text} %"


def interval(bounds: Iterable[float] | None, *, digits: int = 3) -> str:
    """(0.7, 0.75) → '0.700 to 0.750'; a dash would be read as a minus."""
    if bounds is None:
        return ""
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{fraction(low, digits=digits)} to {fraction(high, digits=digits)}"


def times(value: float, base: float) -> str:
    """How many times `base`: '82×', '2.1×'."""
    if not (math.isfinite(value) and math.isfinite(base)) or base <= 0:
        return MISSING
    ratio = value / base
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.1f}×"


def count(value: int) -> str:
    return f"{value:,}"


def duration(seconds: float) -> str:
    """0.31 → '0.3 s', 75 → '1 min 15 s', 3700 → '1 h 2 min'."""
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
