"""What live queries return is counted once, whichever process counted it."""

from __future__ import annotations

import pytest

from midspan.gallery import Gallery, search_log
from midspan.gallery.search_log import SearchLog, returned
from tests.upgrade.world import OLD, ids, make, vectors


def test_search_log_counts_of_two_processes_add_up(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with make("sqlite", tmp_path) as gallery:
        assert returned(gallery) == {}
        logs = [SearchLog(gallery), SearchLog(gallery)]
        for log in logs:
            log.note(gallery.search(vectors(ids(3), OLD), k=2))
        assert returned(gallery) == {}, "nothing is written before it is time"
        for log in logs:
            log.flush()
        counts = returned(gallery)
        place = gallery.location
    assert sum(counts.values()) == 12
    assert all(counts[id] >= 2 for id in ids(3)), "each query finds its own item"
    with Gallery.open(place) as again:
        assert returned(again) == counts


def test_search_log_keeps_the_most_returned_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_log, "KEPT", 1)
    with Gallery.create("memory:", OLD) as gallery:
        gallery.add(vectors(ids(2), OLD))
        log = SearchLog(gallery)
        log.note([*gallery.search(vectors(["i0001"], OLD), k=1)] * 2)
        log.note(gallery.search(vectors(["i0000"], OLD), k=1))
        log.flush()
        assert returned(gallery) == {"i0001": 2}
