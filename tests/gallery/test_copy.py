"""Copies: equal to the source, however often they were stopped."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import pytest

from midspan.errors import GalleryError
from midspan.gallery import AuditEvent, Gallery, copy
from midspan.gallery.copy import copy_into, open_copy
from midspan.gallery.records import Draft
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
    mine = one.scan(limit=100_000)
    theirs = other.scan(limit=100_000)
    assert [(i.id, i.uri, i.payload, i.created, i.changed, i.spaces) for i in mine] == [
        (i.id, i.uri, i.payload, i.created, i.changed, i.spaces) for i in theirs
    ]
    queries = embed(["q1", "q2"])
    assert one.search(queries) == other.search(queries)
    assert one.state.live == other.state.live


def test_copy_equals_its_source(locate: Locate) -> None:
    with Gallery.create(locate(), OLD) as source:
        fill(source)
        with open_copy(source, locate()) as target:
            report = copy_into(source, target)
            counts = (report.items, report.written, report.deleted, report.passes)
            assert counts == (110, 110, 0, 1)
            same(source, target)
            source.delete(["i00003"])
            source.replace(embed(["i00004"], seed=3))
            source.set_payload({"i00005": {"x": 1}})
            source.add(embed(["zz"]))
            report = copy_into(source, target)
            assert (report.items, report.written, report.deleted) == (110, 3, 1)
            same(source, target)


class Stopped(Exception): ...


def test_copy_interrupted_continues(locate: Locate, monkeypatch: pytest.MonkeyPatch) -> None:
    with Gallery.create(locate(), OLD) as source, Gallery.create("memory:", OLD) as target:
        fill(source, 210)
        write, writes = target.put_drafts, 0

        def stop_at_the_third(drafts: Sequence[Draft], vectors: Sequence[Embeddings]) -> None:
            nonlocal writes
            writes += 1
            if writes == 3:
                raise Stopped
            write(drafts, vectors)

        with monkeypatch.context() as patch:
            patch.setattr(target, "put_drafts", stop_at_the_third)
            with pytest.raises(Stopped):
                copy_into(source, target)
        assert len(target) == 200
        report = copy_into(source, target)
        assert (report.items, report.written) == (210, 10)
        same(source, target)


def test_copy_with_a_long_audit_log_is_recognised(locate_catalogue: Locate) -> None:
    location = locate_catalogue()
    with Gallery.create("memory:", OLD) as source:
        fill(source, 3)
        open_copy(source, location).close()
        with Gallery.open(location) as target:
            copy_into(source, target)
            catalogue = target._session.catalogue
            with catalogue.writing() as connection:
                for number in range(1100):
                    catalogue.audit.write(connection, AuditEvent("x", "note", {"n": number}))
        with open_copy(source, location) as target:
            assert copy_into(source, target).written == 0


def test_copy_to_another_gallery_raises(locate: Locate) -> None:
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


def test_copy_during_an_upgrade_raises(locate: Locate) -> None:
    with Gallery.create(locate(), OLD) as source:
        start(source, to=NEW)
        with pytest.raises(GalleryError, match="in the middle of an upgrade"):
            copy(source, locate())
