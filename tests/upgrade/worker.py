"""A backfill worker of its own: python -m tests.upgrade.worker LOCATION.

Says "ready" when the gallery is open and at the end how many vectors it wrote. Each batch takes a
moment, so that it can be killed in the middle of one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from midspan.gallery import Gallery, Item
from midspan.upgrade import Embedded, Upgrade
from tests.upgrade.world import QUICK, encoder


def main() -> None:
    with Gallery.open(sys.argv[1]) as gallery:
        state = gallery.state
        assert state.target is not None
        see = encoder(state.spaces[state.target])

        def embed(items: Sequence[Item]) -> Embedded:
            time.sleep(0.005)
            print("batch", flush=True)
            return see(items)

        print("ready", flush=True)
        print(Upgrade(gallery).run(embed, settings=QUICK).written, flush=True)


if __name__ == "__main__":
    main()
