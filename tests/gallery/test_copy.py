"""Copies: equal to the source, however often they were stopped."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import pytest

from midspan.errors import GalleryError
from midspan.gallery import Gallery, copy
from midspan.gallery.copy import copy_into, open_copy
from midspan.gallery.items import Draft
from midspan.gallery.records import Mode
from midspan.gallery.stores.memory import MemoryStore
from midspan.spaces import Embeddings
from tests.gallery.conftest import Locate
from tests.gallery.samples import NEW, OLD, embed, start


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("midspan.gallery.copy")  # the room's `copy` is the function
    monkeypatch.setattr(module, "PAGE", 100)


def fill(gallery: Gallery, count: int = 110) -> list[str]:
    ids = [f"i{number:05}" for number in range(count)]
    gallery.add(
        embed(ids), uris=[f"{id}.jpg" for id in ids], payloads=[{"n": n} for n in range(count)]
    )
    return ids


def same(one: Gallery, other: Gallery) -> None:
    mine = one.store.scan(filter=None, missing=None, after="", limit=100_000)
    theirs = other.store.scan(filter=None, missing=None, after="", limit=100_000)
    assert [(i.id, i.uri, i.payload, i.created, i.changed, i.spaces) for i in mine] == [
        (i.id, i.uri, i.payload, i.created, i.changed, i.spaces) for i in theirs
    ]
    queries = embed(["q1", "q2"])
    assert one.search(queries) == other.search(queries)
    assert one.state.live == other.state.live


def test_a_copy_equals_its_source(locate: Locate) -> None:
    with Gallery.create(locate(), OLD) as source:
        fill(source)
        with open_copy(source, locate()) as target:
            report = copy_into(source, target)
            counts = (report.items, report.written, report.deleted, report.passes)
            assert counts == (110, 110, 0, 1)
            same(source, target)
            source.delete(["i00003"])
            source.replace(embed(["i00004"], seed=3))
            source.annotate({"i00005": {"x": 1}})
            source.add(embed(["zz"]))
            report = copy_into(source, target)
            assert (report.items, report.written, report.deleted) == (110, 3, 1)
            same(source, target)


class Stopped(Exception): ...


class Failing(MemoryStore):
    """Stops at the third batch."""

    writes = 0

    def upsert(self, drafts: Sequence[Draft], vectors: Sequence[Embeddings], *, mode: Mode) -> None:
        self.writes += 1
        if self.writes == 3:
            raise Stopped
        super().upsert(drafts, vectors, mode=mode)


def test_a_stopped_copy_goes_on_where_it_was(locate: Locate) -> None:
    with Gallery.create(locate(), OLD) as source:
        fill(source, 210)
        store = Failing.create("memory:", OLD, entry=source.trail(limit=1)[0])
        target = Gallery(store)
        with pytest.raises(Stopped):
            copy_into(source, target)
        assert len(target) == 200
        report = copy_into(source, target)
        assert (report.items, report.written) == (210, 10)
        same(source, target)


def test_a_copy_does_not_write_over_another_gallery(locate: Locate) -> None:
    location = locate()
    if location.startswith("memory:"):
        return
    with Gallery.create(locate(), OLD) as source:
        fill(source, 3)
        with Gallery.create(location, OLD) as other:
            other.add(embed(["precious"]))
        with pytest.raises(GalleryError, match="holds another gallery"):
            copy(source, location)
        with Gallery.open(location) as other:
            assert len(other) == 1
        fresh = locate()
        assert copy(source, fresh).written == 3
        assert copy(source, fresh).written == 0
        with Gallery.open(fresh) as target:
            same(source, target)


def test_a_gallery_in_an_upgrade_is_not_copied(locate: Locate) -> None:
    with Gallery.create(locate(), OLD) as source:
        start(source.store, to=NEW)
        with pytest.raises(GalleryError, match="in the middle of an upgrade"):
            copy(source, locate())
