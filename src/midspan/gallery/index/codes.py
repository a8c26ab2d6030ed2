"""The codes that an IVF index lists: one class each, one line in the table.

8 bits rank nearly as float32 does, 1 bit (RaBitQ, arXiv:2405.12497) needs more candidates for the
same recall. benchmarks/quantisation.py measures it; an index calibrates its own.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from midspan.gallery.quantise import Quantise
from midspan.spaces import FloatArray

QUERY_BITS = 4  # of a query's coordinates against 1-bit codes; 8 found no more, the paper says 4


class Codes(Protocol):
    name: str

    def index(self, faiss: Any, quantiser: Any, *, dim: int, lists: int, kind: int) -> Any:
        """An empty faiss index."""
        ...

    def settings(self, faiss: Any, *, probes: int, selector: Any) -> Any:
        """Of one search; `selector` None: every row counts."""
        ...

    def turn(self, vectors: FloatArray) -> FloatArray:
        """Vectors, centres and queries as the index wants them; lengths and angles stay."""
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

    def turn(self, vectors: FloatArray) -> FloatArray:
        return vectors


class OneBit:
    """RaBitQ: the signs of what is left beyond the centre, after a random rotation, two numbers.

    The rotation spreads what few directions hold over all of them, so that each bit tells as much
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

    def turn(self, vectors: FloatArray) -> FloatArray:
        turned: FloatArray = vectors @ self._rotation
        return turned


CODES: dict[Quantise, type[EightBits] | type[OneBit]] = {
    "none": EightBits,
    "int8": EightBits,
    "binary": OneBit,
}
