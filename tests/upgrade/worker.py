"""A backfill worker of its own: python -m tests.upgrade.worker LOCATION [RAY FOLDER].

Says "ready" when the gallery is open and at the end how many vectors it wrote. Each batch takes a
moment, so that it can be killed in the middle of one. With the address of a Ray cluster its workers
embed, and leave a line for each batch in the folder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from midspan.gallery import Gallery, Item
from midspan.upgrade import Embedded, Upgrade
from midspan.upgrade.cluster import Workers, run_on_cluster
from tests.upgrade.cluster_world import Loader
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
        if len(sys.argv) > 2:
            load = Loader(Path(sys.argv[3]), seconds=0.1)
            cluster = Workers(sys.argv[2], count=1)
            report = run_on_cluster(gallery, load, workers=cluster, settings=QUICK).report
            print(report.written, flush=True)
            return
        print(Upgrade(gallery).run(embed, settings=QUICK).written, flush=True)


if __name__ == "__main__":
    main()
