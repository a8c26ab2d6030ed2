"""The gate: PASS, INCONCLUSIVE or FAIL before and during an upgrade, with its evidence.

**Retention**: how much of the reference's quality is left? The reference is the true new vectors
where they are given (a re-embedded sample), else what serves today. No group of queries that was
named (a class, a shop) may be significantly worse. **Flips** are counted in both directions and
compared with those that an equally good encoder has by chance; a limit on them is opt-in.

With labels, "right" is a first result of the query's class and quality is a metric such as mAP.
Without labels, right is what both encoders agree on: see `agreement`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from midspan.errors import EvaluationError
from midspan.evaluation import evaluate
from midspan.spaces import Column, Embeddings
from midspan.upgrade.agreement import (
    agreed_answers,
    agreement,
    agreement_check,
    agreement_notes,
    ranked,
)
from midspan.upgrade.verdicts import (
    MIN_RETENTION,
    Answers,
    Check,
    GateResult,
    Limits,
    Verdict,
    count_flips,
    group_checks,
    judged,
    overall,
    retention_check,
)

__all__ = ["MIN_RETENTION", "Check", "GateResult", "Verdict", "gate", "judged", "worst_queries"]

WORST = 10  # queries that are named
EXHAUSTIVE_NOTE = (
    "every item that can ask has asked: the values are exact for this gallery, so a retention "
    "without any loss is a PASS; a FAIL still needs the interval. Pictures that are not in the "
    "gallery may fare differently, by about as much as the interval says"
)


def gate(
    *,
    before: Embeddings,
    after: Embeddings,
    query: Embeddings | None = None,
    truth: Embeddings | None = None,
    max_negative_flips: float | None = None,
    min_retention: float = MIN_RETENTION,
    metric: str = "map",
    k: int = 10,
    exclude_column: str | None = None,
    group_column: str | None = None,
    seed: int = 0,
) -> GateResult:
    """Compare what serves today with what would serve, over the items that all sides have.

    Args:
        before: Today's vectors, which search themselves; labels are taken from here.
        after: The gallery that would serve.
        query: The new encoder's queries on it; default: `after` searches itself.
        truth: The true new vectors, if the gallery of `after` is mapped or mixed.
        max_negative_flips: Share of the queries that may turn from right to wrong; None: no limit.
        min_retention: Share of the reference quality that must be kept.
        metric: "map", "recall@1" …; needs labels.
        k: Without labels: how many results must agree.
        exclude_column: Items that share this column's value (of `before`) with the query do not
            count; needs labels.
        group_column: No group of it ("labels": no class) may be significantly worse.
        seed: Of the intervals.

    Returns:
        PASS, FAIL or INCONCLUSIVE, each check with its interval, and the queries that lost most.

    Raises:
        UnknownId: The sets share no id.
        EvaluationError: Limits out of range, or nothing to find.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat(np.arange(10), 20)
        >>> points = np.eye(10)[labels] + 0.1 * rng.normal(size=(200, 10))
        >>> ids = np.arange(200).astype(str)
        >>> old = ms.Embeddings(ids, points, ms.Space("old", 10), {"labels": labels})
        >>> new = ms.Embeddings(ids, points[:, ::-1], ms.Space("new", 10), {"labels": labels})
        >>> ms.gate(before=old, after=new).verdict
        'PASS'
        >>> noise = ms.Embeddings(ids, rng.normal(size=(200, 10)), new.space)
        >>> ms.gate(before=old, after=noise).verdict
        'FAIL'
    """
    limits = Limits(min_retention, max_negative_flips)
    before, after, query, truth = _same_items(before, after, query, truth)
    groups = _groups(before, group_column)
    if exclude_column is not None:
        if before.labels is None:
            raise EvaluationError("`exclude_column` needs labels on the side that serves today")
        values = _column(before, exclude_column, "to exclude by")
        column = {exclude_column: values}
        after = after.with_columns(column)
        query = None if query is None else query.with_columns(column)
        truth = None if truth is None else truth.with_columns(column)
    extra: list[Check] = []
    if before.labels is not None:
        notes: tuple[str, ...] = ()
        answers = _by_labels(
            before, after, query, truth, metric=metric, exclude_column=exclude_column
        )
    else:
        new = next(side for side in (truth, query, after) if side is not None)
        agreed = agreement(before, new, k=k)
        searching = after if query is None else query
        served = [
            ranked(*sides, k=agreed.k).tolist() for sides in ((before,) * 2, (searching, after))
        ]
        answers = agreed_answers(agreed, *served)
        metric, notes = f"agreed@{agreed.k}", agreement_notes(agreed)
        extra.append(agreement_check(agreed, seed=seed))
    return judge(
        answers,
        ids=before.ids.tolist(),
        limits=limits,
        groups=groups,
        labelled=before.labels is not None,
        metric=metric,
        notes=notes,
        extra=extra,
        seed=seed,
    )


def judge(
    answers: Answers,
    *,
    ids: Sequence[str] = (),
    limits: Limits | None = None,
    groups: Column | None = None,
    labelled: bool = True,
    metric: str = "quality",
    notes: tuple[str, ...] = (),
    extra: Sequence[Check] = (),
    exhaustive: bool = False,
    seed: int = 0,
) -> GateResult:
    """groups: the name of each query's group; "" for none. extra: further checks of the same
    queries, judged already. exhaustive: the queries are all items that there are.
    """
    limits = limits or Limits()
    retention = retention_check(answers, limits.min_retention, seed=seed, exhaustive=exhaustive)
    checks = [retention, *extra]
    flips = count_flips(answers)
    if limits.max_negative_flips is not None:
        checks.insert(0, flips.checked(limits.max_negative_flips, exhaustive=exhaustive))
    if exhaustive:
        notes = (*notes, EXHAUSTIVE_NOTE)
    by_group, small = group_checks(answers, groups, limits.min_retention, seed=seed)
    if small:
        notes = (*notes, f"{small:,} groups have too few queries to be judged")
    failed = [check for one in by_group.values() for check in one if check.verdict == "FAIL"]
    before, after = answers.quality_reference, answers.quality_after
    answered = np.isfinite(before) & np.isfinite(after)
    return GateResult(
        verdict=overall([*checks, *failed]),
        checks=tuple(checks),
        groups=by_group,
        labelled=labelled,
        metric=metric,
        n_queries=int(np.isfinite(after).sum()),
        worst=worst_queries(answers, ids),
        flips=flips,
        notes=notes,
        before=float(before[answered].mean()),
        after=float(after[answered].mean()),
    )


def worst_queries(answers: Answers, ids: Sequence[str]) -> tuple[str, ...]:
    """Ids of those that lost most, the worst first."""
    loss = np.nan_to_num(answers.quality_reference - answers.quality_after, nan=-np.inf)
    order = np.argsort(-loss, kind="stable")[:WORST]
    return tuple(str(ids[row]) for row in order if loss[row] > 0) if len(ids) else ()


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
    exclude_column: str | None,
) -> Answers:
    metrics = list(dict.fromkeys(["recall@1", metric]))

    def answered(asking: Embeddings, asked: Embeddings | None = None) -> Mapping[str, Column]:
        return evaluate(asking, asked, metrics=metrics, exclude_column=exclude_column).per_query

    old = answered(before)
    new = answered(after) if query is None else answered(query, after)
    best = old if truth is None else answered(truth)
    return Answers(old["recall@1"], new["recall@1"], best[metric], new[metric])


def _groups(before: Embeddings, column: str | None) -> Column | None:
    return None if column is None else _column(before, column, "to group by")


def _column(before: Embeddings, name: str, purpose: str) -> Column:
    if name not in before.columns:
        known = ", ".join(before.columns) or "none"
        raise EvaluationError(f"no column {name!r} {purpose}; columns: {known}")
    return before.columns[name]
