"""Why two spaces may be called compatible: the criterion cross > old self, as it was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from midspan.errors import FormatError

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """New queries on the old gallery (cross) against old queries on it (old self).

    PASS: the 95 % interval of the difference lies above 0. FAIL: below. INCONCLUSIVE: it holds 0,
    or nothing was measured; then the numbers are None and `data` says why.
    """

    old: str  # fingerprint of the older space
    verdict: Verdict
    metric: str
    cross: float | None
    old_self: float | None
    low: float | None  # of cross - old_self
    high: float | None
    queries: int
    data: str  # what it was measured on

    @classmethod
    def measured(
        cls,
        *,
        old: str,
        metric: str,
        cross: float,
        old_self: float,
        low: float,
        high: float,
        queries: int,
        data: str,
    ) -> Evidence:
        verdict: Verdict = "PASS" if low > 0 else "FAIL" if high < 0 else "INCONCLUSIVE"
        return cls(old, verdict, metric, cross, old_self, low, high, queries, data)

    @classmethod
    def missing(cls, old: str, *, why: str) -> Evidence:
        return cls(old, "INCONCLUSIVE", "", None, None, None, None, 0, why)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, source: str) -> Evidence:
        try:
            return cls(**{field.name: raw[field.name] for field in fields(cls)})
        except (KeyError, TypeError) as error:
            raise FormatError(f"{source}: the evidence of compatibility is incomplete") from error

    @classmethod
    def each_of(cls, raw: Iterable[Mapping[str, Any]], *, source: str) -> tuple[Evidence, ...]:
        return tuple(cls.from_dict(one, source=source) for one in raw)

    def __str__(self) -> str:
        if self.cross is None or self.old_self is None or self.low is None or self.high is None:
            return f"{self.verdict}: not measured ({self.data})"
        cross, own = 100 * self.cross, 100 * self.old_self
        return (
            f"{self.verdict}: cross {cross:.2f} %, old self {own:.2f} %, "
            f"difference {cross - own:+.2f} points (95 % interval {100 * self.low:+.2f} … "
            f"{100 * self.high:+.2f}); {self.metric}, {self.queries:,} queries, {self.data}"
        )
