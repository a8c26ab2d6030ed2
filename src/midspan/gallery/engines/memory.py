"""`memory:`: vectors in a dict, every one of them compared. The exact reference of all engines."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from midspan.errors import GalleryError, StateChanged
from midspan.gallery.engines.base import (
    Candidates,
    IndexStatus,
    SearchRequest,
    pair_scores,
    prepare,
)
from midspan.gallery.filters import matches
from midspan.spaces import FloatArray, IntArray, Space

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from midspan.gallery.catalogue.catalogue import Catalogue
    from midspan.gallery.location import Location

BLOCK = 8192  # rows scored at once


class MemoryEngine:
    colocated = False
    recorded: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._spaces: dict[int, Space] = {}
        self._vectors: dict[int, dict[int, FloatArray]] = {}  # by space and row
        self._payloads: dict[int, Any] = {}
        self._lock = threading.RLock()

    @classmethod
    def open(cls, location: Location, catalogue: Catalogue) -> Self:
        raise GalleryError(f"{location.shown}: a gallery in memory cannot be opened again")

    @classmethod
    def create(cls, location: Location, catalogue: Catalogue) -> Self:
        return cls()

    def close(self) -> None:
        with self._lock:
            self._vectors.clear()
            self._payloads.clear()

    # ---- spaces

    def create_space(
        self, number: int, space: Space, *, connection: Connection | None = None
    ) -> None:
        with self._lock:
            self._spaces.setdefault(number, space)
            self._vectors.setdefault(number, {})

    def drop_space(self, number: int, *, connection: Connection | None = None) -> None:
        with self._lock:
            self._spaces.pop(number, None)
            self._vectors.pop(number, None)

    # ---- vectors

    def put(
        self,
        number: int,
        rows: IntArray,
        vectors: FloatArray,
        *,
        payloads: Sequence[str] | None = None,
        connection: Connection | None = None,
    ) -> None:
        with self._lock:
            own = self._of(number)
            own.update(zip(rows.tolist(), np.array(vectors, dtype=np.float32), strict=True))
            if payloads is not None:
                self._payloads.update(zip(rows.tolist(), map(json.loads, payloads), strict=True))

    def delete(self, rows: IntArray, *, connection: Connection | None = None) -> None:
        with self._lock:
            for row in rows.tolist():
                for own in self._vectors.values():
                    own.pop(row, None)
                self._payloads.pop(row, None)

    def supersede(self, number: int, rows: IntArray, *, by: int) -> None:
        """Seen at each search."""

    def set_payload(self, payloads: Mapping[int, str]) -> None:
        with self._lock:
            self._payloads.update({row: json.loads(text) for row, text in payloads.items()})

    def fetch(self, number: int, rows: IntArray) -> tuple[IntArray, FloatArray]:
        with self._lock:
            own = self._of(number)
            there = [row for row in rows.tolist() if row in own]
            matrix = np.array([own[row] for row in there], dtype=np.float32)
            return np.array(there, dtype=np.int64), matrix.reshape(-1, self._spaces[number].dim)

    def rows(self, number: int, *, after: int, limit: int) -> IntArray:
        with self._lock:
            rows = sorted(row for row in self._of(number) if row > after)[:limit]
        return np.array(rows, dtype=np.int64)

    def count(self, number: int) -> int:
        with self._lock:
            return len(self._of(number))

    def search(self, request: SearchRequest) -> list[Candidates]:
        with self._lock:
            rows, spaces, vectors = self._live(request)
        metric = self._spaces[request.among[0]].metric if vectors else "cosine"
        gallery = prepare(np.array(vectors, dtype=np.float32), metric=metric) if vectors else None
        results = []
        for query in request.vectors:
            if gallery is None:
                empty = np.empty(0, dtype=np.int64)
                results.append(Candidates(empty, empty, np.empty(0, dtype=np.float32), True))
                continue
            one = prepare(query[None], metric=metric)[0]
            scores = np.concatenate(
                [
                    pair_scores(one, gallery[start : start + BLOCK], metric=metric)
                    for start in range(0, len(gallery), BLOCK)
                ]
            )
            best = np.argsort(-scores, kind="stable")
            if len(best) > request.k:
                best = best[scores[best] >= scores[best[request.k - 1]]]
            results.append(
                Candidates(rows[best], spaces[best], scores[best], len(best) == len(rows))
            )
        return results

    def _live(self, request: SearchRequest) -> tuple[IntArray, IntArray, list[FloatArray]]:
        """Rows that take part, their spaces and vectors."""
        rows, spaces, vectors = [], [], []
        for place, number in enumerate(request.live):
            if number not in request.among:
                continue
            better = [self._of(other) for other in request.live[:place]]
            for row, vector in self._of(number).items():
                if any(row in others for others in better):
                    continue
                if request.filter is not None and not matches(
                    request.filter, self._payloads.get(row, {})
                ):
                    continue
                rows.append(row)
                spaces.append(number)
                vectors.append(vector)
        return np.array(rows, dtype=np.int64), np.array(spaces, dtype=np.int64), vectors

    def _of(self, number: int) -> dict[int, FloatArray]:
        if number not in self._vectors:
            raise StateChanged(f"the space {number} was dropped; read the state again")
        return self._vectors[number]

    # ---- index

    def needs_index(self, number: int) -> bool:
        return False

    def build_index(self, number: int) -> None:
        """Every search compares everything."""

    def index_status(self, number: int) -> IndexStatus:
        return IndexStatus(rows=self.count(number), kind="flat", state="none")

    def vacuum(self) -> None:
        """Python does."""
