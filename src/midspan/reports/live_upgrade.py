"""A live upgrade on a page: the curve, the searches meanwhile, the rollback."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from midspan.errors import EvaluationError
from midspan.reports.numbers import count, duration, fraction, metric_name
from midspan.reports.plots import line_plot
from midspan.reports.verdict import Tile


@dataclass(frozen=True, slots=True)
class LiveUpgrade:
    """What was measured while a gallery was upgraded and rolled back. Times in seconds."""

    items: int
    metric: str  # of the gallery's own answers, "map@500"
    queries: int  # that measured it
    order: str
    mixing: str  # how scores of old and new vectors are merged: "plain", "standardised"
    fractions: tuple[float, ...]  # of the items with new vectors
    values: tuple[float, ...]  # the metric there, queries of the new encoder
    old_value: float  # before: queries of the old encoder
    seconds: float  # of embedding and writing
    searches: int  # by a client, from before the start until after the rollback
    failed: int
    p50: float
    p99: float
    rollback_seconds: float
    asked: int  # old queries before the start and after the rollback
    same: int  # with the same answers
    location: str  # of the gallery, to continue with it
    vectors: str  # file of the new vectors of all items

    def __post_init__(self) -> None:
        if len(self.fractions) != len(self.values) or len(self.values) < 2:
            raise EvaluationError(
                f"a curve: expected as many values as fractions, two or more, got "
                f"{len(self.values)} and {len(self.fractions)}"
            )

    @property
    def rate(self) -> float:
        """Items embedded and written in a second."""
        return self.items / self.seconds if self.seconds > 0 else float("nan")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rate": self.rate}


def upgrade_tiles(upgrade: LiveUpgrade) -> list[Tile]:
    return [
        Tile(
            name="searches meanwhile",
            value=count(upgrade.searches),
            note=("✓" if not upgrade.failed else "✗") + f" {count(upgrade.failed)} failed",
            tone="new",
        ),
        Tile(
            name="time for an answer",
            value=milliseconds(upgrade.p50),
            note=f"half are faster; 99 of 100 within {milliseconds(upgrade.p99)}",
            tone="new",
        ),
        Tile(
            name="the way back",
            value=milliseconds(upgrade.rollback_seconds),
            note=("✓" if upgrade.same == upgrade.asked else "✗")
            + f" {count(upgrade.same)} of {count(upgrade.asked)} answers as before the start",
            tone="old",
        ),
    ]


def upgrade_plot(upgrade: LiveUpgrade) -> str:
    metric = metric_name(upgrade.metric)
    return line_plot(
        {"new encoder": (upgrade.fractions, upgrade.values)},
        x_name="part of the gallery with new vectors",
        y_name=metric,
        title=f"{metric} of the new encoder's queries from {fraction(upgrade.values[0])} to "
        f"{fraction(upgrade.values[-1])} while the gallery is embedded again; the old encoder had "
        f"{fraction(upgrade.old_value)}",
        name="upgrade",
        reference=("old encoder", upgrade.old_value),
    )


def upgrade_words(upgrade: LiveUpgrade) -> str:
    """Whether the search was ever worse than the old service."""
    lowest = min(upgrade.values)
    if lowest >= upgrade.old_value:
        return "At no point was the search worse than the old service had been."
    at = upgrade.fractions[upgrade.values.index(lowest)]
    return (
        f"It was not always better than the old service: with {100 * at:.0f} % new vectors it had "
        f"{fraction(lowest)}, where the old encoder had {fraction(upgrade.old_value)}."
    )


def milliseconds(seconds: float) -> str:
    """0.0042 → '4.2 ms'."""
    if math.isnan(seconds) or seconds >= 1:
        return duration(seconds)
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"
