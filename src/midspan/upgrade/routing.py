"""How a query is answered in each mode and phase of an upgrade. No item appears twice.

A query of the new encoder:
- direct: one search over new and old vectors;
- map-query: mapped on the old part, as it is on the new part, merged;
- map-gallery: one search over new and mapped vectors.
A query of the old encoder (a client that has not changed yet) meets the old vectors; in direct mode
an item without one answers with its new vector.

With calibrated scores there are two searches in every mode: the part that is not refreshed yet has
its scores mapped before the merge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.bridges import ScoreMap
from midspan.errors import SpaceMismatch, StateChanged
from midspan.gallery import Filter, Gallery, Hit, State, parse_filter
from midspan.gallery.records import Query
from midspan.spaces import Embeddings, FloatArray, Space, check_comparable
from midspan.upgrade.mapping import bridge_of
from midspan.upgrade.record import Record

STATE_CHANGES = 10  # that a search lives through


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One search: by which preference, among which spaces, what happens to query and scores."""

    live: tuple[str, ...]
    among: tuple[str, ...]
    map_query: Callable[[FloatArray], FloatArray] | None = None
    scores: ScoreMap | None = None


def search(
    gallery: Gallery,
    query: Embeddings | npt.NDArray[Any],
    *,
    k: int = 10,
    space: Space | None = None,
    filter: Filter | Mapping[str, Any] | None = None,
    exact: bool = False,
    threshold: float | None = None,
) -> list[list[Hit]]:
    """As Gallery.search, in whatever state an upgrade is. Without one it is Gallery.search."""
    if isinstance(query, Embeddings):
        space, vectors = query.space, query.vectors
    elif space is None:
        raise SpaceMismatch("plain numbers want space=…, the space that they live in")
    else:
        vectors = np.atleast_2d(np.asarray(query, dtype=np.float32))
    chosen = parse_filter(filter) if isinstance(filter, Mapping) else filter
    asked = Query(
        vectors=vectors, k=k, live=(), among=(), filter=chosen, exact=exact, threshold=threshold
    )
    for _ in range(STATE_CHANGES):
        state = gallery.state
        try:
            found = [_search_part(gallery, asked, part, state) for part in parts(state, space)]
        except (StateChanged, SpaceMismatch):
            if gallery.state.version == state.version:
                raise
            continue  # the upgrade began or ended in this moment
        return _merged(found, k=k, threshold=threshold)
    raise StateChanged(f"{gallery.location}: the state changed {STATE_CHANGES} times; search again")


def parts(state: State, space: Space) -> list[Part]:
    """The searches that answer a query of this space; the part still to be refreshed first.

    That order matters: an item that gets its new vector in between is found by both searches,
    and never by none.
    """
    record = Record.of(state)
    if record is None or record.phase not in ("running", "paused"):
        return _plain(state, space, record)
    old, new = state.spaces[record.old], state.spaces[record.new]
    if space.same_as(old):
        if record.mode == "direct":
            return [Part(live=(record.old, record.new), among=(record.old, record.new))]
        return [Part(live=(record.old,), among=(record.old,))]
    if record.mode == "direct":
        for known in (new, old):
            check_comparable(space, known)
    elif not space.same_as(new):
        raise SpaceMismatch(
            f"query vectors are in {space}; this gallery is between {old} and {new} and answers "
            "queries of these two"
        )
    scores = record.score_map()
    fresh = Part(live=state.live, among=(record.new,))
    if record.mode == "map-query":
        bridge = bridge_of(record)
        mapped = Part(state.live, (record.old,), map_query=bridge.apply, scores=scores)
        return [mapped, fresh]
    stale = record.old if record.mapped is None else record.mapped
    if scores is None:
        return [Part(live=state.live, among=(record.new, stale))]
    return [Part(state.live, (stale,), scores=scores), fresh]


def _plain(state: State, space: Space, record: Record | None) -> list[Part]:
    """No upgrade, or one that still maps or already drops: the live vectors as they are."""
    if record is not None and record.phase == "mapping" and space.fingerprint == record.new:
        raise SpaceMismatch(
            f"query vectors are in {space}, and the gallery is still being mapped to it; until "
            f"that is done it answers queries of {state.spaces[record.old]}"
        )
    for fingerprint in state.live:
        check_comparable(space, state.spaces[fingerprint])
    return [Part(live=state.live, among=state.live)]


def _search_part(gallery: Gallery, asked: Query, part: Part, seen: State) -> list[list[Hit]]:
    found = gallery.store.search(
        Query(  # dataclasses.replace takes five times as long
            vectors=asked.vectors if part.map_query is None else part.map_query(asked.vectors),
            k=asked.k,
            live=part.live,
            among=part.among,
            filter=asked.filter,
            exact=asked.exact,
            threshold=asked.threshold if part.scores is None else None,
            seen=seen,
        )
    )
    if part.scores is None:
        return found
    return [_rescored(hits, part.scores) for hits in found]


def _rescored(hits: list[Hit], scores: ScoreMap) -> list[Hit]:
    mapped = scores(np.array([hit.score for hit in hits], dtype=np.float64))
    return [
        Hit(hit.id, float(score), hit.space, hit.uri, hit.payload)
        for hit, score in zip(hits, mapped, strict=True)
    ]


def _merged(found: list[list[list[Hit]]], *, k: int, threshold: float | None) -> list[list[Hit]]:
    """The best k of all parts for each query; a later part knows an item better."""
    if len(found) == 1:
        return found[0]
    results = []
    for of_query in zip(*found, strict=True):
        by_id = {hit.id: hit for hits in of_query for hit in hits}
        best = sorted(by_id.values(), key=lambda hit: (-hit.score, hit.id))
        results.append([hit for hit in best if threshold is None or hit.score >= threshold][:k])
    return results
