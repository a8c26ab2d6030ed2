"""faiss behind a few verbs: inverted lists of small codes, whose candidates are compared again.

The lists only find candidates; scores come from the float32 vectors on the shelf, so that a code
that is a little behind costs recall but never makes a wrong score.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from midspan.gallery.index.clusters import assign
from midspan.gallery.index.codes import Codes
from midspan.gallery.index.shelf import BoolArray
from midspan.spaces import FloatArray, IntArray, Metric

NEIGHBOURS = 10  # that the index is calibrated for
SPARE = 8  # candidates for rows that were removed, and for equal scores


class Ivf:
    def __init__(
        self, centres: FloatArray, *, metric: Metric, sample: FloatArray, codes: Codes
    ) -> None:
        import faiss

        self._faiss: Any = faiss  # its stubs know neither these settings nor NumPy
        self.centres, self.metric, self.codes = centres, metric, codes
        self.lists, dim = centres.shape
        self.probes = self.lists  # until it is calibrated
        self.oversampling = 1.5  # candidates for each neighbour, until it is calibrated
        self.judged: frozenset[int] = frozenset()  # spaces whose queries it was calibrated with
        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        self._quantiser = faiss.IndexFlat(dim, kind)
        self._quantiser.add(np.ascontiguousarray(codes.turn(centres)))
        self._index: Any = codes.index(faiss, self._quantiser, dim=dim, lists=self.lists, kind=kind)
        self._index.train(np.ascontiguousarray(codes.turn(sample)))  # the ranges of the codes only
        self._plain: tuple[int, Any] = (0, None)  # probes, and faiss's settings for as many

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def row_bytes(self) -> int:
        """Of a listed row: its code and its number."""
        return int(self._index.code_size) + 8

    def candidates(self, k: int) -> int:
        """How many to ask for, so that the true k best are among them."""
        wanted = int(self.oversampling * max(k, NEIGHBOURS)) + SPARE
        return min(wanted, max(k, int(self._index.ntotal)))

    def nearest(self, vectors: FloatArray) -> IntArray:
        return assign(vectors, self.centres, metric=self.metric)

    def add(self, rows: IntArray, vectors: FloatArray, nearest: IntArray) -> None:
        swig = self._faiss.swig_ptr
        vectors = np.ascontiguousarray(self.codes.turn(vectors), dtype=np.float32)
        rows, nearest = np.ascontiguousarray(rows), np.ascontiguousarray(nearest)
        self._index.add_core(len(rows), swig(vectors), swig(rows), swig(nearest))

    def remove(self, rows: IntArray) -> None:
        self._index.remove_ids(self._faiss.IDSelectorBatch(np.ascontiguousarray(rows)))

    def search(
        self, queries: FloatArray, count: int, *, probes: int, allowed: BoolArray | None
    ) -> tuple[FloatArray, IntArray]:
        """(Q, count) rough scores and rows, −1 where there are no more."""
        probes = min(probes, self.lists)
        if allowed is None:
            known, settings = self._plain
            if known != probes:  # making them takes longer than a small search
                settings = self.codes.settings(self._faiss, probes=probes, selector=None)
                self._plain = probes, settings
        else:
            bits = np.packbits(allowed, bitorder="little")
            selector = self._faiss.IDSelectorBitmap(bits)
            settings = self.codes.settings(self._faiss, probes=probes, selector=selector)
        queries = np.ascontiguousarray(self.codes.turn(queries), dtype=np.float32)
        scores = np.empty((len(queries), count), dtype=np.float32)
        rows = np.empty((len(queries), count), dtype=np.int64)
        # `search` itself is swapped by faiss.contrib.torch_utils, which pytorch-metric-learning
        # loads, for one that takes no params. This is what both of them call in the end.
        swig = self._faiss.swig_ptr
        self._index.search_c(len(queries), swig(queries), count, swig(scores), swig(rows), settings)
        return scores, rows
