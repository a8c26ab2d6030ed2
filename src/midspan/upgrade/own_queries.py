"""The gate without shadow files: the gallery's own items are the queries.

Along the way these are the items of the kept sample, which the new encoder embedded before the
start. When every item has its new vector, further items may ask as well, without an encoder: all
of them, or as many as decide in practice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from midspan.errors import EvaluationError, GalleryError, SpaceMismatch, UnknownId
from midspan.gallery import Counts, Gallery, Item
from midspan.gallery.records import Record
from midspan.gallery.routing import PairedSample
from midspan.spaces import Embeddings
from midspan.upgrade.orders import chance
from midspan.upgrade.priorities import PAGE, item_pages, still_valid
from midspan.upgrade.shadow import judged_by, shadow_gate
from midspan.upgrade.shadow_queries import FEWEST_ITEMS, Shadow
from midspan.upgrade.steps import open_record
from midspan.upgrade.verdicts import FEWEST, MIN_RETENTION, GateResult

MOST = 3000  # queries
PAGES = 200  # of items that are looked through for further queries: a million
OTHERS_PER_RESULT = 4  # a search that returns most of the items finds the right ones in any order
SAME = 0.01  # share of the items that may have changed since a verdict


@dataclasses.dataclass(frozen=True, slots=True)
class GateSettings:
    """Limits and keys of a gate over the gallery's own items; see Shadow."""

    min_retention: float = MIN_RETENTION
    max_negative_flips: float | None = None
    group_key: str | None = None
    label_key: str = "labels"

    def shadow(self, old: Embeddings, new: Embeddings) -> Shadow:
        return Shadow(
            old=old,
            new=new,
            label_key=self.label_key,
            min_retention=self.min_retention,
            max_negative_flips=self.max_negative_flips,
            group_key=self.group_key,
        )


def own_gate(gallery: Gallery, settings: GateSettings | None = None) -> GateResult:
    """The gate with the gallery's own items as queries.

    Over the kept sample; where that does not decide, over further items that have both vectors.

    Args:
        gallery: A gallery with an open upgrade.
        settings: Limits and keys; None: retention of 0.98, no groups.

    Returns:
        The verdict. It is not recorded; `judged_by` does that.

    Raises:
        EvaluationError: There are too few items that have both vectors.
        GalleryError: No upgrade is open.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import own_gate
        >>> ids = np.arange(60).astype(str)
        >>> noise = 0.1 * np.random.default_rng(0).normal(size=(60, 6))
        >>> points = np.eye(6)[np.arange(60) % 6] + noise
        >>> old = ms.Embeddings(ids, points, ms.Space("old", 6))
        >>> new = ms.Embeddings(ids, points[:, ::-1], ms.Space("new", 6))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> _ = upgrade.run(new)
        >>> own_gate(gallery).verdict
        'PASS'
    """
    settings = settings or GateSettings()
    first = own_queries(gallery, settings)
    result = shadow_gate(gallery, first)
    if result.verdict != "INCONCLUSIVE" or first.exhaustive or gallery.count().pending:
        return result
    wider = own_queries(gallery, settings, more=MOST)
    return shadow_gate(gallery, wider) if len(wider.old) > len(first.old) else result


def watch_own(gallery: Gallery, settings: GateSettings | None = None) -> Callable[[], GateResult]:
    """The gate over the gallery's own items, for `Upgrade.run(check=…)`; always the same queries.

    Args:
        gallery: A gallery with an open upgrade.
        settings: As of `own_gate`.

    Returns:
        A function that asks the gate.

    Raises:
        EvaluationError: There are too few items that have both vectors.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import watch_own
        >>> ids = np.arange(60).astype(str)
        >>> noise = 0.1 * np.random.default_rng(0).normal(size=(60, 6))
        >>> points = np.eye(6)[np.arange(60) % 6] + noise
        >>> old = ms.Embeddings(ids, points, ms.Space("old", 6))
        >>> new = ms.Embeddings(ids, points[:, ::-1], ms.Space("new", 6))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> _ = upgrade.run(new, limit=40)
        >>> upgrade.run(new, check=watch_own(gallery)).stopped  # a FAIL would have paused it
        'done'
    """
    shadow = own_queries(gallery, settings or GateSettings())
    return lambda: shadow_gate(gallery, shadow)


def own_queries(gallery: Gallery, settings: GateSettings, *, more: int = 0) -> Shadow:
    """The kept sample, and up to `more` items that have both vectors."""
    record, counts = open_record(gallery), gallery.count()
    spaces = gallery.state.spaces
    kept = kept_of(gallery, record)
    old = Embeddings(kept.ids, kept.old, spaces[record.old])
    new = Embeddings(kept.ids, kept.new, spaces[record.new])
    if len(kept) < FEWEST and not counts.pending:
        more = max(more, MOST // 10)
    if more:
        further = _further(gallery, record, more, without=frozenset(kept.ids.tolist()))
        mine, theirs = (gallery.vectors(further, space=end) for end in (record.old, record.new))
        mine, theirs = mine.paired_with(theirs) if len(mine) and len(theirs) else (old[:0], new[:0])
        old, new = old.joined_with(mine), new.joined_with(theirs)
    exhaustive = counts.done == counts.items == len(old)
    fewest = FEWEST_ITEMS if exhaustive else FEWEST
    if len(old) < fewest:
        raise EvaluationError(
            f"expected {fewest} or more items that have both vectors, to ask with, got {len(old)}; "
            "give queries of both encoders to midspan upgrade gate"
        )
    items = gallery.get_many(old.ids.tolist())
    labelled = with_labels(old, items, key=settings.label_key)
    shadow = settings.shadow(labelled, new.take(labelled.ids))
    k = min(shadow.k, max(1, (counts.items - 1) // OTHERS_PER_RESULT))
    return dataclasses.replace(shadow, k=k, exhaustive=exhaustive)


def kept_of(gallery: Gallery, record: Record) -> PairedSample:
    """The upgrade's sample without items that are gone or show another picture by now."""
    empty = gallery.state.spaces[record.old].dim, gallery.state.spaces[record.new].dim
    sample = PairedSample(
        np.array([], dtype=np.str_), *(np.empty((0, dim), np.float32) for dim in empty)
    )
    if record.sample is None:
        return sample
    try:
        sample = PairedSample.from_bytes(gallery.blobs.get(record.sample))
    except UnknownId:
        return sample
    return still_valid(gallery, sample, old=record.old)


def _further(gallery: Gallery, record: Record, count: int, *, without: frozenset[str]) -> list[str]:
    """Ids of about so many items that have both vectors, chosen by their ids alone."""
    share = min(1.0, 1.2 * count / max(1, min(len(gallery), PAGES * PAGE)))
    found: list[str] = []
    for number, page in enumerate(item_pages(gallery, missing=None)):
        found += [
            item.id
            for item in page
            if item.id not in without
            and {record.old, record.new} <= set(item.spaces)
            and chance(item.id, 1) < share
        ]
        if number + 1 >= PAGES:
            break
    return sorted(found, key=lambda id: chance(id, 2))[:count]


def with_labels(old: Embeddings, items: Sequence[Item], *, key: str) -> Embeddings:
    """Labels if most of the items have one; a query without is then left out."""
    old = dataclasses.replace(old, columns={})
    known = {item.id: item.payload[key] for item in items if key in item.payload}
    rows = [row for row, id in enumerate(old.ids.tolist()) if id in known]
    if 2 * len(rows) < len(old) or not rows:
        return old
    kept = old[rows]
    return kept.with_columns({"labels": np.array([str(known[id]) for id in kept.ids.tolist()])})


# ---- what finish requires: a PASS on the gallery as it is now ------------------------------------


def is_current(record: Record, counts: Counts) -> bool:
    """The last verdict was made on what is there now: hardly a new vector was written since."""
    seen = record.evidence
    if record.gate is None or seen is None:
        return False
    share = counts.done / max(counts.items, 1)
    written = abs(counts.done - int(seen.get("new", counts.done)))
    return abs(share - float(seen["share"])) <= SAME and written <= SAME * counts.items


def ask_before_finish(gallery: Gallery) -> None:
    """Where the last verdict is not about the gallery as it is now, ask again; a FAIL pauses."""
    record, counts = open_record(gallery), gallery.count()
    if not counts.items or is_current(record, counts):
        return
    try:
        result = own_gate(gallery)
    except (EvaluationError, UnknownId, SpaceMismatch) as error:
        asked = "was not asked" if record.gate is None else stale_words(record, counts)
        raise GalleryError(
            f"{gallery.location}: finish requires a PASS of the gate, which {asked}, and it cannot "
            f'be asked now: {error}. Or finish with `override` "reason"'
        ) from error
    judged_by(gallery, result)


def stale_words(record: Record, counts: Counts) -> str:
    then = 100 * (record.evidence or {}).get("share", 0.0)
    now = 100 * counts.done / max(counts.items, 1)
    return f"said {record.gate} at {then:.0f} % new (now {now:.0f} %, other vectors since)"
