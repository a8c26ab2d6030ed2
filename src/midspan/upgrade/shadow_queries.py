"""Shadow queries: what is asked, of whom, and what came back."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from midspan.errors import EvaluationError, UnknownId
from midspan.gallery import AuditEvent, Draft, Gallery, Hit, Item
from midspan.spaces import Embeddings
from midspan.upgrade.agreement import (
    agreed_answers,
    agreement,
    agreement_check,
    agreement_notes,
)
from midspan.upgrade.steps import open_record
from midspan.upgrade.verdicts import MIN_RETENTION, Answers, Check, retention_check


@dataclass(frozen=True, slots=True)
class Shadow:
    """The same queries in both spaces, by id; an item of the same id is left out of the results.

    What is right, the first of these that is given: clicks, labels, or what both encoders agree on
    (see `agreement`), and near-duplicates. The queries must be items of the gallery for the last.

    Args:
        old: The queries by the old encoder; its labels say which items are right.
        new: The same queries by the new encoder.
        label_key: The field in the items' payload that the labels are compared with. Quality is the
            share of the query's class among the first k.
        k: Results that count.
        min_retention: The least share of the old quality that is a PASS.
        max_negative_flips: The largest share of queries that may be wrong now and were right; None
            sets no limit.
        group_key: A column of `old`, or a field in the payload of the item that the query is: no
            group of it may be significantly worse ("labels": no class).
        clicks: Ids of the items that were clicked, by the id of the query.
        exhaustive: The queries are all items of the gallery, and no further one can be had.
        seed: Of the resampling.

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
        >>> shadow = Shadow(old[:30], new[:30], max_negative_flips=0.1)
        >>> [check.name for check in shadow_gate(gallery, shadow).checks]
        ['negative flips', 'retention', 'agreement']
    """

    old: Embeddings
    new: Embeddings
    label_key: str = "labels"
    k: int = 10
    min_retention: float = MIN_RETENTION
    max_negative_flips: float | None = None
    group_key: str | None = None
    clicks: Mapping[str, Sequence[str]] | None = None
    exhaustive: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What both services answered, and what of it is right."""

    ids: tuple[str, ...]
    before: tuple[tuple[Hit, ...], ...]
    after: tuple[tuple[Hit, ...], ...]
    relevant: tuple[frozenset[str], ...]  # ids of right results
    answers: Answers
    labelled: bool
    metric: str
    notes: tuple[str, ...] = ()
    extra: tuple[Check, ...] = ()

    def rank(self, row: int, hits: Sequence[Hit]) -> int | None:
        """Of the first right result."""
        ranks = (rank for rank, hit in enumerate(hits, start=1) if hit.id in self.relevant[row])
        return next(ranks, None)

    def lost(self) -> list[int]:
        """Rows of the queries that were right and are wrong now, the worst first."""
        answers = self.answers
        order = np.argsort(answers.quality_after - answers.quality_reference, kind="stable")
        return [
            row for row in order.tolist() if answers.right_before[row] > answers.right_after[row]
        ]


def search_both(gallery: Gallery, old: Embeddings, new: Embeddings, *, k: int) -> list[list[Hit]]:
    """The new way's answer, whatever its share of traffic: mode both takes both vectors."""
    record = open_record(gallery)
    return gallery.search([new, old] if record.mode == "both" else new, k=k, arm="new")


def ask_both(
    gallery: Gallery, old: Embeddings, new: Embeddings, *, k: int
) -> tuple[list[list[Hit]], list[list[Hit]]]:
    """(what the old service answers, what today's does), each query's own item left out."""
    answers = (gallery.search(old, k=k + 1), search_both(gallery, old, new, k=k + 1))
    before, after = (
        [
            [hit for hit in hits if hit.id != id][:k]
            for hits, id in zip(some, old.ids.tolist(), strict=True)
        ]
        for some in answers
    )
    return before, after


def measured(
    old: Embeddings,
    before: list[list[Hit]],
    after: list[list[Hit]],
    relevant: tuple[frozenset[str], ...],
    answers: Answers,
    *,
    labelled: bool,
    metric: str,
) -> Measured:
    return Measured(
        ids=tuple(old.ids.tolist()),
        before=tuple(map(tuple, before)),
        after=tuple(map(tuple, after)),
        relevant=relevant,
        answers=answers,
        labelled=labelled,
        metric=metric,
    )


# ---- the gate along the way without labels or clicks: what both encoders agree on, near-duplicates

NEAR = 0.99  # cosine in the old space: the same picture, but for its compression or size
NEAR_IN_BOTH = 0.9  # cosine in the new space, where that is known
FEWEST_ITEMS = 3  # that both encoders have vectors of, to look for what they agree on


def by_agreement(gallery: Gallery, shadow: Shadow, old: Embeddings, new: Embeddings) -> Measured:
    """On the sampled items alone, of which both encoders have vectors."""
    record = open_record(gallery)
    items = gallery.get_many(old.ids.tolist())
    known = [item for item in items if record.old in item.spaces]
    if len(known) < FEWEST_ITEMS:
        raise EvaluationError(
            f"{len(known)} of {len(old):,} shadow queries are items of the gallery; without labels "
            "or clicks the gate looks for what both encoders agree on, and needs items that it has "
            "vectors of in both: give shadow queries that are items, or labels, or a log of clicks"
        )
    ids = np.array([item.id for item in known])
    mine, theirs = old.take(ids), new.take(ids)
    agreed = agreement(mine, theirs, k=shadow.k)
    with miniature(gallery, known) as small:
        before, after = ask_both(small, mine, theirs, k=agreed.k)
    row_of = {id: row for row, id in enumerate(ids.tolist())}
    served = [[[row_of[hit.id] for hit in hits] for hits in some] for some in (before, after)]
    names = ids.tolist()
    relevant = tuple(frozenset(names[row] for row in rows) for rows in agreed.relevant)
    answers = agreed_answers(agreed, *served)
    result = measured(
        mine, before, after, relevant, answers, labelled=False, metric=f"agreed@{agreed.k}"
    )
    duplicates, note = _near_duplicates(gallery, shadow, mine, theirs)
    return dataclasses.replace(
        result,
        notes=(*agreement_notes(agreed), note),
        extra=(
            agreement_check(agreed, seed=shadow.seed, exhaustive=shadow.exhaustive),
            *duplicates,
        ),
    )


def _near_duplicates(
    gallery: Gallery, shadow: Shadow, old: Embeddings, new: Embeddings
) -> tuple[tuple[Check, ...], str]:
    """Nearly the same picture must be found by any encoder: of the whole gallery."""
    none = "no near-duplicates among the queries' results: they were not looked at"
    if old.space.metric != "cosine":
        return (), none
    before, after = ask_both(gallery, old, new, k=shadow.k)
    near = [[hit.id for hit in hits if hit.score >= NEAR] for hits in before]
    near = [ids if len(ids) < shadow.k else [] for ids in near]  # more of them than results
    vectors = gallery.vectors(
        sorted({id for ids in near for id in ids}), space=open_record(gallery).new
    )
    unit = {
        id: row / np.linalg.norm(row)
        for id, row in zip(vectors.ids.tolist(), vectors.vectors, strict=True)
    }
    kept = np.full(len(old), np.nan)
    for row, ids in enumerate(near):
        query = new.vectors[row] / np.linalg.norm(new.vectors[row])
        sure = [id for id in ids if id not in unit or float(unit[id] @ query) >= NEAR_IN_BOTH]
        if sure:
            kept[row] = len({hit.id for hit in after[row]} & set(sure)) / len(sure)
    count = int(np.isfinite(kept).sum())
    if not count:
        return (), none
    best = np.where(np.isfinite(kept), 1.0, np.nan)
    check = retention_check(
        Answers(best, kept, best, kept),
        shadow.min_retention,
        seed=shadow.seed,
        exhaustive=shadow.exhaustive,
    )
    if check.verdict == "INCONCLUSIVE" and check.low >= check.limit:
        return (), f"{count} queries have near-duplicates: too few to judge, none of them is lost"
    renamed = dataclasses.replace(check, name="near-duplicates")
    return (renamed,), f"{count} queries have near-duplicates (cosine of {NEAR} or more)"


@contextmanager
def miniature(gallery: Gallery, items: Sequence[Item]) -> Iterator[Gallery]:
    """These items as a gallery of their own, in the same state of the same upgrade.

    It answers by the same modes, bridges and scores, so that a ranking among sampled items can be
    asked for on every engine.
    """
    state = gallery.state
    first = state.spaces[state.live[0]]
    with Gallery.create(f"memory:{uuid.uuid4().hex}", first, who=gallery.who) as small:
        event = AuditEvent(who=gallery.who, what="miniature")
        small.change(
            dataclasses.replace(
                small.state,
                spaces=state.spaces,
                live=state.live,
                target=state.target,
                upgrade=state.upgrade,
            ),
            event=event,
        )
        for digest in (state.upgrade or {}).values():
            if isinstance(digest, str):
                with suppress(UnknownId):  # not every text of the record names a blob
                    small.blobs.put(gallery.blobs.get(digest), kind="copy", digest=digest)
        ids = [item.id for item in items]
        parts = [gallery.vectors(ids, space=space) for space in state.writable()]
        drafts = [Draft(item.id, item.uri, item.payload) for item in items]
        small.put_drafts(drafts, [part for part in parts if len(part)])
        yield small
