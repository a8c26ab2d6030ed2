"""From values per query to PASS, INCONCLUSIVE or FAIL: the interval decides, not the value.

FAIL: the interval lies beyond the limit. PASS: it lies within. Otherwise INCONCLUSIVE, with the
number of further queries that would decide if they were like those so far.

Where every item of a gallery has asked there is no further query, and the values of this gallery
are known: then a ratio without any loss is a PASS too. FAIL needs the interval all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation import bootstrap_ci
from midspan.html_table import html_table
from midspan.spaces import Column

Verdict = Literal["PASS", "INCONCLUSIVE", "FAIL"]
Float64 = npt.NDArray[np.float64]

MIN_RETENTION = 0.98  # own choice: two points in a hundred of what is there today
FEWEST = 20  # queries; fewer decide nothing
LEVEL_Z = 1.959964  # of a 95 % interval
MOST_QUERIES = 10_000_000  # beyond this, more queries are no help


@dataclass(frozen=True, slots=True)
class Check:
    """One question, with its 95 % interval.

    more_queries: how many more would decide; None where the verdict is clear, or where the value
    is so near to the limit that no number would. p: of a group, after the correction for many.
    """

    name: str
    value: float
    low: float
    high: float
    limit: float
    verdict: Verdict
    more_queries: int | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True)
class FlipCounts:
    """Shares of the queries that turned from right to wrong (negative) and the reverse.

    chance: negative flips of an encoder that is as good as the old one and errs independently of
    it. p_worse: how probable so many negative among all flips are if both directions are alike.
    """

    negative: float
    negative_low: float
    negative_high: float
    positive: float
    chance: float
    p_worse: float
    n_queries: int

    def checked(self, most: float, *, exhaustive: bool = False) -> Check:
        return judged(
            "negative flips",
            self.negative,
            self.negative_low,
            self.negative_high,
            queries=self.n_queries,
            most=most,
            exhaustive=exhaustive,
        )


@dataclass(frozen=True, slots=True)
class Answers:
    """Per query: was the first result right, and how good was the answer. nan: no answer."""

    right_before: Float64
    right_after: Float64
    quality_reference: Float64
    quality_after: Float64


MAX_RATIO = 2.0  # own choice: nobody asks for more than twice the quality; 98 means 98 %


def check_ratio(min_retention: float) -> None:
    """A limit of 98 would fail every encoder: it is 98 % without its sign."""
    if not 0 <= min_retention <= MAX_RATIO:
        raise EvaluationError(
            f"`min_retention`: expected a ratio between 0 and {MAX_RATIO:g}, got {min_retention}; "
            "give 0.98 for 98 %"
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """A limit on negative flips is opt-in: a better encoder, too, gets some queries wrong."""

    min_retention: float = MIN_RETENTION
    max_negative_flips: float | None = None

    def __post_init__(self) -> None:
        flips = self.max_negative_flips
        if flips is not None and not 0 <= flips <= 1:
            raise EvaluationError(
                f"`max_negative_flips`: expected a share between 0 and 1, got {flips}; give 0.05 "
                "for 5 %"
            )
        check_ratio(self.min_retention)


@dataclass(frozen=True, slots=True)
class GateResult:
    """`groups` has the retention of each group of queries that is large enough to be judged.

    FAIL if a check fails over all queries, or if a group is significantly worse; INCONCLUSIVE if a
    check over all queries is. `notes` say what this evidence can and cannot tell.
    """

    verdict: Verdict
    checks: tuple[Check, ...]
    groups: Mapping[str, tuple[Check, ...]]
    labelled: bool
    metric: str
    n_queries: int
    worst: tuple[str, ...]  # ids of the queries that lost most, the worst first
    flips: FlipCounts | None = None
    notes: tuple[str, ...] = field(default=())
    before: float | None = None  # mean quality of the reference, by the metric
    after: float | None = None

    def __repr__(self) -> str:
        checks = ", ".join(f"{one.name} {one.value:.4f} {one.verdict}" for one in self.checks)
        return f"GateResult({self.verdict}: {checks}; {self.metric}, {self.n_queries:,} queries)"

    def _repr_html_(self) -> str:
        rows = [
            [
                one.name,
                f"{one.value:.4f}",
                f"{one.low:.4f} … {one.high:.4f}",
                f"{one.limit:g}",
                one.verdict,
            ]
            for one in self.checks
        ]
        head = ["check", "value", "95 % interval", "limit", "verdict"]
        note = " ".join([f"{self.n_queries:,} queries, {self.metric}.", *self.notes])
        return html_table(f"gate: {self.verdict}", rows, head=head, note=note)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def overall(checks: list[Check] | tuple[Check, ...]) -> Verdict:
    verdicts = {check.verdict for check in checks}
    if "FAIL" in verdicts:
        return "FAIL"
    return "INCONCLUSIVE" if "INCONCLUSIVE" in verdicts else "PASS"


def judged(
    name: str,
    value: float,
    low: float,
    high: float,
    *,
    queries: int,
    most: float | None = None,
    least: float | None = None,
    exhaustive: bool = False,
) -> Check:
    """A check: FAIL if the interval lies beyond the limit, PASS if within, else INCONCLUSIVE.

    Args:
        name: Of the check.
        value: What was measured.
        low: Lower end of its 95 % interval.
        high: Upper end.
        queries: How many it was measured on.
        most: The value may be at most this; give this or `least`.
        least: The value must be at least this.
        exhaustive: The queries are all that there can be. A ratio without any measured loss then
            passes, although its interval reaches below `least`: nothing further could narrow it.

    Returns:
        The check, with the number of further queries that would decide.

    Example:
        >>> from midspan.upgrade import judged
        >>> judged("retention", 0.99, 0.985, 0.995, queries=400, least=0.98).verdict
        'PASS'
        >>> check = judged("retention", 0.99, 0.97, 1.01, queries=100, least=0.98)
        >>> check.verdict, check.more_queries
        ('INCONCLUSIVE', 300)
    """
    if most is not None:
        limit, fails, passes = most, low > most, (value if exhaustive else high) <= most
    else:
        assert least is not None
        no_loss = exhaustive and value >= max(least, 1.0)
        limit, fails, passes = least, high < least, low >= least or no_loss
    if fails and queries >= FEWEST:
        return Check(name, value, low, high, limit, "FAIL")
    if passes and (exhaustive or queries >= FEWEST):
        return Check(name, value, low, high, limit, "PASS")
    if exhaustive:
        return Check(name, value, low, high, limit, "INCONCLUSIVE")
    more = _more_queries(value, low, high, limit, queries)
    return Check(name, value, low, high, limit, "INCONCLUSIVE", more)


def _more_queries(value: float, low: float, high: float, limit: float, queries: int) -> int | None:
    """An interval shrinks with the root of the number of queries."""
    gap = abs(value - limit)
    reach = value - low if value > limit else high - value
    if not gap > 0 or not math.isfinite(reach):
        return None
    needed = max(FEWEST, math.ceil(queries * (reach / gap) ** 2))
    return None if needed > MOST_QUERIES else max(1, needed - queries)


def share_interval(count: int, queries: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: also of none and of all it does not claim certainty."""
    if not queries:
        return float("nan"), float("nan")
    share, square = count / queries, LEVEL_Z**2
    centre = (share + square / (2 * queries)) / (1 + square / queries)
    spread = share * (1 - share) / queries + square / (4 * queries**2)
    half = LEVEL_Z * math.sqrt(spread) / (1 + square / queries)
    low = 0.0 if count == 0 else max(0.0, centre - half)
    return low, 1.0 if count == queries else min(1.0, centre + half)


def count_flips(answers: Answers) -> FlipCounts:
    from scipy.special import bdtrc

    before, after = answers.right_before, answers.right_after
    answered = np.isfinite(before) & np.isfinite(after)
    if not answered.any():
        raise EvaluationError("no query has anything to find both before and after")
    before, after = before[answered], after[answered]
    negative, positive = int((before > after).sum()), int((before < after).sum())
    low, high = share_interval(negative, len(before))
    right = float(before.mean())
    changed = negative + positive
    return FlipCounts(
        negative=negative / len(before),
        negative_low=low,
        negative_high=high,
        positive=positive / len(before),
        chance=right * (1 - right),
        p_worse=1.0 if not negative else float(bdtrc(negative - 1, changed, 0.5)),
        n_queries=len(before),
    )


def retention_check(
    answers: Answers, least: float, *, seed: int, exhaustive: bool = False
) -> Check:
    """The same resamples of queries on both sides: the interval is that of paired values."""
    after, best = answers.quality_after, answers.quality_reference
    answered = np.isfinite(after) & np.isfinite(best)
    if not answered.any() or not best[answered].any():
        raise EvaluationError(
            "no query finds anything right in the reference, so there is nothing to retain; "
            "are the labels those of the items?"
        )
    after, best = after[answered], best[answered]
    low, high = bootstrap_ci(after, best, statistic=lambda a, b: a / b, seed=seed)
    kept = float(after.mean() / best.mean())
    return judged(
        "retention", kept, low, high, queries=len(after), least=least, exhaustive=exhaustive
    )


# ---- groups of queries, a class or a shop: none may be significantly worse than the limit allows -

SMALLEST_GROUP = 10  # queries; fewer cannot be told from chance
SIGNIFICANT = 0.05  # over all groups together
DRAWS = 20_000  # of signs, for a small group
NORMAL_FROM = 50  # queries of a group, where the normal distribution serves


def group_checks(
    answers: Answers, groups: Column | None, least: float, *, seed: int
) -> tuple[dict[str, tuple[Check, ...]], int]:
    """(the checks of each group that is large enough, number of those that are not)."""
    if groups is None:
        return {}, 0
    names = np.asarray(groups).astype(np.str_)
    after, best = answers.quality_after, answers.quality_reference
    answered = np.isfinite(after) & np.isfinite(best) & (names != "")
    sizes = dict(zip(*np.unique(names[answered], return_counts=True), strict=True))
    large = [str(name) for name, count in sizes.items() if count >= SMALLEST_GROUP]
    large = [name for name in large if best[answered & (names == name)].any()]
    ps, checks = dict[str, float](), dict[str, Check]()
    rng = np.random.default_rng(seed)
    for name in large:
        rows = answered & (names == name)
        mine, theirs = after[rows], best[rows]
        low, high = bootstrap_ci(mine, theirs, statistic=lambda a, b: a / b, seed=seed)
        kept = float(mine.mean() / theirs.mean())
        checks[name] = judged("retention", kept, low, high, queries=len(mine), least=least)
        ps[name] = sign_flip_p(mine - least * theirs, rng=rng)
    corrected = holm(ps)
    return {name: (_with_p(check, corrected[name]),) for name, check in checks.items()}, len(
        sizes
    ) - len(large)


def _with_p(check: Check, p: float) -> Check:
    """Among many groups some look bad by chance: only the corrected p makes one fail."""
    verdict: Verdict = "FAIL" if p < SIGNIFICANT else check.verdict
    if verdict == "FAIL" and p >= SIGNIFICANT:
        verdict = "INCONCLUSIVE"
    more = check.more_queries if verdict == "INCONCLUSIVE" else None
    return replace(check, verdict=verdict, more_queries=more, p=p)


def sign_flip_p(differences: Float64, *, rng: np.random.Generator) -> float:
    """One-sided: how often random signs make the sum as low as it is."""
    total, square = float(differences.sum()), float((differences**2).sum())
    if total >= 0 or not square:
        return 1.0
    if len(differences) >= NORMAL_FROM:
        return 0.5 * math.erfc(-total / math.sqrt(2 * square))
    signs = rng.integers(0, 2, size=(DRAWS, len(differences)), dtype=np.int8) * 2 - 1
    sums = signs.astype(np.float32) @ differences.astype(np.float32)
    return float((np.count_nonzero(sums <= total + 1e-6) + 1) / (DRAWS + 1))


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction: the chance that any group fails without cause stays below the level."""
    corrected, largest = dict[str, float](), 0.0
    for place, name in enumerate(sorted(ps, key=lambda name: ps[name])):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[name]))
        corrected[name] = largest
    return corrected
