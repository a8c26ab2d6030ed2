"""The gate along the way: queries that are asked twice, of the old service and of today's.

The old service is still there: the old vectors are kept until `finish`. So shadow queries compare
the two on the whole gallery at any moment of the backfill, in every mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation import bootstrap_ci
from midspan.gallery import Gallery, Hit
from midspan.spaces import Embeddings
from midspan.upgrade import routing
from midspan.upgrade.gate import (
    MAX_NEGATIVE_FLIPS,
    MIN_RETENTION,
    GateResult,
    judged,
)
from midspan.upgrade.record import open_record

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shadow:
    """The same queries in both spaces, by id; an item of the same id is left out of the results.

    With labels (a column of `old`, and `label_key` in the items' payload) a query is right if its
    first result is of its class, and its quality is the share of its class among the first k.
    Without, the old service's own results stand for the truth, as in `gate`.
    """

    old: Embeddings
    new: Embeddings
    label_key: str = "labels"
    k: int = 10
    max_negative_flips: float = MAX_NEGATIVE_FLIPS
    min_retention: float = MIN_RETENTION
    seed: int = 0


def shadow_gate(gallery: Gallery, shadow: Shadow) -> GateResult:
    old, new = shadow.old.paired_with(shadow.new)
    record = open_record(gallery)
    live = (record.old,)
    before = gallery.search(old, k=shadow.k + 1, live=live, among=live)
    after = routing.search(gallery, new, k=shadow.k + 1)
    before = [_others(hits, id, shadow.k) for hits, id in zip(before, old.ids, strict=True)]
    after = [_others(hits, id, shadow.k) for hits, id in zip(after, old.ids, strict=True)]
    if old.labels is not None:
        labels = [str(label) for label in old.labels.tolist()]
        first = [_right(hits, labels, shadow) for hits in (before, after)]
        share = [_share(hits, labels, shadow) for hits in (before, after)]
    else:
        truth = [{hit.id for hit in hits} for hits in before]
        tops = [hits[0].id if hits else None for hits in before]
        first = [
            np.array(
                [top in {hit.id for hit in hits} for hits, top in zip(some, tops, strict=True)]
            )
            for some in (before, after)
        ]
        share = [
            np.array(
                [
                    len({hit.id for hit in hits} & wanted) / max(len(wanted), 1)
                    for hits, wanted in zip(some, truth, strict=True)
                ]
            )
            for some in (before, after)
        ]
    return _judge(old, first, share, shadow)


def watch(gallery: Gallery, shadow: Shadow) -> Callable[[], GateResult]:
    """For `run(check=…)`."""
    return lambda: shadow_gate(gallery, shadow)


def _judge(
    old: Embeddings, first: list[Float64], share: list[Float64], shadow: Shadow
) -> GateResult:
    if not share[0].any():
        raise EvaluationError(
            "no shadow query found anything right in the old service; are the labels those of "
            f"the payload's {shadow.label_key!r}?"
        )
    flipped = (first[0] > first[1]).astype(np.float64)
    low, high = bootstrap_ci(flipped, seed=shadow.seed)
    flips = judged(
        "negative flips", float(flipped.mean()), low, high, most=shadow.max_negative_flips
    )
    low, high = bootstrap_ci(share[1], share[0], statistic=lambda a, b: a / b, seed=shadow.seed)
    kept = float(share[1].mean() / share[0].mean())
    retention = judged("retention", kept, low, high, least=shadow.min_retention)
    verdicts = [flips.verdict, retention.verdict]
    loss = share[0] - share[1]
    return GateResult(
        verdict="FAIL" if "FAIL" in verdicts else "WARN" if "WARN" in verdicts else "PASS",
        checks=(flips, retention),
        groups={},
        labelled=old.labels is not None,
        metric=f"precision@{shadow.k}" if old.labels is not None else f"overlap@{shadow.k}",
        n_queries=len(old),
        worst=tuple(
            str(old.ids[row]) for row in np.argsort(-loss, kind="stable")[:10] if loss[row] > 0
        ),
    )


def _others(hits: list[Hit], id: str, k: int) -> list[Hit]:
    return [hit for hit in hits if hit.id != str(id)][:k]


def _is(hit: Hit, label: str, shadow: Shadow) -> bool:
    return str(hit.payload.get(shadow.label_key)) == label


def _right(found: list[list[Hit]], labels: list[str], shadow: Shadow) -> Float64:
    rows = zip(found, labels, strict=True)
    return np.array([bool(hits) and _is(hits[0], label, shadow) for hits, label in rows], float)


def _share(found: list[list[Hit]], labels: list[str], shadow: Shadow) -> Float64:
    rows = zip(found, labels, strict=True)
    return np.array([sum(_is(h, label, shadow) for h in hits) / shadow.k for hits, label in rows])
