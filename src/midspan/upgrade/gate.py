"""The gate: PASS, WARN or FAIL before and during an upgrade, with its evidence.

Two questions, each with a confidence interval over the queries:

- **negative flips**: how many queries were right and are wrong now?
- **retention**: how much of the reference's quality is left? The reference is the true new vectors
  where they are given (a re-embedded sample), else what serves today.

With labels, "right" is a first result of the query's class and quality is a metric such as mAP.
Without labels the reference's own ranking stands for the truth: quality is the share of its first
`k` results that are still among the first `k`, and a query is right if the reference's first result
is among its first `k`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from midspan.errors import EvaluationError
from midspan.evaluation import bootstrap_ci, evaluate, search_exact
from midspan.spaces import Embeddings, IntArray

Verdict = Literal["PASS", "WARN", "FAIL"]

MAX_NEGATIVE_FLIPS = 0.01  # own choice: one query in a hundred
MIN_RETENTION = 0.95  # own choice; the best published adapters keep 0.95 to 0.99
SMALLEST_GROUP = 20  # queries; fewer say little about a share of 0.01


@dataclass(frozen=True, slots=True)
class Check:
    """One question. WARN: the value holds, but its interval reaches beyond the limit."""

    name: str
    value: float
    low: float
    high: float
    limit: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class GateResult:
    """`groups` has the same checks inside each group of queries that is large enough.

    FAIL if a check fails over all queries; WARN if one is uncertain, or fails inside a group.
    """

    verdict: Verdict
    checks: tuple[Check, ...]
    groups: Mapping[str, tuple[Check, ...]]
    labelled: bool
    metric: str
    n_queries: int
    worst: tuple[str, ...]  # ids of the queries that lost most, the worst first

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Answers:
    """Per query: was it right, and how good was it."""

    right_before: np.ndarray[Any, np.dtype[np.float64]]
    right_after: np.ndarray[Any, np.dtype[np.float64]]
    quality_after: np.ndarray[Any, np.dtype[np.float64]]
    quality_reference: np.ndarray[Any, np.dtype[np.float64]]


def gate(
    *,
    before: Embeddings,
    after: Embeddings,
    query: Embeddings | None = None,
    truth: Embeddings | None = None,
    max_negative_flips: float = MAX_NEGATIVE_FLIPS,
    min_retention: float = MIN_RETENTION,
    metric: str = "map",
    k: int = 10,
    group_column: str | None = None,
    seed: int = 0,
) -> GateResult:
    """Compare what serves today with what would serve, over the items that all sides have.

    before: today's vectors, which search themselves. after: the gallery that would serve; `query`
    are the new encoder's queries on it (default: `after` searches itself). truth: the true new
    vectors, if the gallery of `after` is mapped or mixed. Labels are taken from `before`.
    """
    if not 0 <= max_negative_flips <= 1 or min_retention < 0:
        raise EvaluationError(
            f"max_negative_flips = {max_negative_flips}, min_retention = {min_retention}; "
            "wanted a share between 0 and 1, and a ratio of 0 or more"
        )
    before, after, query, truth = _same_items(before, after, query, truth)
    labelled = before.labels is not None
    if labelled:
        answers = _by_labels(before, after, query, truth, metric=metric)
    else:
        metric, answers = f"overlap@{k}", _by_rankings(before, after, query, truth, k=k)
    limits = (max_negative_flips, min_retention)
    everyone = np.ones(len(before), dtype=bool)
    checks = _checks(answers, everyone, *limits, seed=seed)
    groups = {}
    if group_column is not None:
        groups = {
            str(name): _checks(answers, rows, *limits, seed=seed)
            for name, rows in _groups(before, group_column)
            if np.isfinite(answers.quality_after[rows]).sum() >= SMALLEST_GROUP
        }
    loss = np.nan_to_num(answers.quality_reference - answers.quality_after, nan=-np.inf)
    worst = np.argsort(-loss, kind="stable")[:10]
    return GateResult(
        verdict=_overall(checks, groups),
        checks=checks,
        groups=groups,
        labelled=labelled,
        metric=metric,
        n_queries=int(np.isfinite(answers.quality_after).sum()),
        worst=tuple(str(before.ids[row]) for row in worst if loss[row] > 0),
    )


def _same_items(
    before: Embeddings, after: Embeddings, query: Embeddings | None, truth: Embeddings | None
) -> tuple[Embeddings, Embeddings, Embeddings | None, Embeddings | None]:
    """All sides cut down to the items they share, in one order, with the labels of `before`."""
    shared = set(before.ids.tolist())
    for other in (after, query, truth):
        if other is not None:
            shared &= set(other.ids.tolist())
    if len(shared) < 2:
        raise EvaluationError(
            f"the sides share {len(shared)} ids; the gate compares the same items before and after"
        )
    ids = np.array([name for name in before.ids.tolist() if name in shared])
    before = before.take(ids)
    columns = dict(before.columns)

    def cut(side: Embeddings) -> Embeddings:
        return side.take(ids).with_columns(columns)

    return (
        before,
        cut(after),
        None if query is None else cut(query),
        None if truth is None else cut(truth),
    )


def _by_labels(
    before: Embeddings,
    after: Embeddings,
    query: Embeddings | None,
    truth: Embeddings | None,
    *,
    metric: str,
) -> _Answers:
    asked = list(dict.fromkeys(["recall@1", metric]))
    old = evaluate(before, metrics=asked).per_query
    asking, searched = (after, None) if query is None else (query, after)
    new = evaluate(asking, searched, metrics=asked).per_query
    best = old if truth is None else evaluate(truth, metrics=[metric]).per_query
    return _Answers(old["recall@1"], new["recall@1"], new[metric], best[metric])


def _by_rankings(
    before: Embeddings,
    after: Embeddings,
    query: Embeddings | None,
    truth: Embeddings | None,
    *,
    k: int,
) -> _Answers:
    k = min(k, len(before) - 1)
    old = _ranked(before, before, k=k)
    new = _ranked(after if query is None else query, after, k=k)
    best = old if truth is None else _ranked(truth, truth, k=k)
    return _Answers(
        right_before=_holds(old, best[:, :1]).any(axis=1).astype(float),
        right_after=_holds(new, best[:, :1]).any(axis=1).astype(float),
        quality_after=_holds(new, best).sum(axis=1) / k,
        quality_reference=np.ones(len(before)),
    )


def _ranked(query: Embeddings, gallery: Embeddings, *, k: int) -> IntArray:
    """(Q, k) rows of the gallery, the query's own item left out."""
    _, found = search_exact(query, gallery, k=k, exclude=np.arange(len(gallery)))
    return found


def _holds(found: IntArray, wanted: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(Q, W) is each wanted row among the found ones of its query?"""
    return np.asarray((found[:, :, None] == wanted[:, None, :]).any(axis=1))


def _checks(
    answers: _Answers,
    rows: np.ndarray[Any, np.dtype[np.bool_]],
    max_negative_flips: float,
    min_retention: float,
    *,
    seed: int,
) -> tuple[Check, Check]:
    answered = rows & np.isfinite(answers.right_before) & np.isfinite(answers.right_after)
    if not answered.any():
        raise EvaluationError("no query has anything to find both before and after")
    flipped = (answers.right_before[answered] > answers.right_after[answered]).astype(float)
    low, high = bootstrap_ci(flipped, seed=seed)
    flips = judged("negative flips", float(flipped.mean()), low, high, most=max_negative_flips)
    after, best = answers.quality_after[rows], answers.quality_reference[rows]
    low, high = bootstrap_ci(after, best, statistic=lambda a, b: a / b, seed=seed)
    kept = float(np.nanmean(after) / np.nanmean(best))
    return flips, judged("retention", kept, low, high, least=min_retention)


def judged(
    name: str,
    value: float,
    low: float,
    high: float,
    *,
    most: float | None = None,
    least: float | None = None,
) -> Check:
    """A value with its interval against one limit, `most` or `least`."""
    if most is not None:
        limit, holds, surely = most, value <= most, high <= most
    else:
        assert least is not None
        limit, holds, surely = least, value >= least, low >= least
    verdict: Verdict = "FAIL" if not holds else "PASS" if surely else "WARN"
    return Check(name, value, low, high, limit, verdict)


def _groups(
    before: Embeddings, column: str
) -> list[tuple[str, np.ndarray[Any, np.dtype[np.bool_]]]]:
    if column not in before.columns:
        known = ", ".join(before.columns) or "none"
        raise EvaluationError(f"no column {column!r} to group by; columns: {known}")
    values = before.columns[column]
    return [(str(value), values == value) for value in np.unique(values).tolist()]


def _overall(checks: tuple[Check, ...], groups: Mapping[str, tuple[Check, ...]]) -> Verdict:
    if any(check.verdict == "FAIL" for check in checks):
        return "FAIL"
    uncertain = any(check.verdict == "WARN" for check in checks)
    hurt = any(check.verdict == "FAIL" for group in groups.values() for check in group)
    return "WARN" if uncertain or hurt else "PASS"
