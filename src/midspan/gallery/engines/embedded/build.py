"""Building a snapshot from the file and the snapshot before it; searches and writes continue.

FLAT_UP_TO: with so many numbers or fewer (50,000 vectors of 128 dimensions) a search that compares
every vector takes 1.5 ms of one core, and is exact; an index took 0.1 to 0.7 ms. Codes of any size
begin above it too. A space that is searched together with one that has an index (the new one in an
upgrade) gets its own at an eighth of that: a mixed gallery shall be as fast as a plain one.
"""

from __future__ import annotations

import contextlib
import ctypes
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from midspan.gallery.catalogue.sqlite import Sqlite
from midspan.gallery.engines.base import prepare
from midspan.gallery.engines.embedded import tables
from midspan.gallery.engines.embedded.ivf import CODES, NEIGHBOURS, Ivf, k_means
from midspan.gallery.engines.embedded.replica import raw_reading
from midspan.gallery.engines.embedded.search import TopK, scan
from midspan.gallery.engines.embedded.snapshot import IndexSnapshot, SnapshotWriter
from midspan.gallery.engines.embedded.tables import EngineState, SnapshotRecord
from midspan.spaces import FloatArray, IntArray, Metric, Space

FLAT_UP_TO = 6_400_000
SHARED_FLAT = 8  # times less for a space next to one that has an index
TAIL = 0.2  # share of the vectors that may be outside of the snapshot
DEAD = 0.3  # share of the snapshot that may be dead
PER_LIST = 32  # vectors that a centre is learnt from
ROUNDS = 8
RELEARN = 0.3  # share of vectors written since, that makes new centres necessary
JUDGE = 1200  # vectors of another space that make it worth a calibration
STEP = 16384  # vectors handled at once

Check = Callable[[], None]  # raises if the gallery was closed


def reason_to_build(
    connection: sqlite3.Connection, state: EngineState, number: int, *, flat_up_to: int
) -> str | None:
    """Why this space needs another snapshot; None if it needs none."""
    record = state.spaces[number].snapshot
    count = tables.count(connection, number)
    large = is_large(state, number, count, flat_up_to=flat_up_to)
    if record is None:
        return "large" if large else None
    tail = tables.count(connection, number, after=record.sequence)
    dead = record.rows - (count - tail)
    if dead > DEAD * record.rows:
        return "dead rows"
    if not large:
        return None
    if tail > TAIL * count:
        return "unindexed rows"
    return "codes" if record.quantise != state.quantise else None


def is_large(state: EngineState, number: int, count: int, *, flat_up_to: int) -> bool:
    """So many vectors that comparing each of them takes longer than an index."""
    space = state.spaces[number].space
    others = (state.spaces[other].snapshot for other in _comparable(state, number, space))
    if any(record is not None for record in others):
        flat_up_to //= SHARED_FLAT
    return count * space.dim > flat_up_to


def unjudged(connection: sqlite3.Connection, state: EngineState, number: int) -> list[int]:
    """Comparable spaces whose queries the snapshot should be calibrated with, and is not."""
    space, record = state.spaces[number]
    if record is None:
        return []
    others = _comparable(state, number, space)
    return [
        other
        for other in others
        if other not in record.judged and tables.count(connection, other) >= JUDGE
    ]


def _comparable(state: EngineState, number: int, space: Space) -> list[int]:
    return [
        other
        for other, registered in state.spaces.items()
        if other != number and space.comparable_with(registered.space)
    ]


def build_snapshot(
    database: Sqlite, folder: Path, number: int, former: IndexSnapshot | None, *, check: Check
) -> SnapshotRecord | None:
    """Write the files; None if the space has no vectors."""
    with raw_reading(database) as connection:
        state = tables.read_state(connection)
        space = state.spaces[number].space
        rows = tables.all_rows(connection, number)
        if not len(rows):
            return None
        writer = SnapshotWriter(folder, number, rows, space.dim)
        try:
            written = _copy_vectors(connection, number, space, writer, former, check=check)
        except BaseException:
            writer.discard()
            raise
    try:
        learnt = written
        if former is not None:
            learnt += former.record.learnt
        if (
            former is None
            or former.record.quantise != state.quantise
            or learnt > RELEARN * len(rows)
        ):
            ivf, learnt = _learn(writer.vectors, space, state, number, check=check), 0
        else:
            ivf = _merge(writer, former, check=check)
        result = judge(database, number, state, ivf, rows=writer.rows, vectors=writer.vectors)
        check()
        writer.finish(ivf)
    except BaseException:
        writer.discard()
        raise
    finally:
        give_back_memory()
    return SnapshotRecord(
        token=writer.token,
        rows=len(rows),
        sequence=state.sequence,
        learnt=learnt,
        quantise=state.quantise,
        probes=result.probes,
        oversampling=result.oversampling,
        judged=result.judged,
        recall=result.recall,
    )


def _copy_vectors(
    connection: sqlite3.Connection,
    number: int,
    space: Space,
    writer: SnapshotWriter,
    former: IndexSnapshot | None,
    *,
    check: Check,
) -> int:
    """All vectors to their places; returns how many the former snapshot did not have."""
    since = -1
    if former is not None:
        since = former.record.sequence
        for start in range(0, len(former.rows), STEP):
            check()
            part = slice(start, start + STEP)
            places = find(writer.rows, former.rows[part])
            there = places >= 0
            writer.vectors[places[there]] = former.vectors[part][there]
    written = 0
    for rows, vectors in tables.vectors_after(connection, number, since, dim=space.dim):
        check()
        writer.vectors[np.searchsorted(writer.rows, rows)] = prepare(vectors, metric=space.metric)
        written += len(rows)
    return written


def find(known: IntArray, rows: IntArray) -> IntArray:
    """Places of the rows in a sorted array, −1 where there is none."""
    if not len(known):
        return np.full(len(rows), -1)
    at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where(known[at] == rows, at, -1)


def _learn(
    vectors: FloatArray, space: Space, state: EngineState, number: int, *, check: Check
) -> Ivf:
    rng = np.random.default_rng(len(vectors))
    lists = int(2 * np.sqrt(len(vectors)))
    spare = _spare(len(vectors))
    shuffled = rng.permutation(len(vectors))
    if len(spare) < len(vectors):
        shuffled = shuffled[~np.isin(shuffled, spare)]
    chosen = np.sort(shuffled[: PER_LIST * lists])
    lists = min(lists, len(chosen))
    sample = vectors[chosen]
    centres = k_means(sample, lists, metric=space.metric, rounds=ROUNDS, rng=rng, check=check)
    codes = CODES[state.quantise](space.dim)
    ivf = Ivf.learn(centres, metric=space.metric, sample=sample, codes=codes)
    for start in range(0, len(vectors), STEP):
        check()
        part = vectors[start : start + STEP]
        ivf.add(np.arange(start, start + len(part)), part)
    return ivf


def _merge(writer: SnapshotWriter, former: IndexSnapshot, *, check: Check) -> Ivf:
    """The former lists without what is gone, and with what came since."""
    ivf = former.blank.empty()
    places = find(writer.rows, former.rows)
    there = np.flatnonzero(places >= 0)
    same = np.empty(len(there), dtype=bool)
    for start in range(0, len(there), STEP):  # a row that was written again has another vector
        check()
        part = there[start : start + STEP]
        equal = former.vectors[part] == writer.vectors[places[part]]
        same[start : start + STEP] = equal.all(axis=1)
    moved = np.full(len(former.rows), -1)
    moved[there[same]] = places[there[same]]
    former.ivf.copy_to(ivf, moved)
    fresh = np.ones(len(writer.rows), dtype=bool)
    fresh[places[there[same]]] = False
    left = np.flatnonzero(fresh)
    for start in range(0, len(left), STEP):
        check()
        part = left[start : start + STEP]
        ivf.add(part, writer.vectors[part])
    return ivf


def judge(
    database: Sqlite,
    number: int,
    state: EngineState,
    ivf: Ivf,
    *,
    rows: IntArray,
    vectors: FloatArray,
) -> Calibration:
    """With queries of this space, and of each comparable one that has enough vectors."""
    space = state.spaces[number].space
    own = _spare(len(vectors))
    queries = [Queries(number, vectors[own], own)]
    rng = np.random.default_rng(len(vectors))
    for other in _comparable(state, number, space):
        with raw_reading(database) as connection:
            now = tables.read_state(connection)
            if other not in now.spaces or tables.count(connection, other) < JUDGE:
                continue
            places = rng.random(SAMPLE, dtype=np.float32)
            theirs, sample = tables.sample(connection, other, places, dim=space.dim)
        prepared = prepare(sample, metric=space.metric)
        queries.append(Queries(other, prepared, find(rows, theirs)))
    return calibrate(ivf, vectors, queries, metric=space.metric)


def _spare(count: int) -> IntArray:
    """Places that centres are not learnt from: SAMPLE of them, or a quarter of a few."""
    rng = np.random.default_rng(count + 1)
    size = min(SAMPLE, max(1, count // 4))
    return np.sort(rng.choice(count, size, replace=False)).astype(np.int64)


def give_back_memory() -> None:
    """glibc keeps what a build has freed: a sixth of all for 100,000 vectors. Takes 1 ms."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


# ---- calibration: lists to look into, and candidates to compare again, for the promised recall ---
# RECALL: both are the smallest that find this share of the true ten nearest neighbours of a sample
# of stored vectors, which the centres were not learnt from. It is set above the 0.97 that we
# promise, because a sample can be lucky. It holds for the queries of each space alone that is
# comparable with this one: those of a new encoder may need more lists than the old ones. What has
# the same score as the tenth is as good as the tenth.

RECALL = 0.98
LISTED = 0.99  # share of the neighbours in the lists looked into: what codes lose comes on top
SAMPLE = 300  # vectors of each space that play the query
FEWEST = 8  # lists to look into, however well the sample does: they cost little
# Candidates for each neighbour. The first is for 8-bit codes, which rank nearly as the vectors do
# (12 for 10 gave all of the recall that 36 gave, on 100,000 vectors). 1 bit took 9 to 18 there. The
# last ones are for vectors so far from what the centres were learnt from that bits say nothing.
OVERSAMPLING = (1.5, 3.0, 4.5, 6.0, 9.0, 12.0, 18.0, 24.0, 36.0, 48.0, 96.0, 192.0, 384.0, 768.0)
TOGETHER = 2**14  # candidates that are fetched at once
NO_SCORE = 1e30  # above all: for a query that has no neighbours
SAME = 1e-6  # of a score, that two ways of adding up may differ by


class Queries(NamedTuple):
    """Stored vectors of some space that play the query."""

    space: int  # number
    vectors: FloatArray  # (n, D), prepared
    own: IntArray  # (n,) the place of the same item in the index, −1 if it has none: left out


class Calibration(NamedTuple):
    probes: int
    oversampling: float
    recall: float  # that was measured with them, for the space where it is least
    judged: tuple[int, ...]


class _Sample(NamedTuple):
    groups: IntArray  # (n,) space of each query
    queries: FloatArray  # (n, D)
    own: IntArray  # (n,)
    near: IntArray  # (n, NEIGHBOURS) places of the true neighbours, −1 where there are no more
    least: FloatArray  # (n,) score of the last of them
    expected: IntArray  # (n,) how many there are


def calibrate(
    ivf: Ivf, vectors: FloatArray, queries: list[Queries], *, metric: Metric
) -> Calibration:
    """By the neighbours of these queries among the (N, D) vectors that the index has."""
    sample = _neighbours(vectors, queries, metric=metric)
    enough = max(FEWEST, _lists_for(LISTED, ivf, vectors, sample, metric=metric))
    for oversampling in OVERSAMPLING:
        count = min(int(oversampling * NEIGHBOURS) + 1, len(ivf))  # itself is found too
        if (
            count == len(ivf)
            or _recall(ivf, vectors, sample, probes=enough, count=count, metric=metric) >= RECALL
        ):
            break
    low = high = min(FEWEST, ivf.lists)
    reached = _recall(ivf, vectors, sample, probes=high, count=count, metric=metric)
    while high < ivf.lists and reached < RECALL:
        low, high = high, min(2 * high, ivf.lists)
        reached = _recall(ivf, vectors, sample, probes=high, count=count, metric=metric)
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        there = _recall(ivf, vectors, sample, probes=middle, count=count, metric=metric)
        if there >= RECALL:
            high, reached = middle, there
        else:
            low = middle
    judged = tuple(sorted(one.space for one in queries))
    return Calibration(high, oversampling, reached, judged)


def _recall(
    ivf: Ivf, vectors: FloatArray, sample: _Sample, *, probes: int, count: int, metric: Metric
) -> float:
    """Share of the neighbours, or of vectors as near, among so many candidates of so many lists;
    that of the space where it is least."""
    good = np.empty(len(sample.queries))
    step = max(1, TOGETHER // count)
    for start in range(0, len(good), step):
        part = slice(start, start + step)
        queries = sample.queries[part]
        _, places = ivf.search(queries, count, probes=probes)
        counts = (places >= 0) & (places != sample.own[part, None])
        scores = _rough(queries[:, None, :], vectors[np.maximum(places, 0)], metric=metric)
        least = sample.least[part, None]
        good_ones = scores >= least - SAME * np.maximum(1, np.abs(least))
        good_ones |= (places[:, :, None] == sample.near[part, None, :]).any(axis=2)
        good[part] = (counts & good_ones).sum(axis=1)
    shares = np.minimum(good, sample.expected) / np.maximum(1, sample.expected)
    return min(float(shares[sample.groups == group].mean()) for group in np.unique(sample.groups))


def _neighbours(vectors: FloatArray, queries: list[Queries], *, metric: Metric) -> _Sample:
    every = np.concatenate([one.vectors for one in queries])
    own = np.concatenate([one.own for one in queries])
    groups = np.concatenate([np.full(len(one.own), one.space) for one in queries])
    best = TopK(len(every), NEIGHBOURS + 1)
    scan(best, every, [(np.arange(len(vectors)), vectors, None)], metric=metric)
    scores, places = best.sorted()
    itself = places == own[:, None]
    itself &= places >= 0
    itself[~itself.any(axis=1), -1] = True  # not there, or so many equal ones
    scores = scores[~itself].reshape(-1, NEIGHBOURS)
    near = places[~itself].reshape(-1, NEIGHBOURS)
    expected = (near >= 0).sum(axis=1)
    last = scores[np.arange(len(every)), np.maximum(expected, 1) - 1]
    least = np.where(expected > 0, last, NO_SCORE).astype(np.float32)
    return _Sample(groups, every, own, near, least, expected)


def _lists_for(
    share: float, ivf: Ivf, vectors: FloatArray, sample: _Sample, *, metric: Metric
) -> int:
    """Lists to look into until they hold this share of the neighbours, for queries of any space."""
    queries = ivf.codes.rotate(sample.queries)
    centres = _rough(queries[:, None, :], ivf.centres[None], metric=metric)  # (n, C)
    near = vectors[np.maximum(sample.near, 0).ravel()]
    lists = ivf.place(near)[0].reshape(sample.near.shape)
    theirs = np.take_along_axis(centres, lists, axis=1)  # (n, NEIGHBOURS)
    before = np.stack([(centres > column[:, None]).sum(axis=1) for column in theirs.T], axis=1)
    most = 1
    for group in np.unique(sample.groups):
        mine = sample.groups == group
        places = np.sort(before[mine][sample.near[mine] >= 0])
        if len(places):
            most = max(most, int(places[int(np.ceil(share * len(places))) - 1]) + 1)
    return most


def _rough(queries: FloatArray, vectors: FloatArray, *, metric: Metric) -> FloatArray:
    """(n, m) scores of (n, 1, D) with (n or 1, m, D), in the units of `scan`."""
    scores: FloatArray = np.matmul(queries, vectors.swapaxes(-1, -2))[:, 0]
    if metric == "l2":
        scores = scores - 0.5 * np.einsum("nmd,nmd->nm", vectors, vectors)
    return scores
