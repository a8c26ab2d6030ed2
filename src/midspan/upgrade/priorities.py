"""From an order to priorities in the gallery, page by page; and what an order needs to know."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from midspan import progress
from midspan.bridges import Ridge
from midspan.bridges.base import unit
from midspan.errors import ConfigError, DataError
from midspan.gallery import Gallery, Item
from midspan.gallery.routing import (
    FEWEST,
    SAMPLE,
    PairedSample,
    find_sample,
    store_sample,
)
from midspan.gallery.search_log import returned
from midspan.spaces import Embeddings, FloatArray, IntArray, Space
from midspan.upgrade.embed import Embed, embed_all
from midspan.upgrade.orders import CENTRES, LEARNT, Float64, Hints, Order, chance, order_named

PAGE = 5000
CENTRE_SAMPLE = 20_000  # items that class centres are computed from
CLUSTERS = 256  # at most, where there are no labels
CLASSES = 2048  # with more than that too few items of the sample are left for a centre: clusters
ROWS = 1000  # items compared with all centres at once
ROUNDS = 10  # of k-means; an order needs no better
BAGS = 4  # bridges that may disagree
EXACT_UP_TO = 1_000_000  # items; an index of so many stays in memory, where any order is cheap
# Two computations of one priority may differ by so much: of their range, or of the unit vectors
# that they come from, whose differences may be much smaller than the vectors are.
ROUNDING = 1e-6
LEVELS = 256  # of priority above that: a page is written to so many places of the index at most


def check_order(gallery: Gallery, order: str | None) -> None:
    """Refuse an order that does not exist, or that has nothing to go by; None: the default."""
    if order is not None:
        order_named(order)
    if order == "traffic" and not returned(gallery):
        raise ConfigError(
            "the order traffic requires a record of searches and there is none yet: midspan serve "
            "counts what queries return; use another `order`, or reorder later"
        )


def prioritise(
    gallery: Gallery,
    order: str,
    hints: Hints,
    *,
    space: str,
    floors: Float64 | None = None,
    show: bool = False,
) -> int:
    """Write the priority of each item that lacks a vector in the target; `space` is the old one.

    One pass, a page in memory at a time. May be repeated, with another order too. Returns how many
    items it looked at. floors: see `priority_floors`.
    """
    chosen, target = order_named(order), gallery.state.target
    if target is None:
        return 0
    looked = 0
    total = gallery.count().pending
    with progress.bar("order", total=total, unit="items", show=show) as done:
        for items in item_pages(gallery, missing=target):
            old = _with_columns(gallery.vectors([i.id for i in items], space=space), items)
            if len(old):
                exact = _by_blocks(chosen, old, hints)
                written = exact if floors is None else rounded_down(exact, floors)
                gallery.work.prioritise(old.ids.tolist(), written.tolist())
            looked += len(items)
            done(len(items))
    return looked


def priority_floors(
    gallery: Gallery, order: str, hints: Hints, *, space: str, levels: int = LEVELS
) -> Float64 | None:
    """(B,) rising values that the priorities of a large gallery are rounded down to; None: exact.

    With a value of its own for each item, every page of priorities falls on all of the engine's
    index, which is a sort of the whole gallery row by row. With few values the work list is so many
    queues, and a page appends to each. The newest come in the order of adding: exact at any size.
    """
    if order == "newest" or len(gallery) <= EXACT_UP_TO:
        return None
    if order == "random":
        return np.arange(levels) / levels
    sample = hints.sample
    if sample is None:
        sample = sample_items(gallery, space=space, seed=hints.seed)
    if not len(sample):
        return None
    seen = _by_blocks(order_named(order), sample, hints)
    values: Float64 = np.unique(seen)
    if len(values) > levels:
        values = np.unique(np.quantile(seen, np.arange(levels) / levels, method="lower"))
    return values


def rounded_down(priorities: Float64, floors: Float64) -> Float64:
    """Of two items the higher never gets the lower level.

    An item that a floor was taken from stays on that level, although its priority is computed in
    another block, which rounds differently.
    """
    slack = ROUNDING * max(float(np.ptp(floors)), 1.0)
    places = np.searchsorted(floors, priorities + slack, side="right") - 1
    rounded: Float64 = floors[np.maximum(places, 0)]
    return rounded


def priorities_of(
    gallery: Gallery, order: str, hints: Hints | None, old: Embeddings
) -> Float64 | None:
    """(N,) the priorities that these items would get; None if there is nothing to put in order."""
    if hints is None:
        return None
    items = gallery.get_many(old.ids.tolist())
    return _by_blocks(order_named(order), _with_columns(old, items), hints)


def order_hints(
    gallery: Gallery,
    order: str,
    *,
    old: str,
    sample: Embeddings | None,
    seed: int,
) -> Hints | None:
    """What the order needs to know of this gallery; None if there is nothing to put in order.

    Orders that are learnt may be refused here; the others can always be written.
    """
    if order not in (*CENTRES, *LEARNT):
        return Hints(seed=seed, now=time.time())
    if order in LEARNT and sample is not None:
        known = gallery.vectors(sample.ids.tolist(), space=old)
    else:
        known = sample_items(gallery, space=old, seed=seed)
    if order in CENTRES and len(known) < 2:
        return None
    hints = hints_for(order, known, new=sample, seed=seed)
    counts = returned(gallery) if order == "traffic" else {}
    return dataclasses.replace(hints, sample=known, returned=counts)


def hints_for(
    order: str,
    old: Embeddings,
    *,
    new: Embeddings | None = None,
    seed: int = 0,
) -> Hints:
    """What this order needs, from a sample of old vectors and the new vectors of some items."""
    order_named(order)
    hints = Hints(seed=seed, now=time.time())
    if order in CENTRES:
        return dataclasses.replace(hints, centres=class_centres(old, seed=seed))
    if order not in LEARNT:
        return hints
    if new is None:
        raise ConfigError(
            f"the order {order} learns from items that have both vectors: give new vectors of "
            "a sample of items as `to`, or use another `order`"
        )
    mine, theirs = old.paired_with(new)
    rng = np.random.default_rng(seed)
    halves = [np.sort(rng.permutation(len(mine))[: -(-len(mine) // 2)]) for _ in range(BAGS)]
    bridges = tuple(Ridge().fit(mine[half], theirs[half]) for half in halves)
    return dataclasses.replace(hints, bridges=bridges)


def sample_items(
    gallery: Gallery, *, space: str, count: int = CENTRE_SAMPLE, seed: int = 0
) -> Embeddings:
    """About `count` items that have a vector in the space, chosen by their ids alone."""
    known = gallery.state.spaces[space]
    share = count / max(len(gallery), 1)
    parts: list[Embeddings] = []
    for page in item_pages(gallery, missing=None):
        items = [item for item in page if chance(item.id, seed) < share]
        if not items:
            continue
        part = _with_columns(gallery.vectors([i.id for i in items], space=space), items)
        if len(part):
            parts.append(part)
    if not parts:
        return Embeddings(np.array([], dtype=np.str_), np.empty((0, known.dim), np.float32), known)
    columns = set.intersection(*(set(part.columns) for part in parts))
    return Embeddings(
        ids=np.concatenate([part.ids for part in parts]),
        vectors=np.concatenate([part.vectors for part in parts]),
        space=known,
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in columns},
    )


def paired_sample(
    gallery: Gallery, space: str, sample: Embeddings
) -> tuple[Embeddings, Embeddings]:
    """Old and new vectors of the sample's items, with its labels or else those of the payload."""
    mine = gallery.vectors(sample.ids.tolist(), space=space)
    mine, theirs = mine.paired_with(sample)
    if theirs.labels is not None:
        return mine.with_columns({"labels": theirs.labels}), theirs
    items = gallery.get_many(mine.ids.tolist())
    if items and all("labels" in item.payload for item in items):
        labels = np.array([str(item.payload["labels"]) for item in items])
        return mine.with_columns({"labels": labels}), theirs.with_columns({"labels": labels})
    return mine, theirs


def class_centres(old: Embeddings, *, seed: int = 0) -> FloatArray:
    """(C, D) means of the unit vectors of each class, or of clusters."""
    rows = unit(old.vectors)
    if old.labels is not None:
        names, places = np.unique(old.labels.astype(np.str_), return_inverse=True)
        if 2 <= len(names) < min(len(old), CLASSES + 1):
            return _means(rows, places, np.zeros((len(names), rows.shape[1]), np.float32))
    rng = np.random.default_rng(seed)
    count = min(CLUSTERS, max(2, round(np.sqrt(len(rows) / 2))), len(rows))
    centres = rows[rng.permutation(len(rows))[:count]]
    for _ in range(ROUNDS):
        centres = _means(rows, np.argmax(rows @ unit(centres).T, axis=1), centres)
    return centres


def _means(rows: FloatArray, places: IntArray, before: FloatArray) -> FloatArray:
    """A class that lost all its items stays where it was."""
    totals = np.zeros(before.shape, dtype=np.float64)
    sizes = np.bincount(places, minlength=len(before))
    groups = np.split(np.argsort(places, kind="stable"), np.cumsum(sizes)[:-1])
    for total, group in zip(totals, groups, strict=True):
        total[:] = rows[group].sum(axis=0, dtype=np.float64)
    counts = sizes[:, None]
    means = np.where(counts > 0, totals / np.maximum(counts, 1), before)
    centres: FloatArray = means.astype(np.float32)
    return centres


def _by_blocks(order: Order, old: Embeddings, hints: Hints) -> Float64:
    """An order looks at each item alone, so that the memory it takes is that of a block."""
    starts = range(0, len(old), ROWS)
    parts = [order(old[start : start + ROWS], hints) for start in starts]
    return np.concatenate(parts) if parts else np.empty(0)


def item_pages(gallery: Gallery, *, missing: str | None) -> Iterator[Sequence[Item]]:
    after = ""
    while page := gallery.scan(missing=missing, after=after, limit=PAGE):
        after = page[-1].id
        yield page


def _with_columns(vectors: Embeddings, items: Sequence[Item]) -> Embeddings:
    """Columns that orders ask for: created, and labels as text."""
    by_id = {item.id: item for item in items}
    mine = [by_id[id] for id in vectors.ids.tolist()]
    columns = {
        "created": np.array([item.created for item in mine], dtype=np.float64),
    }
    if mine and all("labels" in item.payload for item in mine):
        columns["labels"] = np.array([str(item.payload["labels"]) for item in mine])
    return vectors.with_columns(columns)


# ---- the upgrade's sample: some items embedded once, kept with the gallery, used by every step ---
# Scores of the two spaces are standardised over it, plans take their evidence from it, and an
# upgrade that is started again after a rollback finds it.

FIRST = 4  # items that are embedded before the rest: can anything be?


def kept_sample(
    gallery: Gallery,
    *,
    old: Space,
    new: Space,
    given: Embeddings | None,
    embed: Embed | None,
    count: int = SAMPLE,
    seed: int = 0,
) -> tuple[str, PairedSample] | None:
    """(digest, sample): from the given vectors, from an earlier step, or embedded now.

    None where there is no source for one, or where the gallery has too few items.
    """
    if not count:
        return None
    items = len(gallery)
    if given is not None:
        rows = np.argsort([chance(id, seed) for id in given.ids.tolist()])
        theirs = given[rows[: count if count >= FEWEST else FEWEST]]
        sample = PairedSample.of(
            gallery.vectors(theirs.ids.tolist(), space=old.fingerprint), theirs
        )
    else:
        earlier = find_sample(gallery.blobs, old=old.fingerprint, new=new.fingerprint)
        if earlier is not None:
            valid = still_valid(gallery, earlier[1], old=old.fingerprint)
            if len(valid) == len(earlier[1]) and 2 * len(valid) >= min(count, items):
                return earlier
            if len(valid) >= FEWEST and 2 * len(valid) >= min(count, items):
                pair = {"old": old.fingerprint, "new": new.fingerprint}
                return store_sample(gallery.blobs, valid, **pair), valid
        if embed is None:
            return None
        theirs = embed_sample(gallery, embed, space=new, count=count, seed=seed)
        sample = PairedSample.of(
            gallery.vectors(theirs.ids.tolist(), space=old.fingerprint), theirs
        )
    if len(sample) < FEWEST:
        return None
    digest = store_sample(gallery.blobs, sample, old=old.fingerprint, new=new.fingerprint)
    return digest, sample


def still_valid(gallery: Gallery, sample: PairedSample, *, old: str) -> PairedSample:
    """Without items that were deleted since, or replaced: their old vector is another one."""
    known = gallery.vectors(sample.ids.tolist(), space=old)
    rows = {id: row for row, id in enumerate(known.ids.tolist())}
    valid = [
        place
        for place, id in enumerate(sample.ids.tolist())
        if id in rows
        and np.allclose(known.vectors[rows[id]], sample.old[place], rtol=1e-4, atol=1e-6)
    ]
    if len(valid) == len(sample):
        return sample
    return PairedSample(sample.ids[valid], sample.old[valid], sample.new[valid])


def embed_sample(
    gallery: Gallery, embed: Embed, *, space: Space, count: int, seed: int = 0
) -> Embeddings:
    """New vectors of about `count` items that are chosen by their ids alone.

    If none of the first few can be embedded, that is an error at once.
    """
    share = count / max(len(gallery), 1)
    items = [
        item
        for page in item_pages(gallery, missing=None)
        for item in page
        if chance(item.id, seed) < share
    ]
    first = embed_all(embed, items[:FIRST], space=space)
    if items and not len(first.vectors):
        id, why = next(iter({**first.failed, **first.hopeless}.items()))
        raise DataError(
            f"none of the first {len(items[:FIRST])} items can be embedded, {id!r}: {why}. An "
            "upgrade embeds every item: make the images readable from here, or give new vectors"
        )
    if len(items) <= FIRST:
        return first.vectors
    rest = embed_all(embed, items[FIRST:], space=space).vectors
    return first.vectors.joined_with(rest) if len(rest) else first.vectors


def check_sample(
    mode: str, *, old: Space, new: Space, exists: bool, items: int, size: int = SAMPLE
) -> None:
    """Refuse what would merge scores that cannot be compared; size: of the sample asked for."""
    different = old.metric != new.metric and mode in ("map-query", "both")
    if exists or (items < FEWEST and not different):
        return
    if (mode == "both" or different) and not size:
        raise ConfigError(
            f"`sample_size` is 0, and mode {mode} merges scores in {old} and {new} over a sample "
            f"of items that have both vectors; leave it out, or give {FEWEST} or more"
        )
    if mode == "both" or different:
        raise ConfigError(
            f"mode {mode} merges scores in {old} and {new} over a sample of items that have both "
            f"vectors, and there is none; give new vectors of {FEWEST} items or more (`to` or "
            "`sample`), or an encoder"
        )
