"""Who is killed by benchmarks/crash.py: adds, replaces, deletes, starts, backfills, rolls back."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.upgrade.world import NEW, QUICK, WIDE, add, encoder, picture

from midspan.gallery import Gallery, Item
from midspan.upgrade import Embedded, Mode, Record, Upgrade


def begin(gallery: Gallery, mode: Mode, folder: Path) -> None:
    name = {"direct": None, "map-query": "wide-old", "map-gallery": "old-wide"}[mode]
    Upgrade.start(
        gallery,
        to=NEW if mode == "direct" else WIDE,
        mode=mode,
        bridge=None if name is None else folder / name,
    )


class Victim:
    """Says what it will do, does it, says that it is done."""

    def __init__(self, location: str, mode: Mode, seed: int, folder: Path) -> None:
        self.gallery = Gallery.open(location)
        self.mode, self.folder, self.seed = mode, folder, seed
        self.chance = random.Random(seed)
        self.number = 0
        items = self.gallery.scan(limit=10_000)
        self.known = [item.id for item in items]

    def say(self, **what: Any) -> None:
        print(json.dumps(what), flush=True)

    def write(self) -> None:
        self.number += 1
        kind = self.chance.random()
        names = [f"v{self.seed}-{self.number}-{n}" for n in range(self.chance.randint(1, 40))]
        version = self.seed * 1000 + self.number
        spaces = Upgrade(self.gallery).wanted_spaces()
        if kind < 0.6:
            self.say(will={name: picture(name, version) for name in names})
            add(self.gallery, names, *spaces, version=version)
            self.known += names
        elif kind < 0.85:
            some = self.chance.sample(self.known, 5)
            self.say(will={name: picture(name, version) for name in some})
            add(self.gallery, some, *spaces, version=version, replace=True)
        else:
            some = self.chance.sample(self.known, 3)
            self.say(will=dict.fromkeys(some))
            self.gallery.delete(some)
            self.known = [name for name in self.known if name not in some]
        self.say(done=True)

    def backfill(self) -> None:
        upgrade = Upgrade(self.gallery)
        if self.chance.random() < 0.3 or self.gallery.count().pending == 0:
            self.write()
            return
        record = Record.of(self.gallery.state)
        assert record is not None
        space = self.gallery.state.spaces[record.new]
        see_all, written = encoder(space), list[str]()

        def embed(items: Sequence[Item]) -> Embedded:
            made = see_all(items)
            written.extend(made.vectors.ids.tolist())
            return made

        upgrade.run(embed, limit=self.chance.randint(8, 60), settings=QUICK)
        self.say(written=written)

    def live(self, phase: str) -> None:
        self.say(go=True)
        if phase == "start":
            begin(self.gallery, self.mode, self.folder)
        elif phase == "rollback":
            Upgrade(self.gallery).rollback(drop=self.chance.random() < 0.5)
        elif phase == "finish":
            Upgrade(self.gallery).finish(override="a benchmark")
            Upgrade(self.gallery).forget()
        self.say(passed=True)
        while True:
            if phase == "backfill":
                self.backfill()
            else:
                self.write()


if __name__ == "__main__":
    location, phase, mode, seed, folder = sys.argv[1:]
    Victim(location, mode, int(seed), Path(folder)).live(phase)  # type: ignore[arg-type]
