"""A process that writes to its own ids for a while and then says what should be left of them.

python -m tests.gallery.traffic_worker LOCATION NAME SECONDS
"""

from __future__ import annotations

import json
import random
import sys
import time

from midspan.errors import SpaceMismatch
from midspan.gallery.items import Draft
from midspan.gallery.stores import open_store
from midspan.gallery.stores.base import Store
from tests.gallery.samples import embed

Expected = dict[str, int]  # id → the number in its payload


def write(store: Store, name: str, until: float) -> Expected:
    """Add, replace and delete ids that begin with the name, in the space that is live then."""
    chance, expected, number = random.Random(name), Expected(), 0
    while time.time() < until:
        number += 1
        ids = [f"{name}-{place}" for place in chance.sample(range(40), 5)]
        if chance.random() < 0.25:
            store.delete(ids)
            for id in ids:
                expected.pop(id, None)
            continue
        state = store.state()
        parts = [embed(ids, state.spaces[space], seed=number) for space in state.live]
        try:
            store.upsert([Draft(id, payload={"n": number}) for id in ids], parts, mode="put")
        except SpaceMismatch:  # the upgrade went on in this moment: nothing was written
            continue
        expected |= dict.fromkeys(ids, number)
    return expected


def main() -> None:
    location, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    store = open_store(location)
    print(json.dumps(write(store, name, time.time() + seconds)))
    store.close()


if __name__ == "__main__":
    main()
