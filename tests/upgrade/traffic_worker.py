"""A client that writes to ids of its own, searches, and compares both with a plain dict.

python -m tests.upgrade.traffic_worker LOCATION NAME writes until its stdin ends; then it says how
many rounds it made, and what should be left of its items.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from collections.abc import Callable

from midspan.errors import SpaceMismatch
from midspan.gallery import Gallery
from midspan.upgrade import Upgrade
from tests.upgrade.world import NEW, label, picture, vectors

OWN = 30  # ids of a client
PAUSE = 0.01  # seconds between two rounds: without it the clients take the processor of the upgrade
Model = dict[str, str]  # id → where its picture is


def live(gallery: Gallery, name: str, go_on: Callable[[], bool]) -> tuple[int, Model]:
    """(rounds, what should be left)"""
    chance, model, rounds = random.Random(name), Model(), 0
    ids = [f"{name}-{place:02d}" for place in range(OWN)]
    while go_on():
        time.sleep(PAUSE)
        rounds += 1
        some = chance.sample(ids, 3)
        if chance.random() < 0.3:
            assert gallery.delete(some) == len(model.keys() & some)
            for id in some:
                model.pop(id, None)
        else:
            write(gallery, some, version=rounds)
            model |= {id: picture(id, rounds) for id in some}
        there = {item.id: item.uri for item in gallery.get_many(ids)}
        assert there == model, "what was acknowledged is not there"
        if rounds % 3 == 0:
            look(gallery, name, model)
    return rounds, model


def write(gallery: Gallery, names: list[str], *, version: int) -> None:
    """As a client does: in the spaces that are wanted now, again if they changed meanwhile."""
    uris = [picture(id, version) for id in names]
    while True:
        wanted = Upgrade(gallery).wanted_spaces()
        first, *others = (vectors(names, space, version=version) for space in wanted)
        try:
            gallery.put(
                first, also=others, uris=uris, payloads=[{"labels": label(uri)} for uri in uris]
            )
        except SpaceMismatch:
            if wanted == Upgrade(gallery).wanted_spaces():
                raise
            continue
        return


def look(gallery: Gallery, name: str, model: Model) -> None:
    """A search for everything finds exactly the own items of the model, each once."""
    (hits,) = Upgrade(gallery).search(vectors([f"{name}-query"], NEW), k=1000)
    found = [hit.id for hit in hits]
    assert len(found) == len(set(found)), "an item twice in one result"
    own = {id for id in found if id.startswith(f"{name}-")}
    assert own == set(model), f"missing {set(model) - own}, too many {own - set(model)}"
    uris = {hit.id: hit.uri for hit in hits if hit.id in own}
    assert uris == model


def main() -> None:
    with Gallery.open(sys.argv[1]) as gallery:
        print("ready", flush=True)
        goes_on = lambda: not select.select([sys.stdin], [], [], 0)[0]  # noqa: E731
        print(json.dumps(live(gallery, sys.argv[2], goes_on)))


if __name__ == "__main__":
    main()
