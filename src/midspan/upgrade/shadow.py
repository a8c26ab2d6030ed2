"""The gate along the way: queries that are asked twice, of the old service and of today's.

The old service is still there: the old vectors are kept until `forget`. So shadow queries compare
the two on the whole gallery at any moment of the backfill, in every mode.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from midspan.errors import EvaluationError, GalleryError, SpaceMismatch
from midspan.gallery import Gallery, Hit, State
from midspan.gallery.records import Record
from midspan.labels import check_overlap, warn_numbered
from midspan.spaces import Column, Embeddings
from midspan.upgrade.gate import judge
from midspan.upgrade.shadow_queries import (
    Measured,
    Shadow,
    ask_both,
    by_agreement,
    measured,
    search_both,
)
from midspan.upgrade.steps import GATE, change, kept_quality, open_record, with_record
from midspan.upgrade.verdicts import Answers, Float64, GateResult, Limits

__all__ = [
    "Measured",
    "Shadow",
    "gate_of",
    "judged_by",
    "measure",
    "search_both",
    "shadow_gate",
    "watch",
]

CLICKS_NOTE = (
    "clicks: people click on what they were shown, so results that only the new encoder finds "
    "count for nothing here; clicks can show a loss, and hardly a gain"
)


def shadow_gate(gallery: Gallery, shadow: Shadow) -> GateResult:
    """The gate over shadow queries, answered by the gallery as it is now.

    Args:
        gallery: A gallery with an upgrade that is running or paused.
        shadow: The queries, what is right for each, and the limits.

    Returns:
        The verdict. It is not recorded; `judged_by` does that.

    Raises:
        EvaluationError: The old service finds nothing right, so there is nothing to compare with.
        GalleryError: No upgrade is running or paused.
        SpaceMismatch: The queries are of other encoders.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import Shadow, shadow_gate
        >>> ids = np.arange(60).astype(str)
        >>> noise = 0.1 * np.random.default_rng(0).normal(size=(60, 6))
        >>> points = np.eye(6)[np.arange(60) % 6] + noise
        >>> old = ms.Embeddings(ids, points, ms.Space("old", 6))
        >>> new = ms.Embeddings(ids, points[:, ::-1], ms.Space("new", 6))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> _ = upgrade.run(new)
        >>> clicks = {id: [str((int(id) + 6) % 60)] for id in ids}  # by the id of the query
        >>> shadow = Shadow(old, new, clicks=clicks, min_retention=0.9)
        >>> shadow_gate(gallery, shadow).metric
        'clicked@10'
    """
    return gate_of(gallery, shadow, measure(gallery, shadow))


def gate_of(gallery: Gallery, shadow: Shadow, measured_answers: Measured) -> GateResult:
    """The verdict on what was measured."""
    return judge(
        measured_answers.answers,
        ids=measured_answers.ids,
        limits=Limits(shadow.min_retention, shadow.max_negative_flips),
        groups=_groups(gallery, shadow, measured_answers),
        labelled=measured_answers.labelled,
        metric=measured_answers.metric,
        notes=measured_answers.notes,
        extra=measured_answers.extra,
        exhaustive=shadow.exhaustive,
        seed=shadow.seed,
    )


def watch(gallery: Gallery, shadow: Shadow) -> Callable[[], GateResult]:
    """The gate over shadow queries, for `Upgrade.run(check=…)`.

    Args:
        gallery: A gallery with an open upgrade.
        shadow: The queries, what is right for each, and the limits.

    Returns:
        A function that asks the gate.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import Shadow, watch
        >>> ids = np.arange(60).astype(str)
        >>> noise = 0.1 * np.random.default_rng(0).normal(size=(60, 6))
        >>> points = np.eye(6)[np.arange(60) % 6] + noise
        >>> old = ms.Embeddings(ids, points, ms.Space("old", 6))
        >>> new = ms.Embeddings(ids, points[:, ::-1], ms.Space("new", 6))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> shadow = Shadow(old[:30], new[:30], min_retention=0.5)
        >>> _ = upgrade.run(new, limit=40)
        >>> upgrade.run(new, check=watch(gallery, shadow)).stopped
        'done'
    """
    return lambda: shadow_gate(gallery, shadow)


def measure(gallery: Gallery, shadow: Shadow) -> Measured:
    old, new = shadow.old.paired_with(shadow.new)
    record = open_record(gallery)
    if record.phase not in ("running", "paused"):
        raise GalleryError(
            f"{gallery.location}: the upgrade is {record.phase}; the gate compares the old service "
            "with today's while an upgrade is running or paused"
        )
    _check_spaces(gallery, record, shadow)
    if shadow.clicks is not None:
        return _by_clicks(gallery, shadow, shadow.clicks, old, new)
    if old.labels is not None:
        return _by_labels(gallery, shadow, old, new)
    return by_agreement(gallery, shadow, old, new)


def _check_spaces(gallery: Gallery, record: Record, shadow: Shadow) -> None:
    """Queries of any other encoder would be answered, and their verdict would mean nothing."""
    for name, given, end in (("old", shadow.old, record.old), ("new", shadow.new, record.new)):
        expected = gallery.state.spaces[end]
        if not given.space.same_as(expected):
            raise SpaceMismatch(
                f"the {name} shadow queries are in {given.space}; expected {expected}, the {name} "
                f"space of the upgrade of {gallery.location}: give the queries' vectors of that "
                "encoder"
            )


def _by_labels(gallery: Gallery, shadow: Shadow, old: Embeddings, new: Embeddings) -> Measured:
    assert old.labels is not None
    if old.numbered:
        warn_numbered(what="shadow queries")
    before, after = ask_both(gallery, old, new, k=shadow.k)
    labels = [str(label) for label in old.labels.tolist()]
    key = shadow.label_key
    relevant = tuple(
        frozenset(hit.id for hit in (*a, *b) if str(hit.payload.get(key)) == label)
        for a, b, label in zip(before, after, labels, strict=True)
    )
    answers = Answers(
        right_before=_first(before, relevant),
        right_after=_first(after, relevant),
        quality_reference=_count(before, relevant) / shadow.k,
        quality_after=_count(after, relevant) / shadow.k,
    )
    if not answers.quality_reference.any():
        held = {str(hit.payload.get(key)) for hits in before for hit in hits if key in hit.payload}
        check_overlap(old.labels, np.array(sorted(held), np.str_), what=("query", "payload"))
        raise EvaluationError(
            "no shadow query found anything right in the old service; are the labels those of "
            f"the payload's {key!r}?"
        )
    return measured(
        old, before, after, relevant, answers, labelled=True, metric=f"precision@{shadow.k}"
    )


def _by_clicks(
    gallery: Gallery,
    shadow: Shadow,
    clicks: Mapping[str, Sequence[str]],
    old: Embeddings,
    new: Embeddings,
) -> Measured:
    rows = [row for row, id in enumerate(old.ids.tolist()) if clicks.get(id)]
    if not rows:
        raise EvaluationError(
            f"none of the {len(old):,} shadow queries has a click in the log; the `id` of a line "
            "must be that of a query"
        )
    old, new = old[rows], new[rows]
    before, after = ask_both(gallery, old, new, k=shadow.k)
    relevant = tuple(frozenset(map(str, clicks[id])) for id in old.ids.tolist())
    sizes = np.array([len(one) for one in relevant])
    counts = [_count(some, relevant) for some in (before, after)]
    answers = Answers(
        right_before=(counts[0] > 0).astype(np.float64),
        right_after=(counts[1] > 0).astype(np.float64),
        quality_reference=counts[0] / sizes,
        quality_after=counts[1] / sizes,
    )
    result = measured(
        old, before, after, relevant, answers, labelled=True, metric=f"clicked@{shadow.k}"
    )
    return dataclasses.replace(result, notes=(CLICKS_NOTE,))


def _first(results: list[list[Hit]], relevant: tuple[frozenset[str], ...]) -> Float64:
    rows = zip(results, relevant, strict=True)
    return np.array([bool(hits) and hits[0].id in right for hits, right in rows], np.float64)


def _count(results: list[list[Hit]], relevant: tuple[frozenset[str], ...]) -> Float64:
    rows = zip(results, relevant, strict=True)
    return np.array([sum(hit.id in right for hit in hits) for hits, right in rows], np.float64)


def _groups(gallery: Gallery, shadow: Shadow, measured_answers: Measured) -> Column | None:
    """The group of each query that was measured; "" for none."""
    key = shadow.group_key
    if key is None:
        return None
    column = shadow.old.columns.get(key)
    if column is not None:
        of = dict(zip(shadow.old.ids.tolist(), column.tolist(), strict=True))
    else:
        items = gallery.get_many(list(measured_answers.ids))
        of = {item.id: item.payload[key] for item in items if key in item.payload}
        if not of:
            raise EvaluationError(
                f"no group {key!r}: it is neither a column of the shadow queries "
                f"({', '.join(shadow.old.columns) or 'they have none'}) nor in the payload of "
                "items with their ids"
            )
    return np.array([str(of.get(id, "")) for id in measured_answers.ids])


def judged_by(gallery: Gallery, result: GateResult) -> None:
    """Keep the gate's verdict and its evidence with the upgrade; a FAIL pauses it.

    Somebody who continued despite a FAIL with a reason is not stopped by the same FAIL again, only
    by one that is worse.

    Args:
        gallery: A gallery with an open upgrade.
        result: What the gate said.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import judged_by, own_gate
        >>> ids = np.arange(60).astype(str)
        >>> noise = 0.1 * np.random.default_rng(0).normal(size=(60, 6))
        >>> points = np.eye(6)[np.arange(60) % 6] + noise
        >>> old = ms.Embeddings(ids, points, ms.Space("old", 6))
        >>> new = ms.Embeddings(ids, points[:, ::-1], ms.Space("new", 6))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> _ = upgrade.run(new)
        >>> judged_by(gallery, own_gate(gallery))
        >>> upgrade.status().gate
        'PASS'
    """
    counts = gallery.count()
    evidence = {
        "metric": result.metric,
        "queries": result.n_queries,
        "share": round(counts.done / max(counts.items, 1), 4),
        "new": counts.done,  # items with a new vector
        "limits": {check.name: check.limit for check in result.checks},
        "before": result.before,  # the old way's quality, by the metric
        "after": result.after,
        "at": time.time(),
    }

    def step(state: State) -> State:
        record = Record.of(state)
        if record is None:
            return state
        known = result.verdict == "FAIL" and _known_fail(record, result)
        record = dataclasses.replace(
            record,
            gate=result.verdict,
            evidence=evidence,
            override=record.override if known else None,
        )
        if result.verdict == "FAIL" and record.phase == "running" and not known:
            record = dataclasses.replace(record, phase="paused", reason=words(result))
        elif record.phase == "paused" and (record.reason or "").startswith(GATE):
            reason = words(result) if result.verdict == "FAIL" else None
            record = dataclasses.replace(record, reason=reason)
        return with_record(state, record)

    details = {"verdict": result.verdict, "checks": words(result), **evidence}
    if Record.of(gallery.state) is not None:
        change(gallery, step, what="upgrade gate", details=details)


WORSE = 0.02  # of the old service's quality, that a FAIL which was overridden may vary by


def _known_fail(record: Record, result: GateResult) -> bool:
    """A FAIL that was overridden, and that is no worse now than it was then."""
    kept = (record.override or {}).get("kept")
    now = kept_quality(result.before, result.after)
    return kept is not None and now is not None and now >= kept - WORSE


def words(result: GateResult) -> str:
    """What decided, in a line."""
    checks = [("", check) for check in result.checks]
    checks += [(f"{name}: ", check) for name, one in result.groups.items() for check in one]
    failed = [pair for pair in checks if pair[1].verdict == "FAIL"]
    shown = failed or [("", check) for check in result.checks]
    return GATE + "; ".join(
        f"{group}{check.name} {check.value:.4f} ({check.low:.4f} to {check.high:.4f}), limit "
        f"{check.limit:g}"
        for group, check in shown
    )
