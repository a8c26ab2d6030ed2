"""faiss behind a few verbs: inverted lists of 8-bit codes, whose candidates are compared again.

The lists only find candidates; scores come from the float32 vectors on the shelf, so that a code
that is a little behind costs recall but never makes a wrong score.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from midspan.gallery.index.clusters import assign
from midspan.gallery.index.shelf import BoolArray
from midspan.spaces import FloatArray, IntArray, Metric


class Ivf:
    def __init__(self, centres: FloatArray, *, metric: Metric, sample: FloatArray) -> None:
        import faiss

        self._faiss: Any = faiss  # its stubs know neither these settings nor NumPy
        self.centres, self.metric = centres, metric
        self.lists, dim = centres.shape
        self.probes = self.lists  # until it is calibrated
        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        self._quantiser = faiss.IndexFlat(dim, kind)
        self._quantiser.add(centres)
        self._index: Any = faiss.IndexIVFScalarQuantizer(
            self._quantiser, dim, self.lists, faiss.ScalarQuantizer.QT_8bit, kind
        )
        self._index.train(np.ascontiguousarray(sample))  # the ranges of the codes only
        self._plain: tuple[int, Any] = (0, None)  # probes, and faiss's settings for as many

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def nearest(self, vectors: FloatArray) -> IntArray:
        return assign(vectors, self.centres, metric=self.metric)

    def add(self, rows: IntArray, vectors: FloatArray, nearest: IntArray) -> None:
        swig = self._faiss.swig_ptr
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        rows, nearest = np.ascontiguousarray(rows), np.ascontiguousarray(nearest)
        self._index.add_core(len(rows), swig(vectors), swig(rows), swig(nearest))

    def remove(self, rows: IntArray) -> None:
        self._index.remove_ids(self._faiss.IDSelectorBatch(np.ascontiguousarray(rows)))

    def search(
        self, queries: FloatArray, k: int, *, probes: int, allowed: BoolArray | None
    ) -> tuple[FloatArray, IntArray]:
        """(Q, k) rough scores and rows, −1 where there are no more."""
        probes = min(probes, self.lists)
        if allowed is None:
            known, settings = self._plain
            if known != probes:  # making them takes longer than a small search
                settings = self._faiss.SearchParametersIVF(nprobe=probes)
                self._plain = probes, settings
        else:
            bits = np.packbits(allowed, bitorder="little")
            selector = self._faiss.IDSelectorBitmap(bits)
            settings = self._faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        scores = np.empty((len(queries), k), dtype=np.float32)
        rows = np.empty((len(queries), k), dtype=np.int64)
        # `search` itself is swapped by faiss.contrib.torch_utils, which pytorch-metric-learning
        # loads, for one that takes no params. This is what both of them call in the end.
        swig = self._faiss.swig_ptr
        self._index.search_c(len(queries), swig(queries), k, swig(scores), swig(rows), settings)
        return scores, rows
