"""What a search remembers of items is never older than what was acknowledged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.gallery import Gallery
from midspan.gallery.stores.sqlite import follower, texts
from midspan.gallery.stores.sqlite.store import SqliteStore
from midspan.gallery.stores.sqlite.texts import Texts, payload_of
from midspan.spaces import Embeddings, Space

SPACE = Space(name="s", dim=4, fingerprint="s")
IDS = [f"i{number}" for number in range(40)]


def embeddings(ids: list[str], *, seed: int = 0) -> Embeddings:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((len(ids), 4)).astype(np.float32)
    return Embeddings(ids=np.array(ids), vectors=rows, space=SPACE)


@pytest.fixture
def galleries(tmp_path: Path) -> tuple[Gallery, Gallery]:
    """Two processes' views of one file, as far as SQLite can tell."""
    one = Gallery.create(tmp_path / "g.midspan", SPACE)
    one.add(embeddings(IDS), payloads=[{"n": number} for number in range(40)])
    return one, Gallery.open(tmp_path / "g.midspan")


def seen(gallery: Gallery) -> dict[str, tuple[str | None, object]]:
    hits = gallery.search(embeddings(["q"], seed=9), k=40)[0]
    return {hit.id: (hit.uri, hit.payload) for hit in hits}


def test_changes_of_another_process_are_seen_at_once(galleries: tuple[Gallery, Gallery]) -> None:
    writer, reader = galleries
    assert seen(reader)["i3"] == (None, {"n": 3})
    assert seen(reader)["i3"] == (None, {"n": 3})  # remembered
    writer.annotate({"i3": {"n": "other"}})
    assert seen(reader)["i3"] == (None, {"n": "other"})
    writer.replace(embeddings(["i3"], seed=3), uris=["new.jpg"], payloads=[{}])
    assert seen(reader)["i3"] == ("new.jpg", {})
    writer.delete(["i3"])
    assert seen(reader).keys() == set(IDS) - {"i3"}
    writer.add(embeddings(["i3"], seed=4), uris=["third.jpg"])
    assert seen(reader)["i3"] == ("third.jpg", {})


def test_many_changes_forget_all(
    galleries: tuple[Gallery, Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "FORGET", 5)
    writer, reader = galleries
    seen(reader)
    writer.annotate({id: {"again": True} for id in IDS})
    assert all(payload == {"again": True} for _, payload in seen(reader).values())


def test_a_hit_is_the_callers_own(galleries: tuple[Gallery, Gallery]) -> None:
    writer, reader = galleries
    writer.annotate({"i1": {"deep": {"list": [1]}}, "i2": {"long": "x" * 5000}})
    for _ in range(2):
        for hit in reader.search(embeddings(["q"]), k=40)[0]:
            hit.payload["mine"] = 1
            if hit.id == "i1":
                hit.payload["deep"]["list"].append(2)
    found = seen(reader)
    assert found["i1"] == (None, {"deep": {"list": [1]}})
    assert found["i2"] == (None, {"long": "x" * 5000})
    assert found["i0"] == (None, {"n": 0})


def test_what_was_read_before_a_change_is_not_kept(
    galleries: tuple[Gallery, Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is followed between the reading and the keeping."""
    store = galleries[1].store
    assert isinstance(store, SqliteStore)
    known = Texts(store._database)
    read = known._read

    def slow(items: list[int]) -> dict[int, texts.Text]:
        old = read(items)
        known.forget([])  # somebody followed a change meanwhile
        return old

    monkeypatch.setattr(known, "_read", slow)
    assert known.of([1, 2]).keys() == {1, 2}
    assert known._known == {}
    monkeypatch.setattr(known, "_read", read)
    assert payload_of(known.of([1])[1]) == {"n": 0}
    assert known._known.keys() == {1}


def test_no_more_are_kept_than_allowed(
    galleries: tuple[Gallery, Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "KEPT", 10)
    store = galleries[1].store
    assert isinstance(store, SqliteStore)
    known = Texts(store._database)
    for item in range(1, 41):
        assert known.of([item]).keys() == {item}
        assert len(known._known) <= 10
    assert len(known.of(range(1, 60))) == 40  # by one list of numbers; 41 … are not there
