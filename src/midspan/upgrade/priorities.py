"""From an order to priorities in the gallery, page by page; and what an order wants to know."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from midspan import progress
from midspan.bridges import Bridge, Confidence, Ridge
from midspan.bridges.base import unit
from midspan.errors import ConfigError
from midspan.gallery import Gallery, Item
from midspan.spaces import Embeddings, FloatArray, IntArray, Space, StrArray
from midspan.upgrade.buckets import BUCKETS, Buckets
from midspan.upgrade.embed import Embed, embed_all
from midspan.upgrade.orders import CENTRES, LEARNT, Float64, Hints, Order, chance, order_named

PAGE = 5000
SAMPLE = 20_000  # items that class centres are computed from
CLUSTERS = 256  # at most, where there are no labels
CLASSES = 2048  # with more than that too few items of the sample are left for a centre: clusters
ROWS = 1000  # items compared with all centres at once
ROUNDS = 10  # of k-means; an order needs no better
BAGS = 4  # bridges that may disagree
EXACT_UP_TO = 1_000_000  # items; an index of so many stays in memory, where any order is cheap


def prioritise(
    gallery: Gallery,
    order: str,
    hints: Hints,
    *,
    space: str,
    buckets: Buckets | None = None,
    show: bool = False,
) -> int:
    """Write the priority of each item that lacks a vector in the target; `space` is the old one.

    One pass, a page in memory at a time. May be repeated, with another order too. Returns how many
    items it looked at.
    """
    chosen, target = order_named(order), gallery.state.target
    if target is None:
        return 0
    looked = 0
    total = gallery.store.count().pending
    with progress.bar("order", total=total, unit="items", show=show) as done:
        for items in _pages(gallery, missing=target):
            old = _with_columns(gallery.store.vectors([i.id for i in items], space=space), items)
            if len(old):
                exact = _by_blocks(chosen, old, hints)
                written = exact if buckets is None else buckets(exact)
                gallery.store.prioritise(old.ids.tolist(), written.tolist())
            looked += len(items)
            done(len(items))
    return looked


def buckets_for(gallery: Gallery, order: str, hints: Hints, *, space: str) -> Buckets | None:
    """The buckets of a large gallery's order; None where exact priorities cost nothing.

    That is in galleries up to EXACT_UP_TO, and for the newest first: they come in the order of
    adding, so that the index grows at one end only.
    """
    if order == "newest" or len(gallery) <= EXACT_UP_TO:
        return None
    if order == "random":
        return Buckets.fit(np.arange(BUCKETS) / BUCKETS)
    sample = hints.sample
    if sample is None:
        sample = sample_items(gallery, space=space, seed=hints.seed)
    return Buckets.fit(_by_blocks(order_named(order), sample, hints)) if len(sample) else None


def priorities_of(
    gallery: Gallery, order: str, hints: Hints | None, old: Embeddings
) -> Float64 | None:
    """(N,) the priorities that these items would get; None if there is nothing to put in order."""
    if hints is None:
        return None
    items = gallery.store.get(old.ids.tolist())
    return _by_blocks(order_named(order), _with_columns(old, items), hints)


def order_hints(
    gallery: Gallery,
    order: str,
    *,
    old: str,
    sample: Embeddings | None,
    seed: int,
    by: Bridge | None,
) -> Hints | None:
    """What the order wants to know of this gallery; None if there is nothing to put in order.

    Orders that are learnt may be refused here; the others can always be written.
    """
    if order not in (*CENTRES, *LEARNT):
        return Hints(seed=seed, now=time.time())
    if order in LEARNT and sample is not None:
        known = gallery.store.vectors(sample.ids.tolist(), space=old)
    else:
        known = sample_items(gallery, space=old, seed=seed)
    if order in CENTRES and len(known) < 2:
        return None
    hints = hints_for(order, known, new=sample, bridge=by, seed=seed)
    return dataclasses.replace(hints, sample=known)


def hints_for(
    order: str,
    old: Embeddings,
    *,
    new: Embeddings | None = None,
    bridge: Bridge | None = None,
    seed: int = 0,
) -> Hints:
    """What this order needs, from a sample of old vectors and the new vectors of some items.

    bridge: old → new; without one ridge is fitted on the sample.
    """
    order_named(order)
    hints = Hints(seed=seed, now=time.time())
    if order in CENTRES:
        centres, labels = class_centres(old, seed=seed)
        return dataclasses.replace(hints, centres=centres, centre_labels=labels)
    if order not in LEARNT:
        return hints
    if new is None:
        raise ConfigError(
            f"the order {order} learns from items that have both vectors: give a sample of new "
            "vectors (--to NEW.npz), or use another order"
        )
    mine, theirs = old.paired_with(new)
    if order == "bridge_error":
        if bridge is None:
            bridge = Ridge().fit(mine, theirs)
        return dataclasses.replace(
            hints, confidence=Confidence(seed=seed).fit(bridge, mine, theirs)
        )
    rng = np.random.default_rng(seed)
    halves = [np.sort(rng.permutation(len(mine))[: -(-len(mine) // 2)]) for _ in range(BAGS)]
    bridges = tuple(Ridge().fit(mine[half], theirs[half]) for half in halves)
    return dataclasses.replace(hints, bridges=bridges)


def sample_items(gallery: Gallery, *, space: str, count: int = SAMPLE, seed: int = 0) -> Embeddings:
    """About `count` items that have a vector in the space, chosen by their ids alone."""
    known = gallery.state.spaces[space]
    share = count / max(len(gallery), 1)
    parts: list[Embeddings] = []
    for page in _pages(gallery, missing=None):
        items = [item for item in page if chance(item.id, seed) < share]
        if not items:
            continue
        part = _with_columns(gallery.store.vectors([i.id for i in items], space=space), items)
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


def embed_sample(
    gallery: Gallery, embed: Embed, *, space: Space, count: int, seed: int = 0
) -> Embeddings | None:
    """New vectors of about `count` items chosen by their ids alone, made now; None if none can be.

    The evidence of a plan and the mixing of scores are learnt from them.
    """
    share = count / max(len(gallery), 1)
    items = [
        item
        for page in _pages(gallery, missing=None)
        for item in page
        if chance(item.id, seed) < share
    ]
    made = embed_all(embed, items, space=space).vectors if items else None
    return made if made is not None and len(made) else None


def paired_sample(
    gallery: Gallery, space: str, sample: Embeddings
) -> tuple[Embeddings, Embeddings]:
    """Old and new vectors of the sample's items, with its labels or else those of the payload."""
    mine = gallery.store.vectors(sample.ids.tolist(), space=space)
    mine, theirs = mine.paired_with(sample)
    if theirs.labels is not None:
        return mine.with_columns({"labels": theirs.labels}), theirs
    items = gallery.store.get(mine.ids.tolist())
    if items and all("labels" in item.payload for item in items):
        labels = np.array([str(item.payload["labels"]) for item in items])
        return mine.with_columns({"labels": labels}), theirs.with_columns({"labels": labels})
    return mine, theirs


def class_centres(old: Embeddings, *, seed: int = 0) -> tuple[FloatArray, StrArray | None]:
    """(C, D) means of the unit vectors of each class, or of clusters; and the class of each."""
    rows = unit(old.vectors)
    if old.labels is not None:
        names, places = np.unique(old.labels.astype(np.str_), return_inverse=True)
        if 2 <= len(names) < min(len(old), CLASSES + 1):
            return _means(rows, places, np.zeros((len(names), rows.shape[1]), np.float32)), names
    rng = np.random.default_rng(seed)
    count = min(CLUSTERS, max(2, round(np.sqrt(len(rows) / 2))), len(rows))
    centres = rows[rng.permutation(len(rows))[:count]]
    for _ in range(ROUNDS):
        centres = _means(rows, np.argmax(rows @ unit(centres).T, axis=1), centres)
    return centres, None


def _means(rows: FloatArray, places: IntArray, before: FloatArray) -> FloatArray:
    """A class that lost all its items stays where it was."""
    totals = np.zeros(before.shape, dtype=np.float64)
    np.add.at(totals, places, rows)
    counts = np.bincount(places, minlength=len(before))[:, None]
    means = np.where(counts > 0, totals / np.maximum(counts, 1), before)
    found: FloatArray = means.astype(np.float32)
    return found


def _by_blocks(order: Order, old: Embeddings, hints: Hints) -> Float64:
    """An order looks at each item alone, so that the memory it takes is that of a block."""
    starts = range(0, len(old), ROWS)
    parts = [order(old[start : start + ROWS], hints) for start in starts]
    return np.concatenate(parts) if parts else np.empty(0)


def _pages(gallery: Gallery, *, missing: str | None) -> Iterator[Sequence[Item]]:
    after = ""
    while page := gallery.store.scan(filter=None, missing=missing, after=after, limit=PAGE):
        after = page[-1].id
        yield page


def _with_columns(vectors: Embeddings, items: Sequence[Item]) -> Embeddings:
    """Columns that orders ask for: created, seen (a number in the payload), labels as text."""
    by_id = {item.id: item for item in items}
    mine = [by_id[id] for id in vectors.ids.tolist()]
    columns = {
        "created": np.array([item.created for item in mine], dtype=np.float64),
        "seen": np.array([_number(item.payload.get("seen")) for item in mine], dtype=np.float64),
    }
    if mine and all("labels" in item.payload for item in mine):
        columns["labels"] = np.array([str(item.payload["labels"]) for item in mine])
    return vectors.with_columns(columns)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
