"""How many lists to look into, and how many candidates to compare again, for the promised recall.

RECALL: both are the smallest that find this share of the true ten nearest neighbours of a sample
of stored vectors, which the lists were not learnt from. It is set above the 0.97 that we promise,
because a sample can be lucky. In a mixed gallery it holds for each space alone: queries come from
one, and those of the new space may need more lists than the old ones. What has the same score as
the tenth is as good as the tenth. Rows that were written meanwhile, which the lists do not know
yet, are no neighbours: searches compare them one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from midspan.gallery.index.exact import Best, scan
from midspan.gallery.index.family import Family
from midspan.gallery.index.ivf import NEIGHBOURS, Ivf
from midspan.gallery.index.mirror import Mirror
from midspan.gallery.index.shelf import HOLE
from midspan.spaces import FloatArray, IntArray, Metric

RECALL = 0.98
LISTED = 0.99  # share of the neighbours in the lists looked into: what codes lose comes on top
SAMPLE = 300  # vectors of each space that play the query
ENOUGH = 30  # of them, for a space to be judged alone
FEWEST = 8  # lists to look into, however well the sample does: they cost little
# Candidates for each neighbour. The first is for 8-bit codes, which rank nearly as the vectors do
# (12 for 10 gave all of the recall that 36 gave, on 100,000 vectors). 1 bit took 9 to 18 there. The
# last ones are for vectors so far from what the centres were learnt from that bits say nothing.
OVERSAMPLING = (1.5, 3.0, 4.5, 6.0, 9.0, 12.0, 18.0, 24.0, 36.0, 48.0, 96.0, 192.0, 384.0, 768.0)
TOGETHER = 2**14  # candidates that are fetched at once
SAME = 1e-6  # of a score, that two ways of adding up may differ by


class Sample(NamedTuple):
    """Stored vectors that play the query, and what the best others score."""

    rows: IntArray  # (n,)
    spaces: IntArray  # (n,) numbers
    queries: FloatArray  # (n, D)
    near: IntArray  # (n, NEIGHBOURS) rows of the true neighbours, −1 where there are no more
    least: FloatArray  # (n,) score of the last of them
    wanted: IntArray  # (n,) how many there are


def judges(family: Family, shuffled: IntArray) -> IntArray:
    """Those of these rows that play the query: SAMPLE of each space, or a quarter if it has few."""
    spaces = family.shelf.spaces[shuffled]
    of_each = [shuffled[spaces == space] for space in np.unique(spaces)]
    return np.concatenate([rows[: min(SAMPLE, max(1, len(rows) // 4))] for rows in of_each])


def unjudged(family: Family) -> bool:
    """A space has enough vectors by now to be judged, and had not when the lists were chosen."""
    if family.ivf is None or len(family.members) < 2:
        return False
    counts = np.bincount(family.shelf.spaces[family.shelf.items != HOLE])
    return not family.ivf.judged.issuperset(np.flatnonzero(counts >= 4 * SAMPLE).tolist())


def calibrate(ivf: Ivf, mirror: Mirror, family: Family, rows: IntArray) -> None:
    """Set ivf.probes and ivf.oversampling by the neighbours of these rows, themselves left out."""
    sample = _neighbours(ivf, mirror, family, rows)
    enough = max(FEWEST, _lists_for(LISTED, ivf, _copy(mirror, family, sample.near), sample))
    spaces, counts = np.unique(sample.spaces, return_counts=True)
    ivf.judged = frozenset(spaces[counts >= ENOUGH].tolist())
    for oversampling in OVERSAMPLING:
        count = min(int(oversampling * NEIGHBOURS) + 1, len(ivf))  # itself is found too
        if (
            count == len(ivf)
            or recall(ivf, mirror, family, sample, probes=enough, count=count) >= RECALL
        ):
            break
    low = high = min(FEWEST, ivf.lists)
    while high < ivf.lists and (
        recall(ivf, mirror, family, sample, probes=high, count=count) < RECALL
    ):
        low, high = high, min(2 * high, ivf.lists)
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        reached = recall(ivf, mirror, family, sample, probes=middle, count=count) >= RECALL
        low, high = (low, middle) if reached else (middle, high)
    ivf.probes, ivf.oversampling = high, oversampling


def recall(
    ivf: Ivf, mirror: Mirror, family: Family, sample: Sample, *, probes: int, count: int
) -> float:
    """Share of the neighbours, or of rows as near, among so many candidates of so many lists;
    that of the space where it is least."""
    good = np.empty(len(sample.rows))
    step = max(1, TOGETHER // count)
    for start in range(0, len(sample.rows), step):
        part = slice(start, start + step)
        queries = sample.queries[part]
        _, found = ivf.search(queries, count, probes=probes, allowed=None)
        found.sort(axis=1)
        counts = (found >= 0) & (found != sample.rows[part, None])
        counts[:, 1:] &= found[:, 1:] != found[:, :-1]  # a row may stand in two lists
        vectors = _copy(mirror, family, np.maximum(found, 0))  # (n, count, D)
        scores = _rough(queries[:, None, :], vectors, metric=family.metric)
        with mirror.lock.shared:
            counts &= family.shelf.items[np.maximum(found, 0)] != HOLE
        least = sample.least[part, None]
        good_ones = scores >= least - SAME * np.maximum(1, np.abs(least))
        good_ones |= (found[:, :, None] == sample.near[part, None, :]).any(axis=2)
        good[part] = (counts & good_ones).sum(axis=1)
    shares = np.minimum(good, sample.wanted) / np.maximum(1, sample.wanted)
    return min(float(shares[group].mean()) for group in _groups(sample.spaces))


def _groups(spaces: IntArray) -> list[IntArray]:
    """Places of each space that has ENOUGH; of all together if none has."""
    each = [np.flatnonzero(spaces == space) for space in np.unique(spaces)]
    return [places for places in each if len(places) >= ENOUGH] or [np.arange(len(spaces))]


def _neighbours(ivf: Ivf, mirror: Mirror, family: Family, rows: IntArray) -> Sample:
    with mirror.lock.shared:
        spaces = family.shelf.spaces[rows].astype(np.int64)
    queries = _copy(mirror, family, rows)
    best = Best(len(rows), NEIGHBOURS + 1)
    for first, vectors in family.shelf.parts():
        with mirror.lock.shared:
            places = np.arange(first, first + len(vectors))
            counts = family.shelf.items[first : first + len(vectors)] != HOLE
            unlisted = family.unlisted(ivf) - first
            counts[unlisted[(unlisted >= 0) & (unlisted < len(vectors))]] = False
            scan(best, queries, [(places, vectors, counts)], metric=family.metric)
    scores, found = best.sorted()
    itself = found == rows[:, None]
    itself[~itself.any(axis=1), -1] = True  # so many equal ones that it is not among them
    scores = scores[~itself].reshape(-1, NEIGHBOURS)
    near = found[~itself].reshape(-1, NEIGHBOURS)
    wanted = (near >= 0).sum(axis=1)
    least = np.where(wanted > 0, scores[np.arange(len(rows)), np.maximum(wanted, 1) - 1], np.inf)
    return Sample(rows, spaces, queries, near, least.astype(np.float32), wanted)


def _lists_for(share: float, ivf: Ivf, neighbours: FloatArray, sample: Sample) -> int:
    """Lists to look into until they hold this share of the neighbours (n, NEIGHBOURS, D), for
    queries of any space."""
    centres = _rough(sample.queries[:, None, :], ivf.centres[None], metric=ivf.metric)  # (n, C)
    lists = ivf.nearest(neighbours.reshape(-1, neighbours.shape[-1])).reshape(sample.near.shape)
    theirs = np.take_along_axis(centres, lists, axis=1)  # (n, NEIGHBOURS)
    before = np.stack([(centres > column[:, None]).sum(axis=1) for column in theirs.T], axis=1)
    most = 1
    for group in _groups(sample.spaces):
        places = np.sort(before[group][sample.near[group] >= 0])
        if len(places):
            most = max(most, int(places[int(np.ceil(share * len(places))) - 1]) + 1)
    return most


def _copy(mirror: Mirror, family: Family, rows: IntArray) -> FloatArray:
    """(…, D) vectors of rows of any shape; −1 gives some row."""
    with mirror.lock.shared:
        vectors = family.shelf.take(np.maximum(rows, 0).ravel())
    return vectors.reshape(*rows.shape, family.dim)


def _rough(queries: FloatArray, vectors: FloatArray, *, metric: Metric) -> FloatArray:
    """(n, m) scores of (n, 1, D) with (n or 1, m, D), in the units of `scan`."""
    scores: FloatArray = np.matmul(queries, vectors.swapaxes(-1, -2))[:, 0]
    if metric == "l2":
        scores = scores - 0.5 * np.einsum("nmd,nmd->nm", vectors, vectors)
    return scores
