"""The public API: what a user writes, on each engine."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from midspan.errors import GalleryError, ItemError, SpaceMismatch, UnknownId
from midspan.gallery import Gallery
from midspan.gallery.engines.base import Candidates, SearchRequest
from midspan.gallery.filters import Eq
from midspan.spaces import Embeddings, Space
from tests.gallery.conftest import Locate
from tests.gallery.samples import DIM, NEW, OLD, STRANGER, embed, event, start


def test_gallery_add_search_and_get_work(gallery: Gallery) -> None:
    ids = [f"i{number}" for number in range(50)]
    count = gallery.add(
        embed(ids),
        uris=[f"{id}.png" for id in ids],
        payloads=[{"even": number % 2 == 0} for number in range(50)],
    )
    assert count == len(gallery) == 50
    hits = gallery.search(embed(["i7", "i8"]), k=3)
    assert [row[0].id for row in hits] == ["i7", "i8"]
    assert (hits[0][0].uri, hits[0][0].payload, hits[0][0].space) == (
        "i7.png",
        {"even": False},
        OLD,
    )
    assert hits[0][0].score == pytest.approx(1.0)
    assert hits[0][0].score >= hits[0][1].score >= hits[0][2].score
    assert gallery.get("i7").payload == {"even": False}
    with pytest.raises(UnknownId, match="'nobody' is not in"):
        gallery.get("nobody")


def test_search_typed_and_json_filters_are_equal(gallery: Gallery) -> None:
    ids = [f"i{number}" for number in range(10)]
    gallery.add(embed(ids), payloads=[{"n": number} for number in range(10)])
    typed = gallery.search(embed(["i3"]), filter=Eq("n", 4))
    plain = gallery.search(embed(["i3"]), filter={"n": 4})
    assert typed == plain
    assert [hit.id for hit in typed[0]] == ["i4"]


def test_search_plain_array_requires_a_space(gallery: Gallery) -> None:
    gallery.add(embed(["a", "b"]))
    vector = embed(["b"]).vectors[0]
    assert gallery.search(vector, space=OLD, k=1)[0][0].id == "b"
    with pytest.raises(SpaceMismatch, match="require space="):
        gallery.search(vector)


def test_search_query_of_another_encoder_raises(gallery: Gallery) -> None:
    gallery.add(embed(["a"]))
    with pytest.raises(SpaceMismatch, match="no compatibility between the two is on record"):
        gallery.search(embed(["q"], STRANGER))
    compatible = embed(["q"], NEW)  # trained for it: may search the old vectors as they are
    assert gallery.search(compatible)[0][0].id == "a"


def test_open_with_another_encoder_raises(locate: Locate) -> None:
    location = locate()
    with Gallery.create(location, OLD) as made:
        made.check_encoder(OLD)
        with pytest.raises(SpaceMismatch, match="Two ways out: use the gallery's own encoder, or"):
            made.check_encoder(STRANGER)
    if location.startswith("memory:"):
        return
    with pytest.raises(SpaceMismatch, match="midspan upgrade start"):
        Gallery.open(location, encoder_space=STRANGER)
    with Gallery.open(location, encoder_space=OLD) as again:
        assert again.space == OLD


def test_gallery_replace_put_delete_and_set_payload_work(gallery: Gallery) -> None:
    gallery.add(embed(["a", "b"]), payloads=[{"n": 1}, {"n": 2}])
    with pytest.raises(ItemError, match="already"):
        gallery.add(embed(["a"]))
    gallery.replace(embed(["a"], seed=1), payloads=[{"n": 3}])
    gallery.put(embed(["b", "c"], seed=1))
    gallery.set_payload({"c": {"n": 9}})
    items = gallery.get_many(["a", "b", "c"])
    assert [(item.revision, item.payload) for item in items] == [
        (2, {"n": 3}),
        (2, {}),
        (1, {"n": 9}),
    ]
    assert gallery.delete(["a", "zz"]) == 1
    assert len(gallery) == 2


def test_add_vectors_in_two_spaces_works(gallery: Gallery) -> None:
    gallery.add(embed(["a", "b"]))
    start(gallery)
    gallery.add(embed(["c", "d"], NEW), also=[embed(["c"], OLD)])
    assert gallery.get("c").spaces == (OLD.fingerprint, NEW.fingerprint)
    assert gallery.get("d").spaces == (NEW.fingerprint,)
    with pytest.raises(ItemError, match="a vector for 'x'"):
        gallery.add(embed(["e"], NEW), also=[embed(["x"], OLD)])


def test_add_mismatched_columns_raises(gallery: Gallery) -> None:
    with pytest.raises(ItemError, match="1 uris for 2 items"):
        gallery.add(embed(["a", "b"]), uris=["x"])
    with pytest.raises(ItemError, match="3 payloads for 2 items"):
        gallery.add(embed(["a", "b"]), payloads=[{}, {}, {}])
    assert len(gallery) == 0


def test_add_more_than_one_batch_adds_all(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midspan.gallery.gallery.BATCH", 200)
    rng = np.random.default_rng(0)
    ids = np.array([f"i{number:05}" for number in range(450)])
    rows = rng.standard_normal((450, DIM)).astype(np.float32)
    gallery.add(Embeddings(ids=ids, vectors=rows, space=OLD), uris=list(ids))
    assert len(gallery) == 450
    assert gallery.get("i00432").uri == "i00432"
    expected = [f"i{number:05}" for number in (0, 199, 200, 449)]
    hits = gallery.search(rows[[0, 199, 200, 449]], space=OLD, k=1)
    assert [row[0].id for row in hits] == expected


def test_more_like_leaves_out_the_item_itself(gallery: Gallery) -> None:
    gallery.add(embed([f"i{number}" for number in range(20)]))
    hits = gallery.more_like("i3", k=5)
    expected = gallery.search(embed(["i3"]), k=6)[0][1:]
    assert hits == expected
    assert len(gallery.more_like("i3", k=100)) == 19
    with pytest.raises(UnknownId):
        gallery.more_like("nobody")


def test_info_lists_the_spaces(gallery: Gallery) -> None:
    gallery.add(embed(["a", "b", "c"]))
    start(gallery)
    gallery.add_missing_vectors(embed(["a"], NEW), revisions=[1])
    info = gallery.info()
    assert (info.items, info.by_space, info.failed) == (3, {"new": 1, "old": 2}, 0)
    assert (info.done, info.pending) == (1, 2)
    assert info.upgrade is not None
    assert info.upgrade["mode"] == "direct"
    assert info.stored == {"old": 3, "new": 1}
    assert [space["live"] for space in info.spaces] == [True, True]
    assert info.to_dict()["by_space"] == {"new": 1, "old": 2}


def test_spaces_of_one_name_are_shown_with_their_fingerprints(gallery: Gallery) -> None:
    twin = Space(name="old", dim=DIM, fingerprint="f-twin", compatible_with=("f-old",))
    start(gallery, to=twin)
    assert gallery.info().by_space == {"old (f-twin)": 0, "old (f-old)": 0}


def test_verify_counts_problems(gallery: Gallery) -> None:
    ids = ["a", "b", "c", "d"]
    rows = embed(ids).vectors.copy()
    rows[1] = rows[0]
    rows[2] *= 3
    gallery.add(Embeddings(ids=np.array(ids), vectors=rows, space=OLD))
    report = gallery.verify()
    assert report.ok
    assert report.items == 4
    check = report.spaces[0]
    assert (check.name, check.fingerprint, check.vectors) == ("old", OLD.fingerprint, 4)
    assert (check.unusable, check.unnormalised, check.duplicates) == (0, 1, 1)
    assert report.to_dict()["ok"] is True


def test_verify_finds_unsearchable_items(gallery: Gallery) -> None:
    gallery.add(embed(["a"]))
    state = start(gallery)
    gallery.add(embed(["b"], NEW))
    back = dataclasses.replace(state, live=(OLD.fingerprint,), target=None, upgrade=None)
    gallery.change(back, event=event("rollback"))
    report = gallery.verify()
    assert (report.ok, report.without, report.first_without) == (False, 1, ("b",))
    assert report.problems[0].startswith("1 items have no live vector, first 'b'")
    assert len(report.problems) == 1
    assert report.notes[0].startswith("1 vectors of 'new' are kept from an upgrade")


def test_open_invalid_location_raises(locate: Locate) -> None:
    for location in ("", "ftp://x/y", "  "):
        with pytest.raises(GalleryError):
            Gallery.open(location)


def test_item_replaced_between_engine_and_catalogue_is_found(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its former row is no item any more when the hits are read."""
    gallery.add(embed(["a", "b", "c"]))
    engine = gallery._session.engine
    search, calls = engine.search, 0

    def late(request: SearchRequest) -> list[Candidates]:
        nonlocal calls
        found = search(request)
        calls += 1
        if calls == 1:
            gallery.replace(embed(["b"]))
        return found

    monkeypatch.setattr(engine, "search", late)
    (hits,) = gallery.search(embed(["b"]), k=10)
    assert sorted(hit.id for hit in hits) == ["a", "b", "c"]
