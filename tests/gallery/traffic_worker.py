"""A process that writes to its own ids for a while and then says what should be left of them.

python -m tests.gallery.traffic_worker LOCATION NAME SECONDS
"""

from __future__ import annotations

import json
import random
import sys
import time

from midspan.errors import SpaceMismatch
from midspan.gallery import Draft, Gallery
from tests.gallery.samples import embed

Expected = dict[str, int]  # id → the number in its payload


def write(gallery: Gallery, name: str, until: float) -> Expected:
    """Add, replace and delete ids that begin with the name, in the space that is live then."""
    chance, expected, number = random.Random(name), Expected(), 0
    while time.time() < until:
        number += 1
        ids = [f"{name}-{place}" for place in chance.sample(range(40), 5)]
        if chance.random() < 0.25:
            gallery.delete(ids)
            for id in ids:
                expected.pop(id, None)
            continue
        state = gallery.state
        parts = [embed(ids, state.spaces[space], seed=number) for space in state.live]
        try:
            gallery.put_drafts([Draft(id, payload={"n": number}) for id in ids], parts, mode="put")
        except SpaceMismatch:  # the upgrade continued concurrently: nothing was written
            continue
        expected |= dict.fromkeys(ids, number)
    return expected


def main() -> None:
    location, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    gallery = Gallery.open(location)
    print(json.dumps(write(gallery, name, time.time() + seconds)))
    gallery.close()


if __name__ == "__main__":
    main()
