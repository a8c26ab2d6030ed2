"""From a query to hits: routing says which spaces answer, the engine finds rows, the catalogue says
what they are.

An engine in the catalogue's database returns what counts. One elsewhere may still hold rows of
aborted writes, payloads that have changed, or old vectors that are superseded: the catalogue's
word decides, and the engine is asked for more if too few are left. Where an upgrade searches two
spaces separately, their candidates are merged before the catalogue is asked what they are.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from midspan.errors import GalleryError, SpaceMismatch, StateChanged
from midspan.gallery import rules
from midspan.gallery.catalogue.catalogue import Catalogue, ItemText, StateSnapshot
from midspan.gallery.catalogue.items import parse, presence
from midspan.gallery.engines.base import Candidates, Engine, SearchRequest, pair_scores, prepare
from midspan.gallery.filters import Filter, matches
from midspan.gallery.records import Hit, Record, State
from midspan.gallery.routing import (
    Arm,
    Float64,
    PairedSample,
    Query,
    SearchPart,
    arm_of,
    load_bridge_blob,
    moments,
    parts,
    query_key,
    sample_scores,
)
from midspan.spaces import FloatArray, Space

if TYPE_CHECKING:
    from midspan.bridges import Bridge
    from midspan.gallery.maintenance import Maintenance
    from midspan.gallery.search_log import LatencyBeacon

MORE = 4  # times as many, if too few of what an engine found count
STATE_CHANGES = 10  # that a search lives through

_by_id, _by_rank = itemgetter(0), itemgetter(5)
_new_hit = tuple.__new__  # Hit(…) for less: a search makes ten, a batch of them a thousand


class _Plan(NamedTuple):
    """One part of a search: (Q, D) queries as it compares them, mapped if it maps them."""

    vectors: FloatArray
    live: tuple[int, ...]
    among: tuple[int, ...]
    scales: list[tuple[float, float]] | None  # mean and deviation of each query's scores


class _Ranked(NamedTuple):
    rank: float
    row: int
    space: int
    score: float


class Searcher:
    def __init__(
        self,
        catalogue: Catalogue,
        engine: Engine,
        *,
        maintenance: Maintenance,
        beacon: LatencyBeacon | None,
    ) -> None:
        self._catalogue, self._engine = catalogue, engine
        self._maintenance, self._beacon = maintenance, beacon
        self._bridges: dict[str, Bridge] = {}
        self._samples: dict[tuple[str, str], Float64] = {}  # prepared, by digest and space
        self.replica: Searcher | None = None  # which answers instead

    def search(
        self,
        queries: Sequence[Query],
        *,
        k: int,
        filter: Filter | None,
        exact: bool,
        threshold: float | None,
        arm: Arm | None = None,
        client: str | None = None,
    ) -> list[list[Hit]]:
        """Every search of every caller: by the state of the upgrade; again if that changes."""
        if self.replica is not None:
            with contextlib.suppress(SpaceMismatch):  # a space that it does not know yet
                return self.replica.search(
                    queries,
                    k=k,
                    filter=filter,
                    exact=exact,
                    threshold=threshold,
                    arm=arm,
                    client=client,
                )
        for _ in range(STATE_CHANGES):
            snapshot = self._catalogue.snapshot()
            try:
                results: list[list[Hit]] = [[] for _ in range(len(queries[0].vectors))]
                for way, rows in _arms(snapshot.state, queries, arm, client).items():
                    some = queries
                    if len(rows) < len(results):
                        some = [Query(one.space, one.vectors[rows]) for one in queries]
                    hits = self.search_parts(
                        snapshot,
                        self._routed(snapshot.state, some, way),
                        k=k,
                        filter=filter,
                        exact=exact,
                        threshold=threshold,
                    )
                    for row, of_query in zip(rows, hits, strict=True):
                        results[row] = of_query
            except (GalleryError, SpaceMismatch):
                if self._catalogue.snapshot().state.version == snapshot.state.version:
                    raise
                continue  # the upgrade began or ended concurrently
            return results
        raise StateChanged(
            f"{self._catalogue.shown}: the state changed {STATE_CHANGES} times; search again"
        )

    def _routed(
        self, state: State, queries: Sequence[Query], arm: Arm
    ) -> list[tuple[SearchPart, FloatArray]]:
        """The parts of a search, each with the queries as it compares them."""
        spaces = [one.space for one in queries]
        return [
            (part, part.compared(queries))
            for part in parts(state, spaces, bridge_of=self.bridge_of, arm=arm)
        ]

    def search_parts(
        self,
        snapshot: StateSnapshot,
        parts: Sequence[tuple[SearchPart, FloatArray]],
        *,
        k: int,
        filter: Filter | None = None,
        exact: bool = False,
        threshold: float | None = None,
    ) -> list[list[Hit]]:
        """The k best of all parts for each query; a later part knows an item better."""
        self._maintenance.searched()
        started = time.perf_counter()
        plans = [self._plan(snapshot, part, vectors) for part, vectors in parts]
        results: list[list[Hit]] = [[] for _ in parts[0][1]]
        todo, wider = list(range(len(results))), k
        while todo:
            candidates = [
                self._candidates(snapshot, plan, todo, wider, filter=filter, exact=exact)
                for plan in plans
            ]
            ranked = [
                _ranked([one[place] for one in candidates], plans, query, threshold=threshold)
                for place, query in enumerate(todo)
            ]
            if self._engine.colocated and len(plans) > 1:  # nothing of it will be left out
                ranked = [(_best(entries, k), cut) for entries, cut in ranked]
            known, texts = self._texts(ranked, filter)
            again = []
            for query, (entries, cut) in zip(todo, ranked, strict=True):
                hits = self._hits(entries, texts, snapshot.spaces, k)
                results[query] = hits
                # Once more too if a row that the engine found is no item: one that was replaced
                # meanwhile has another row, which is not among the candidates.
                gone = wider == k and len(hits) < k and any(one.row not in known for one in entries)
                if gone or (hits[k - 1].rank_score < cut if len(hits) >= k else cut > -np.inf):
                    again.append(query)
            todo, wider = again, wider * MORE
        if self._beacon is not None and snapshot.state.target is not None:
            self._beacon.note(time.perf_counter() - started)  # a backfill may be in the way
        return results

    def _plan(self, snapshot: StateSnapshot, part: SearchPart, vectors: FloatArray) -> _Plan:
        rules.check_query(snapshot.state, vectors, part.among)
        live = tuple([snapshot.numbers[name] for name in part.live])
        among = live
        if part.among != part.live:
            among = tuple([snapshot.numbers[name] for name in part.among])
        scales = None
        if part.metric_of is not None and len(vectors):
            mean, deviation = self._moments(snapshot.state, vectors, part.metric_of)
            scales = list(zip(mean.tolist(), deviation.tolist(), strict=True))
        return _Plan(vectors, live, among, scales)

    def _moments(self, state: State, queries: FloatArray, space: str) -> tuple[Float64, Float64]:
        """Of these queries' scores with the sample's vectors in this space."""
        record, metric = Record.of(state), state.spaces[space].metric
        assert record is not None
        assert record.sample is not None
        key = (record.sample, space)
        if key not in self._samples:
            sample = PairedSample.from_bytes(self._catalogue.blobs.get(record.sample))
            side = sample.new if space == record.new else sample.old
            if space == record.mapped:
                side = self.bridge_of(record).apply(side)
            self._samples[key] = prepare(side, metric=metric).astype(np.float64)
        return moments(sample_scores(queries, self._samples[key], metric=metric))

    def bridge_of(self, record: Record) -> Bridge:
        """The open upgrade's bridge, from the catalogue; kept in memory."""
        assert record.digest is not None
        if record.digest not in self._bridges:
            self._bridges[record.digest] = load_bridge_blob(self._catalogue.blobs, record)
        return self._bridges[record.digest]

    def _candidates(
        self,
        snapshot: StateSnapshot,
        plan: _Plan,
        queries: list[int],
        k: int,
        *,
        filter: Filter | None,
        exact: bool,
    ) -> list[Candidates]:
        vectors = plan.vectors if len(queries) == len(plan.vectors) else plan.vectors[queries]
        request = SearchRequest(vectors, k, plan.live, plan.among, filter, exact)
        candidates = self._engine.search(request)
        if self._engine.colocated or len(request.live) == 1:
            return candidates
        rows = list({row for one in candidates for row in one.rows.tolist()})
        with self._catalogue.reading() as connection:
            stored = presence(connection, self._catalogue.tables, request.live, rows)
        return [
            self._current(snapshot, request, one=one, query=query, stored=stored)
            for one, query in zip(candidates, request.vectors, strict=True)
        ]

    def _current(
        self,
        snapshot: StateSnapshot,
        request: SearchRequest,
        *,
        one: Candidates,
        query: FloatArray,
        stored: set[tuple[int, int]],
    ) -> Candidates:
        """Of an engine elsewhere, without what is superseded by the catalogue's word; rescored
        where the better space is searched too."""
        rows, spaces, scores = one.rows.tolist(), one.spaces.tolist(), one.scores.tolist()
        kept, better = list[tuple[int, int, float]](), dict[int, list[int]]()
        for row, space, score in zip(rows, spaces, scores, strict=True):
            before = request.live[: request.live.index(space)]
            best = next((other for other in before if (other, row) in stored), None)
            if best is None:
                kept.append((row, space, score))
            elif best in request.among:  # put there since, or the engine was not told yet
                better.setdefault(best, []).append(row)
        if len(kept) == len(rows):
            return one
        cut = -np.inf if one.complete else scores[-1]  # beyond it the engine may know others
        for space, moved in better.items():
            there, vectors = self._engine.fetch(space, np.array(moved, dtype=np.int64))
            metric = snapshot.spaces[space].metric
            prepared = prepare(query[None], metric=metric)[0]
            now = pair_scores(prepared, prepare(vectors, metric=metric), metric=metric)
            pairs = zip(there.tolist(), now.tolist(), strict=True)
            kept += [(row, space, score) for row, score in pairs if score >= cut]
        kept.sort(key=lambda entry: -entry[2])
        return Candidates(
            rows=np.array([entry[0] for entry in kept], dtype=np.int64),
            spaces=np.array([entry[1] for entry in kept], dtype=np.int64),
            scores=np.array([entry[2] for entry in kept], dtype=np.float32),
            complete=one.complete,
        )

    def _texts(
        self, ranked: Sequence[tuple[list[_Ranked], float]], filter: Filter | None
    ) -> tuple[Collection[int], Mapping[int, ItemText]]:
        """(rows that are items, what those that pass show)."""
        rows = list(dict.fromkeys(entry.row for entries, _ in ranked for entry in entries))
        texts = self._catalogue.texts(rows) if rows else {}
        if filter is None or self._engine.colocated:
            return texts, texts
        passing = {row: text for row, text in texts.items() if matches(filter, parse(text.payload))}
        return texts, passing

    def _hits(
        self,
        entries: Sequence[_Ranked],
        texts: Mapping[int, ItemText],
        spaces: Mapping[int, Space],
        k: int,
    ) -> list[Hit]:
        """They come by falling rank; only equal ones still have to be put in order of their ids."""
        chosen, last, equal = list[tuple[_Ranked, ItemText]](), np.inf, False
        for entry in entries:
            if (text := texts.get(entry.row)) is None:
                continue
            if entry.rank != last and len(chosen) >= k:
                break
            equal |= entry.rank == last
            last = entry.rank
            chosen.append((entry, text))
        payloads = self._payloads([text.payload for _, text in chosen])
        hits = [
            _new_hit(Hit, (text.id, score, spaces[space], text.uri, payload, rank))
            for ((rank, _, space, score), text), payload in zip(chosen, payloads, strict=True)
        ]
        if equal:
            hits.sort(key=_by_id)
            hits.sort(key=_by_rank, reverse=True)  # which leaves equal ones as they are
        return hits if len(hits) <= k else hits[:k]

    def _payloads(self, stored: list[Any]) -> list[dict[str, Any]]:
        """Text is parsed as one list, which takes a third of the time of one by one."""
        if self._catalogue.dialect != "sqlite":
            return [parse(payload) for payload in stored]
        payloads: list[dict[str, Any]] = json.loads(f"[{','.join(stored)}]")
        return payloads


def _arms(
    state: State, queries: Sequence[Query], arm: Arm | None, client: str | None
) -> dict[Arm, list[int]]:
    """Which rows are answered which way. Queries in one space have chosen theirs already."""
    everyone = list(range(len(queries[0].vectors)))
    record = Record.of(state)
    if arm is not None or record is None or record.traffic >= 1 or len(queries) == 1:
        return {arm or "new": everyone}
    old = next((one for one in queries if one.space.fingerprint == record.old), queries[0])
    ways: dict[Arm, list[int]] = {}
    for row in everyone:
        key = query_key(old.vectors[row]) if client is None else client.encode()
        ways.setdefault(arm_of(key, record.traffic), []).append(row)
    return ways


def _ranked(
    candidates: Sequence[Candidates], plans: Sequence[_Plan], query: int, *, threshold: float | None
) -> tuple[list[_Ranked], float]:
    """(what the parts found, by falling rank; the highest rank that something unseen may have)."""
    entries, cut = list[_Ranked](), -np.inf
    for one, plan in zip(candidates, plans, strict=True):
        scores = one.scores.tolist()
        unseen = -np.inf  # the best score of a row that is not here
        if not one.complete:
            unseen = one.bound if one.bound is not None else scores[-1] if scores else np.inf
        if threshold is not None:
            scores = [score for score in scores if score >= threshold]
            unseen = unseen if unseen >= threshold else -np.inf
        ranks = scores
        if plan.scales is not None:
            mean, deviation = plan.scales[query]
            ranks = [(score - mean) / deviation for score in scores]
            unseen = (unseen - mean) / deviation
        cut = max(cut, unseen)
        # Shorter by the threshold, if there is one.
        entries += map(_Ranked, ranks, one.rows.tolist(), one.spaces.tolist(), scores)
    if len(candidates) > 1:
        entries = sorted({entry.row: entry for entry in entries}.values(), key=_falling)
    return entries, cut


def _falling(entry: _Ranked) -> float:
    return -entry.rank


def _best(entries: list[_Ranked], k: int) -> list[_Ranked]:
    """The k best and those that equal the last of them."""
    end = min(k, len(entries))
    while 0 < end < len(entries) and entries[end].rank == entries[end - 1].rank:
        end += 1
    return entries[:end]
