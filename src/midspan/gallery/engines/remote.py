"""What engines on a server share: their frame, names, errors, handles, chunks of rows.

A space is one collection or several, whose names begin with NAME__NUMBER.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from midspan.errors import GalleryError, StoreError
from midspan.gallery.engines.base import Candidates, SearchRequest, pair_scores, prepare
from midspan.gallery.filters import And, Eq, Filter, In, Or, Path, Range, Scalar
from midspan.gallery.location import FIRST_LAYOUT, Location
from midspan.spaces import FloatArray, IntArray, Metric

if TYPE_CHECKING:
    from midspan.gallery.catalogue.catalogue import Catalogue

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")  # two underscores begin what we append
NAME_CHARACTERS = 40
OURS = re.compile(r"__\d{1,7}(_flat|_index)?$")

STREAMS = 4  # requests of one write that a server is given at once

Thing = TypeVar("Thing")


class MissingCollection(StoreError):
    """A collection that is not there."""


class VectorShape(NamedTuple):
    """Of the vectors of a space, as its collection describes them."""

    metric: Metric
    dim: int


class Server(Protocol):
    shown: str

    def collections(self) -> list[str]: ...

    def close(self) -> None: ...


class RemoteEngine:
    """Opening, closing, collections and shapes; what a server is asked is each engine's own."""

    colocated = False

    def __init__(
        self, catalogue: Catalogue, server: Server, *, name: str, recorded: Mapping[str, str]
    ) -> None:
        self._catalogue, self._base, self._name = catalogue, server, name
        self.recorded = recorded
        self._shapes: dict[int, VectorShape] = {}  # of spaces; numbers are never used again

    @classmethod
    def connect(
        cls, location: Location, catalogue: Catalogue, *, created_with: Mapping[str, str] | None
    ) -> Self:
        """`made`: settings of a gallery that is there; None: a new one."""
        raise NotImplementedError

    @classmethod
    def open(cls, location: Location, catalogue: Catalogue) -> Self:
        return cls.connect(location, catalogue, created_with=catalogue.settings())

    @classmethod
    def create(cls, location: Location, catalogue: Catalogue) -> Self:
        engine = cls.connect(location, catalogue, created_with=None)
        try:
            _refuse_taken(engine._collections(), shown=location.shown)
        except BaseException:
            engine.close()
            raise
        return engine

    def close(self) -> None:
        self._base.close()

    def _collection(self, number: int) -> str:
        return f"{self._name}__{number}"

    def _collections(self, number: int | None = None) -> list[str]:
        """Of the gallery, or of one space (then without the name of the space itself)."""
        prefix = f"{self._name}__" if number is None else f"{self._collection(number)}_"
        return sorted(name for name in self._base.collections() if name.startswith(prefix))

    def _shape(self, number: int) -> VectorShape:
        if number not in self._shapes:
            self._shapes[number] = self._read_shape(number)
        return self._shapes[number]

    def _read_shape(self, number: int) -> VectorShape:
        raise NotImplementedError

    def fetch(self, number: int, rows: IntArray) -> tuple[IntArray, FloatArray]:
        numbers = rows.tolist()
        by_row = self._vectors(number, numbers)
        there = [row for row in numbers if row in by_row]
        vectors = np.array([by_row[row] for row in there], np.float32)
        return np.array(there, np.int64), vectors.reshape(-1, self._shape(number).dim)

    def _vectors(self, number: int, rows: list[int]) -> dict[int, Any]:
        """Those that are there."""
        raise NotImplementedError


class ClientGuard:
    """Whether a client may be used: it was not closed, and not inherited by a fork."""

    def __init__(self, shown: str) -> None:
        self._shown, self._process, self.open = shown, os.getpid(), True

    def check(self) -> None:
        if not self.open:
            raise StoreError(f"{self._shown}: this gallery is closed")
        if os.getpid() != self._process:
            raise StoreError(f"{self._shown}: opened before a fork; open it again after it")


def check_name(name: str, *, expected: str, shown: str) -> str:
    if not NAME.fullmatch(name) or len(name) > NAME_CHARACTERS:
        raise GalleryError(
            f"{shown}: expected {expected} with a name of up to {NAME_CHARACTERS} small letters, "
            "digits and single underscores"
        )
    return name


def _refuse_taken(collections: Sequence[str], *, shown: str) -> None:
    if any(not OURS.search(name) for name in collections):
        raise GalleryError(
            f"{shown}: there are collections of a gallery of the first layout, which kept items in "
            f"the server too ({', '.join(collections[:3])}); this version does not read them. "
            f"{FIRST_LAYOUT}, and remove them or choose another name here"
        )
    if collections:
        raise GalleryError(
            f"{shown}: there are collections of another gallery already "
            f"({', '.join(collections[:3])}); choose another name, or remove them"
        )


def unreachable(error: Exception, *, shown: str) -> StoreError:
    return StoreError(
        f"{shown}: the server cannot be reached or broke off ({first_line(error)}); what was not "
        "acknowledged may be repeated"
    )


def first_line(error: Exception) -> str:
    text = getattr(error, "message", "") or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0][:300]


def chunks(sized: Iterable[tuple[Thing, int]], *, rows: int, size: int) -> Iterator[list[Thing]]:
    """Of (thing, its bytes); a thing that is larger than a chunk may be comes alone."""
    chunk, total = list[Thing](), 0
    for thing, weight in sized:
        if chunk and (total + weight > size or len(chunk) == rows):
            yield chunk
            chunk, total = [], 0
        chunk.append(thing)
        total += weight
    if chunk:
        yield chunk


def send(chunks: Iterable[list[Thing]], to: Callable[[list[Thing]], Any], *, streams: int) -> None:
    """Each chunk in a request, so many under way at once; the first failure is raised."""
    if streams == 1:
        for chunk in chunks:
            to(chunk)
        return
    pending = deque[Future[Any]]()
    with ThreadPoolExecutor(streams) as pool:
        for chunk in chunks:
            pending.append(pool.submit(to, chunk))
            if len(pending) > streams:
                pending.popleft().result()
        for request in pending:
            request.result()


# ---- a server's candidates, with scores of our own: the k best, and all that equal the k-th ------
# A server rounds differently, so it is asked for a few more than k, and for four times as many
# while what it left out may belong to the k best.

NAMED_FROM = 500  # asked for as many: the catalogue may know sooner who counts than the server
NAMED = 20_000  # rows that are sooner fetched and compared here
EXTRA = 16  # candidates beyond k, for equal scores
TOLERANCE = 1e-5  # by which a server's float32 scores may be off, relative to what it adds up


@dataclass(frozen=True, slots=True)
class SpaceCandidates:
    """What one query found in one space."""

    rows: IntArray  # (n,), each once
    scores: FloatArray  # (n,) true scores
    cut: float | None = None  # nothing that was left out scores more; None: nothing was left out


Probe = Callable[[int, FloatArray, int], list[SpaceCandidates]]  # space, prepared (Q, D), limit


def find_candidates(
    request: SearchRequest, prepared: FloatArray, probe: Probe, *, factor: float
) -> list[Candidates]:
    """`factor`: candidates to ask for each one of k, where not all of them will count."""
    k = max(1, request.k)
    limit = max(k + EXTRA, math.ceil(factor * k))
    answers: dict[int, Candidates] = {}
    todo = list(range(len(prepared)))
    while todo:
        by_space = [probe(number, prepared[todo], limit) for number in request.among]
        for place, parts in zip(todo, zip(*by_space, strict=True), strict=True):
            answer = _answer(parts, request, k=k)
            if answer is not None:
                answers[place] = answer
        todo = [place for place in todo if place not in answers]
        limit *= 4
    return [answers[place] for place in range(len(prepared))]


def _answer(
    parts: Sequence[SpaceCandidates], request: SearchRequest, *, k: int
) -> Candidates | None:
    """All that is sure; None if what was left out may be among the k best."""
    rows = np.concatenate([part.rows for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    numbers = np.repeat(np.array(request.among, np.int64), [len(part.rows) for part in parts])
    ranks = np.array([request.live.index(number) for number in numbers.tolist()], np.int64)
    best = np.lexsort((ranks, rows))  # a row's best space first
    best = best[np.r_[True, np.diff(rows[best]) > 0]] if len(best) else best
    order = best[np.lexsort((rows[best], -scores[best]))]
    cut = max((part.cut for part in parts if part.cut is not None), default=None)
    if cut is not None:
        order = order[scores[order] > cut]
        if len(order) < k:
            return None
    return Candidates(rows[order], numbers[order], scores[order], complete=cut is None)


def scored(
    query: FloatArray, rows: IntArray, vectors: FloatArray, *, metric: Metric, cut: float | None
) -> SpaceCandidates:
    """A prepared query and (n, D) vectors as stored; `cut` is by the server's arithmetic."""
    rows, first = np.unique(rows, return_index=True)  # a server may give a row twice
    vectors = prepare(vectors[first], metric=metric)
    scores = pair_scores(query, vectors, metric=metric)
    if cut is not None:
        cut += TOLERANCE * _scale(query, vectors, metric)
    return SpaceCandidates(rows, scores, cut)


def _scale(query: FloatArray, vectors: FloatArray, metric: Metric) -> float:
    if metric == "cosine":
        return 1.0
    length = float(np.linalg.norm(query.astype(np.float64)))
    longest = float(np.linalg.norm(vectors.astype(np.float64), axis=1).max(initial=0.0))
    return (length + longest) ** 2 if metric == "l2" else length * longest


def best_of(
    pages: Iterable[tuple[IntArray, FloatArray]],
    prepared: FloatArray,
    *,
    limit: int,
    metric: Metric,
) -> list[SpaceCandidates]:
    """All rows of some pages compared here, with each of the queries."""
    best = [SpaceCandidates(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in prepared]
    for rows, vectors in pages:
        ready = prepare(vectors, metric=metric)
        for place, query in enumerate(prepared):
            page = SpaceCandidates(rows, pair_scores(query, ready, metric=metric))
            best[place] = _best(best[place], page, limit)
    return best


def _best(left: SpaceCandidates, right: SpaceCandidates, limit: int) -> SpaceCandidates:
    rows, scores = np.r_[left.rows, right.rows], np.r_[left.scores, right.scores]
    if len(rows) <= limit:
        return SpaceCandidates(rows, scores, left.cut)
    order = np.argsort(-scores, kind="stable")
    return SpaceCandidates(rows[order[:limit]], scores[order[:limit]], float(scores[order[limit]]))


def search_server(
    request: SearchRequest,
    catalogue: Catalogue,
    *,
    metric: Metric,
    fetch: Callable[[int, IntArray], tuple[IntArray, FloatArray]],
    probe: Probe,
    factor: float = 1.0,
) -> list[Candidates]:
    """By a server's `probe`, or by `fetch` where the catalogue names few rows that count."""
    named = {number: named_rows(catalogue, request, number) for number in request.among}

    def look(number: int, queries: FloatArray, limit: int) -> list[SpaceCandidates]:
        rows = named[number]
        if rows is None:
            return probe(number, queries, limit)
        return best_of([fetch(number, rows)], queries, limit=limit, metric=metric)

    return find_candidates(request, prepare(request.vectors, metric=metric), look, factor=factor)


def named_rows(catalogue: Catalogue, request: SearchRequest, number: int) -> IntArray | None:
    """The rows that count in a space and pass, if they are few; None if a server shall search.

    The gallery asks for more and more while most of what a server finds is superseded or does not
    pass a filter that the server cannot judge.
    """
    better = request.live[: request.live.index(number)]
    if request.k < NAMED_FROM or (request.filter is None and not better):
        return None
    from sqlalchemy import exists, select

    items, stored = catalogue.tables.items.c, catalogue.tables.stored
    here, there = stored.alias(), stored.alias()
    statement = (
        select(items.row)
        .join(here, here.c.row == items.row)
        .where(here.c.space == number)
        .where(~exists().where(there.c.row == items.row, there.c.space.in_(better)))
        .limit(NAMED + 1)
    )
    if request.filter is not None:
        statement = statement.where(catalogue.where(request.filter))
    with catalogue.reading() as connection:
        rows = connection.execute(statement).scalars().all()
    return np.array(rows, np.int64) if len(rows) <= NAMED else None


# ---- filters in a server's own words -------------------------------------------------------------

EXACT = 2**53  # larger numbers the servers compare as floats

Word = TypeVar("Word")


@dataclass(frozen=True, slots=True)
class FilterDialect(Generic[Word]):
    compare: Callable[[Path, str, Scalar], Word | None]  # path, operator, value; None: no such word
    every: Callable[[Sequence[Word]], Word]
    some: Callable[[Sequence[Word]], Word]


def translate(filter: Filter, language: FilterDialect[Word]) -> Word | None:
    """What all rows that pass fulfil; None lets every row through."""
    if isinstance(filter, And):
        return _every((translate(part, language) for part in filter.parts), language)
    if isinstance(filter, Or):
        return _some((translate(part, language) for part in filter.parts), language)
    if not isinstance(filter, Eq | In | Range):
        return None
    path = tuple(filter.path)
    if isinstance(filter, Eq):
        return _compare(path, "==", filter.value, language)
    if isinstance(filter, In):
        return _some((_compare(path, "==", value, language) for value in filter.values), language)
    return _every(
        (_compare(path, sign, bound, language) for sign, bound in filter.bounds), language
    )


def _compare(
    path: Path, operator: str, value: Scalar, language: FilterDialect[Word]
) -> Word | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (number and abs(float(value)) >= EXACT):
        return None
    return language.compare(path, operator, value)


def _every(parts: Iterable[Word | None], language: FilterDialect[Word]) -> Word | None:
    words = [word for word in parts if word is not None]
    return language.every(words) if words else None


def _some(parts: Iterable[Word | None], language: FilterDialect[Word]) -> Word | None:
    translated = list(parts)
    words = [word for word in translated if word is not None]
    return language.some(words) if words and len(words) == len(translated) else None
