"""An embedded gallery whose index begins early, and a plain reference of what it should answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.engines.base import Candidates, SearchRequest, pair_scores, prepare
from midspan.gallery.engines.embedded.engine import EmbeddedEngine
from midspan.gallery.filters import Filter
from midspan.gallery.gallery import Gallery
from midspan.gallery.location import parse_location
from midspan.spaces import FloatArray, IntArray, Space
from tests.gallery.samples import DIM, NEW, OLD

SPACES = {1: OLD, 2: NEW}
EARLY = 100 * DIM  # numbers above which an index is built


class Opened:
    """An engine on a file, without the gallery around it."""

    def __init__(self, path: Path, *, flat_up_to: int = EARLY) -> None:
        if not path.exists():
            Gallery.create(path, OLD).close()
        place = parse_location(path)
        self.catalogue = Catalogue.open(place.catalogue, shown=str(path))
        tables, database = self.catalogue.tables, self.catalogue.database
        self.engine = EmbeddedEngine(database, tables, flat_up_to=flat_up_to)  # type: ignore[arg-type]

    def __enter__(self) -> EmbeddedEngine:
        return self.engine

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        self.catalogue.close()


class Model:
    """Every vector in a dict, every pair compared."""

    def __init__(self) -> None:
        self.vectors: dict[int, dict[int, FloatArray]] = {1: {}, 2: {}}

    def put(self, number: int, rows: IntArray, vectors: FloatArray) -> None:
        self.vectors[number].update(zip(rows.tolist(), vectors, strict=True))

    def delete(self, rows: IntArray) -> None:
        for held in self.vectors.values():
            for row in rows.tolist():
                held.pop(row, None)

    def search(
        self, query: FloatArray, *, k: int, live: Sequence[int], passing: set[int] | None = None
    ) -> list[tuple[float, int, int]]:
        """(score, row, space) of the k best and of what equals the last of them."""
        best: dict[int, int] = {}
        for number in live:
            for row in self.vectors[number]:
                best.setdefault(row, number)
        found = []
        for row, number in best.items():
            if passing is None or row in passing:
                vector = prepare(self.vectors[number][row][None], metric=OLD.metric)
                unit = prepare(query[None], metric=OLD.metric)[0]
                found.append((float(pair_scores(unit, vector, metric=OLD.metric)[0]), row, number))
        found.sort(key=lambda one: (-one[0], one[1]))
        return [one for one in found if len(found) <= k or one[0] >= found[k - 1][0]]


def listed(one: Candidates) -> list[tuple[float, int, int]]:
    triples = zip(one.scores.tolist(), one.rows.tolist(), one.spaces.tolist(), strict=True)
    return sorted(triples, key=lambda triple: (-triple[0], triple[1]))


def ask(
    engine: EmbeddedEngine,
    query: FloatArray,
    *,
    k: int = 10,
    live: tuple[int, ...] = (1,),
    filter: Filter | None = None,
    exact: bool = False,
) -> list[tuple[float, int, int]]:
    request = SearchRequest(np.atleast_2d(query), k, live, live, filter, exact)
    return listed(engine.search(request)[0])


def clustered(rng: np.random.Generator, count: int, dim: int = DIM) -> FloatArray:
    centres = np.random.default_rng(0).standard_normal((max(1, count // 50), dim))
    rows = centres[rng.integers(0, len(centres), count)] + 0.5 * rng.standard_normal((count, dim))
    return rows.astype(np.float32)


def snapshots(path: Path) -> list[Path]:
    folder = Path(f"{path}-index")
    return sorted(one for one in folder.glob("*-*") if one.is_dir())


def space(dim: int, name: str = "old") -> Space:
    return Space(name=name, dim=dim, fingerprint=f"f-{name}-{dim}")
