"""One write of a gallery with its own transactions has so many rows, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import StoreError
from midspan.gallery import Gallery
from midspan.spaces import Embeddings, Space

SPACE = Space("old", 4, fingerprint="f-old")


def items(first: int, count: int) -> Embeddings:
    rows = np.random.default_rng(first).standard_normal((count, 4)).astype(np.float32)
    return Embeddings(np.array([f"i{first + n:03}" for n in range(count)]), rows, SPACE)


def test_a_write_with_too_many_rows_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("qdrant_client")
    monkeypatch.setattr("midspan.gallery.stores.turns.keys.SHIFT", 6)  # 64 rows instead of 2^24
    with Gallery.create("qdrant+local://:memory:/rows", SPACE) as gallery:
        gallery.add(items(0, 15))  # an identity, a vector and a record each: 45 rows
        with pytest.raises(StoreError, match=r"can have 64 rows and this one has more"):
            gallery.add(items(100, 30))
        assert len(gallery) == 15
        gallery.add(items(200, 15))
        assert len(gallery) == 30
        found = gallery.search(items(200, 15), k=1)
        assert [hits[0].id for hits in found] == items(200, 15).ids.tolist()
