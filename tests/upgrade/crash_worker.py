"""Upgrades there and back until it is killed: python -m tests.upgrade.crash_worker LOCATION SEED.

Bridges are beside the gallery. After each item it added it says so: that item must be there.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from midspan.gallery import Gallery
from midspan.upgrade import Mode, Record, Upgrade
from tests.upgrade.world import OLD, QUICK, WIDE, add, encoder

BOTH = {space.fingerprint: space for space in (OLD, WIDE)}


def begin(gallery: Gallery, mode: Mode) -> None:
    record = Record.of(gallery.state)
    here = BOTH[gallery.state.live[0] if record is None else record.old]
    there = WIDE if here is OLD else OLD
    pair = (there, here) if mode == "map-query" else (here, there)
    bridge = Path(gallery.location).parent / f"{pair[0].name}-{pair[1].name}"
    Upgrade.start(gallery, to=there, mode=mode, bridge=bridge)


def step(gallery: Gallery, chance: random.Random, name: str) -> None:
    upgrade, record = Upgrade(gallery), Record.of(gallery.state)
    if record is None:
        begin(gallery, chance.choice(["map-query", "map-gallery"]))
    elif record.phase == "mapping":
        begin(gallery, record.mode)
    elif record.phase in ("finished", "forgetting"):
        upgrade.forget()
    elif chance.random() < 0.3:
        spaces = [BOTH[space.fingerprint] for space in upgrade.wanted_spaces()]
        add(gallery, [name], *spaces)
        print(name, flush=True)
    elif chance.random() < 0.1:
        upgrade.rollback(drop=chance.random() < 0.5)
    elif gallery.count().pending == 0:
        upgrade.finish(override="a test")
    else:
        upgrade.run(encoder(BOTH[record.new]), limit=16, settings=QUICK)


def main() -> None:
    seed = int(sys.argv[2])
    chance = random.Random(seed)
    with Gallery.open(sys.argv[1]) as gallery:
        number = 0
        while True:
            step(gallery, chance, f"w{seed}-{number}")
            number += 1
            print("step", flush=True)


if __name__ == "__main__":
    main()
