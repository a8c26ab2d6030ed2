"""The dry run: what a foreign store holds, what an adoption would make of it and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.spaces import FloatArray, Metric

BoolArray = npt.NDArray[np.bool_]

UNIT = 1e-3  # by which a length may differ from one and still count as normalised
ROW_BYTES = 150  # of an item in the catalogue, without its id, address and payload
GRAPH_BYTES = 300  # of a row in HNSW, without its vector


def condition_of(vectors: FloatArray, metric: Metric) -> tuple[BoolArray, BoolArray, FloatArray]:
    """(no vector at all, usable, length) of each; zero has no direction, so no cosine."""
    squared = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    finite = np.isfinite(squared)
    missing = np.zeros(len(vectors), dtype=bool)
    if not finite.all():
        missing[~finite] = np.isnan(vectors[~finite]).all(axis=1)
    usable = finite & (squared > 0) if metric == "cosine" else finite
    return missing, usable, np.sqrt(squared)


@dataclass(frozen=True, slots=True)
class Survey:
    source: str
    rows: int
    dim: int
    metric: Metric
    metric_from: str  # where the metric comes from: index, named, default …
    without: int  # rows whose vector is NULL or missing
    zero: int
    unusable: int  # NaN or infinite
    duplicates: int  # vectors that are equal to another one
    not_normalised: int
    bad_ids: int
    index: str | None  # "products_embedding_idx (hnsw, cosine)"
    in_place: bool
    own_bytes: int  # what the gallery's own tables or files would take
    new_space_bytes: int  # of a new space of the same dimension, with its index
    seconds: float  # estimate for the adoption itself
    looked_seconds: float  # that this survey took
    problems: tuple[str, ...] = ()

    @property
    def normalised(self) -> bool:
        return self.rows > self.without and self.not_normalised == 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "normalised": self.normalised}

    def table(self) -> Mapping[str, str]:
        """For people, line by line."""
        lengths = "of length 1" if self.normalised else f"{self.not_normalised:,} not of length 1"
        place = "stay where they are" if self.in_place else "are copied into the gallery"
        return {
            "rows": f"{self.rows:,}",
            "vectors": f"{self.dim}-d, {lengths}; they {place}",
            "metric": f"{self.metric} ({self.metric_from})",
            "without a vector": f"{self.without:,}",
            "zero": f"{self.zero:,}",
            "NaN or infinite": f"{self.unusable:,}",
            "duplicates": f"{self.duplicates:,}",
            "ids that cannot be kept": f"{self.bad_ids:,}",
            "index": self.index or "none: searches compare every row",
            "disk of the gallery": size(self.own_bytes),
            "disk of a new space": f"{size(self.new_space_bytes)} with its index",
            "time": f"about {self.seconds:,.0f} s (looked for {self.looked_seconds:.1f} s)",
        }


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


# ---- what a comparison of a gallery with its application's data changed --------------------------


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Items that were added, got another image, got another payload, and were removed."""

    added: int = 0
    replaced: int = 0
    annotated: int = 0
    removed: int = 0

    def __add__(self, other: Reconciled) -> Reconciled:
        return Reconciled(
            self.added + other.added,
            self.replaced + other.replaced,
            self.annotated + other.annotated,
            self.removed + other.removed,
        )

    @property
    def total(self) -> int:
        return self.added + self.replaced + self.annotated + self.removed
