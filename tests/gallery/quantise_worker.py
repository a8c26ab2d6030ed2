"""A process that serves: `quantise_worker.py LOCATION` prints how it holds vectors as that changes.

It searches all the time, says what each change was, and ends when its input does.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

from midspan.gallery import Gallery
from midspan.gallery.index import upkeep
from midspan.gallery.stores.sqlite.store import SqliteStore

upkeep.FLAT_UP_TO = 100
upkeep.SETTLE = 0.0
ended = threading.Event()


def wait() -> None:
    sys.stdin.read()
    ended.set()


threading.Thread(target=wait, daemon=True).start()
with Gallery.open(sys.argv[1]) as gallery:
    store = gallery.store
    assert isinstance(store, SqliteStore)
    said = ""
    while not ended.is_set():
        gallery.search(np.ones((1, gallery.space.dim)), space=gallery.space)
        mirror = store._follower._mirror
        family = mirror.families[0]
        if family.ivf is not None and not upkeep.wanted(family) and not mirror.misplaced():
            now = f"{mirror.layout.quantise} {family.ivf.codes.name} {family.shelf.folder}"
            if now != said:
                print(now, flush=True)
            said = now
        time.sleep(0.005)
