"""faiss behind a few verbs: inverted lists of small codes, whose candidates are compared again.

The lists only find candidates; scores come from the float32 vectors, so that a code costs recall
but never makes a wrong score. Lists are in memory, or mapped from the file of a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from midspan.gallery.rules import Quantise
from midspan.spaces import FloatArray, IntArray, Metric

NEIGHBOURS = 10  # that an index is calibrated for
SPARE = 8  # candidates for rows that were removed, and for equal scores

Bytes = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]


class Ivf:
    """An entry is a number (the place of a vector) and its code."""

    def __init__(self, index: Any, *, codes: Codes, metric: Metric) -> None:
        import faiss

        self._faiss: Any = faiss  # its stubs know neither these settings nor NumPy
        self._index, self.codes, self.metric = index, codes, metric
        quantiser: Any = faiss.downcast_index(index.quantizer)
        # (C, D), rotated. Not by `reconstruct_n`, which faiss.contrib.torch_utils swaps.
        self.centres: FloatArray = (
            faiss.vector_to_array(quantiser.codes).view(np.float32).reshape(index.nlist, index.d)
        )
        self.lists = int(index.nlist)
        self._invlists: Any = faiss.downcast_InvertedLists(index.invlists)
        self._plain: tuple[int, Any] = (0, None)  # probes, and faiss's settings for as many

    @classmethod
    def learn(cls, centres: FloatArray, *, metric: Metric, sample: FloatArray, codes: Codes) -> Ivf:
        """Empty lists around (C, D) centres; the sample gives the range of the codes."""
        import faiss

        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        lists, dim = centres.shape
        quantiser = faiss.IndexFlat(dim, kind)
        quantiser.add(np.ascontiguousarray(codes.rotate(centres)))
        index = codes.index(faiss, quantiser, dim=dim, lists=lists, kind=kind)
        index.own_fields = True
        quantiser.this.disown()  # type: ignore[attr-defined]
        index.train(np.ascontiguousarray(codes.rotate(sample)))
        return cls(index, codes=codes, metric=metric)

    @classmethod
    def mapped(cls, path: Path, *, codes: Codes, metric: Metric) -> Ivf:
        """The lists stay in the file: processes that map it share its pages."""
        import faiss

        index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        ivf = cls(index, codes=codes, metric=metric)
        ivf._invlists.prefetch_nthread = 0  # it would start threads for every search
        return ivf

    @classmethod
    def blank(cls, path: Path, *, codes: Codes, metric: Metric) -> Ivf:
        """Centres and code ranges of the file, with empty lists in memory."""
        import faiss

        index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        lists: Any = faiss.ArrayInvertedLists(index.nlist, index.code_size)
        index.replace_invlists(lists, True)
        lists.this.disown()
        index.ntotal = 0
        return cls(index, codes=codes, metric=metric)

    def empty(self) -> Ivf:
        """The same centres and code ranges, in memory; of an index that has no entries."""
        return Ivf(self._faiss.clone_index(self._index), codes=self.codes, metric=self.metric)

    def save(self, path: Path) -> None:
        self._faiss.write_index(self._index, str(path))

    def __len__(self) -> int:
        return int(self._index.ntotal)

    # ---- entries

    def add(self, places: IntArray, vectors: FloatArray) -> None:
        nearest, rotated = self.place(vectors)
        self.add_placed(places, rotated, nearest)

    def place(self, vectors: FloatArray) -> tuple[IntArray, FloatArray]:
        """(the list of each vector, the vectors as `add_placed` takes them)."""
        rotated = np.ascontiguousarray(self.codes.rotate(vectors), dtype=np.float32)
        return assign(rotated, self.centres, metric=self.metric), rotated

    def add_placed(self, places: IntArray, rotated: FloatArray, nearest: IntArray) -> None:
        swig = self._faiss.swig_ptr
        places = np.ascontiguousarray(places)
        self._index.add_core(len(places), swig(rotated), swig(places), swig(nearest))

    def copy_to(self, other: Ivf, places: IntArray) -> None:
        """Entries into lists around the same centres: places[p] is the new number of p, or −1."""
        swig, view = self._faiss.swig_ptr, self._faiss.rev_swig_ptr
        size, total = int(self._index.code_size), 0
        for number in range(self.lists):
            count = self._invlists.list_size(number)
            if not count:
                continue
            moved = places[view(self._invlists.get_ids(number), count)]
            keep = moved >= 0
            kept = int(keep.sum())
            if not kept:
                continue
            codes = view(self._invlists.get_codes(number), count * size).reshape(count, size)
            moved, codes = np.ascontiguousarray(moved[keep]), np.ascontiguousarray(codes[keep])
            other._invlists.add_entries(number, kept, swig(moved), swig(codes))
            total += kept
        other._index.ntotal += total

    # ---- search

    def candidates(self, k: int, *, oversampling: float) -> int:
        """How many to ask for, so that the true k best are among them."""
        return min(int(oversampling * max(k, NEIGHBOURS)) + SPARE, max(k, len(self)))

    def search(
        self, queries: FloatArray, count: int, *, probes: int, allowed: Bytes | None = None
    ) -> tuple[FloatArray, IntArray]:
        """(Q, count) rough scores and places, −1 where there are no more.

        `allowed` has a bit for each place.
        """
        probes = min(probes, self.lists)
        if allowed is None:
            known, settings = self._plain
            if known != probes:  # making them takes longer than a small search
                settings = self.codes.settings(self._faiss, probes=probes, selector=None)
                self._plain = probes, settings
        else:
            selector = self._faiss.IDSelectorBitmap(allowed)
            settings = self.codes.settings(self._faiss, probes=probes, selector=selector)
        queries = np.ascontiguousarray(self.codes.rotate(queries), dtype=np.float32)
        scores = np.empty((len(queries), count), dtype=np.float32)
        places = np.empty((len(queries), count), dtype=np.int64)
        # `search` itself is swapped by faiss.contrib.torch_utils, which pytorch-metric-learning
        # loads, for one that takes no params. This is what both of them call in the end.
        swig = self._faiss.swig_ptr
        self._index.search_c(
            len(queries), swig(queries), count, swig(scores), swig(places), settings
        )
        return scores, places


# ---- codes in the lists --------------------------------------------------------------------------

QUERY_BITS = 4  # of a query's coordinates against 1-bit codes; 8 found no more, the paper says 4


class Codes(Protocol):
    name: str

    def index(self, faiss: Any, quantiser: Any, *, dim: int, lists: int, kind: int) -> Any:
        """An empty faiss index."""
        ...

    def settings(self, faiss: Any, *, probes: int, selector: Any) -> Any:
        """Of one search; `selector` None: every entry counts."""
        ...

    def rotate(self, vectors: FloatArray) -> FloatArray:
        """Vectors, centres and queries as the index takes them; lengths and angles stay."""
        ...


class EightBits:
    """A byte per dimension, over the range that a sample has (faiss's scalar quantiser)."""

    name = "8 bits"

    def __init__(self, dim: int) -> None:
        del dim  # nothing here depends on it

    def index(self, faiss: Any, quantiser: Any, *, dim: int, lists: int, kind: int) -> Any:
        bits = faiss.ScalarQuantizer.QT_8bit
        return faiss.IndexIVFScalarQuantizer(quantiser, dim, lists, bits, kind)

    def settings(self, faiss: Any, *, probes: int, selector: Any) -> Any:
        if selector is None:  # faiss takes no None here
            return faiss.SearchParametersIVF(nprobe=probes)
        return faiss.SearchParametersIVF(nprobe=probes, sel=selector)

    def rotate(self, vectors: FloatArray) -> FloatArray:
        return vectors


class OneBit:
    """RaBitQ: the signs of what is left beyond the centre, after a random rotation, two numbers.

    The rotation spreads what few directions hold over all of them, so that each bit carries as much
    as the others whatever the data.
    """

    name = "1 bit"

    def __init__(self, dim: int) -> None:
        normal = np.random.default_rng(dim).standard_normal((dim, dim))
        self._rotation = np.linalg.qr(normal)[0].astype(np.float32)

    def index(self, faiss: Any, quantiser: Any, *, dim: int, lists: int, kind: int) -> Any:
        return faiss.IndexIVFRaBitQ(quantiser, dim, lists, kind)

    def settings(self, faiss: Any, *, probes: int, selector: Any) -> Any:
        if selector is None:
            return faiss.IVFRaBitQSearchParameters(nprobe=probes, qb=QUERY_BITS)
        return faiss.IVFRaBitQSearchParameters(nprobe=probes, qb=QUERY_BITS, sel=selector)

    def rotate(self, vectors: FloatArray) -> FloatArray:
        rotated: FloatArray = vectors @ self._rotation
        return rotated


CODES: dict[Quantise, type[EightBits] | type[OneBit]] = {
    "none": EightBits,
    "int8": EightBits,
    "binary": OneBit,
}


# ---- centres of the lists ------------------------------------------------------------------------

BLOCK = 4096  # vectors assigned at once


def assign(vectors: FloatArray, centres: FloatArray, *, metric: Metric) -> IntArray:
    """The nearest centre of each vector, in the sense that the index searches by."""
    out = np.empty(len(vectors), dtype=np.int64)
    offset = 0.0 if metric != "l2" else 0.5 * np.einsum("cd,cd->c", centres, centres)
    for start in range(0, len(vectors), BLOCK):
        scores = vectors[start : start + BLOCK] @ centres.T  # (n, C)
        scores -= offset
        out[start : start + BLOCK] = scores.argmax(axis=1)
    return out


def k_means(
    sample: FloatArray,
    count: int,
    *,
    metric: Metric,
    rounds: int,
    rng: np.random.Generator,
    check: Callable[[], None],
) -> FloatArray:
    """(count, D) centres; of unit length for cosine. Empty ones restart at a random vector.

    `check` is called now and then and may raise, to end it.
    """
    centres = sample[rng.choice(len(sample), count, replace=False)].copy()
    for _ in range(rounds):
        nearest = np.empty(len(sample), dtype=np.int64)
        for start in range(0, len(sample), 8 * BLOCK):
            check()
            part = slice(start, start + 8 * BLOCK)
            nearest[part] = assign(sample[part], centres, metric=metric)
        order = np.argsort(nearest, kind="stable")
        used, first, sizes = np.unique(nearest[order], return_index=True, return_counts=True)
        sums = np.add.reduceat(sample[order], first, axis=0)
        centres[used] = sums / sizes[:, None]
        empty = np.setdiff1d(np.arange(count), used)
        centres[empty] = sample[rng.integers(0, len(sample), len(empty))]
        if metric == "cosine":
            centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    return centres
