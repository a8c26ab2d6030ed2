"""The contract, first part: items in and out."""

from __future__ import annotations

import time

import numpy as np
import pytest

from midspan.errors import (
    GalleryError,
    ItemError,
    SpaceMismatch,
    StoreError,
    UnknownId,
    VectorError,
)
from midspan.gallery import Failed, Gallery
from midspan.gallery.filters import Eq
from midspan.gallery.records import Draft
from midspan.spaces import Embeddings, Space
from tests.gallery.samples import NEW, OLD, STRANGER, WIDE, add, drafts, embed, event, found, view
from tests.gallery.samples import start as start_upgrade


def test_add_then_get_returns_the_same_items(gallery: Gallery) -> None:
    before = time.time()
    payload = {"brand": "åcme", "price": 3.5, "tags": ["a", None], "deep": {"x": {"y": True}}}
    gallery.put_drafts(
        [Draft("a", uri="s3://bucket/a.jpg", payload=payload), Draft("b")],
        [embed(["b", "a"])],
        mode="add",
    )
    first, second = gallery.get_many(["a", "b"])
    assert (first.id, first.uri, first.payload) == ("a", "s3://bucket/a.jpg", payload)
    assert (first.revision, first.spaces) == (1, (OLD.fingerprint,))
    assert before - 0.01 <= first.created == first.changed <= time.time() + 0.01
    assert (second.uri, second.payload) == (None, {})


def test_get_and_vectors_keep_the_given_order_and_skip_missing_ids(
    gallery: Gallery,
) -> None:
    add(gallery, ["a", "b", "c"])
    assert [item.id for item in gallery.get_many(["c", "zz", "a"])] == ["c", "a"]
    vectors = gallery.vectors(["c", "zz", "a"], space=OLD.fingerprint)
    assert vectors.ids.tolist() == ["c", "a"]
    np.testing.assert_array_equal(vectors.vectors, embed(["c", "a"]).vectors)
    assert len(gallery.vectors(["zz"], space=OLD.fingerprint)) == 0
    assert gallery.get_many([]) == []


def test_vectors_are_kept_bit_for_bit(gallery: Gallery) -> None:
    rows = np.random.default_rng(3).standard_normal((20, OLD.dim)).astype(np.float32) * 1e-3
    ids = [f"v{row}" for row in range(20)]
    given = Embeddings(ids=np.array(ids), vectors=rows, space=OLD)
    gallery.put_drafts(drafts(ids), [given], mode="add")
    kept = gallery.vectors(ids, space=OLD.fingerprint)
    assert kept.vectors.tobytes() == rows.tobytes()


def test_add_existing_id_raises_and_writes_nothing(gallery: Gallery) -> None:
    add(gallery, ["a"])
    with pytest.raises(ItemError, match="1 of 2 ids are in the gallery already, first 'a'"):
        gallery.put_drafts(drafts(["b", "a"]), [embed(["b", "a"])], mode="add")
    assert gallery.get_many(["b"]) == []
    assert gallery.count().items == 1


def test_replace_gives_a_new_revision_and_drops_former_vectors(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start_upgrade(gallery)
    gallery.add_missing_vectors(embed(["a"], NEW), revisions=[1])
    created = gallery.get_many(["a"])[0].created
    gallery.put_drafts([Draft("a", payload={"v": 2})], [embed(["a"], NEW, seed=5)], mode="replace")
    item = gallery.get_many(["a"])[0]
    assert (item.revision, item.payload, item.uri) == (2, {"v": 2}, None)
    assert item.created == created
    assert item.spaces == (NEW.fingerprint,)  # the old vector was of another image
    np.testing.assert_array_equal(
        gallery.vectors(["a"], space=NEW.fingerprint).vectors, embed(["a"], NEW, seed=5).vectors
    )


def test_replace_unknown_id_raises(gallery: Gallery) -> None:
    add(gallery, ["a"])
    with pytest.raises(ItemError, match="1 of 2 ids are not in the gallery, first 'b'"):
        gallery.put_drafts(drafts(["a", "b"]), [embed(["a", "b"])], mode="replace")
    assert gallery.get_many(["a"])[0].revision == 1


def test_put_adds_and_replaces(gallery: Gallery) -> None:
    add(gallery, ["a"])
    gallery.put_drafts(drafts(["a", "b"]), [embed(["a", "b"], seed=1)], mode="put")
    assert [(item.id, item.revision) for item in gallery.get_many(["a", "b"])] == [
        ("a", 2),
        ("b", 1),
    ]


def test_put_drafts_with_times_keeps_them(gallery: Gallery) -> None:
    gallery.put_drafts([Draft("a", created=100.5, changed=200.25)], [embed(["a"])], mode="put")
    item = gallery.get_many(["a"])[0]
    assert (item.created, item.changed) == (100.5, 200.25)


def test_delete_removes_items_and_vectors(gallery: Gallery) -> None:
    add(gallery, ["a", "b", "c"])
    assert gallery.delete(["a", "nobody", "c", "a"]) == 2
    assert gallery.delete(["a"]) == 0
    assert gallery.count().items == 1
    assert gallery.count().stored == {OLD.fingerprint: 1}
    assert found(view(gallery, embed(["a"]).vectors)) == [["b"]]
    add(gallery, ["a"], seed=2)  # the id is free again, from revision 1
    assert gallery.get_many(["a"])[0].revision == 1
    assert found(view(gallery, embed(["a"], seed=2).vectors, k=1)) == [["a"]]


def test_set_payload_changes_the_payload_only(gallery: Gallery) -> None:
    add(gallery, ["a", "b"], payloads=[{"n": 1}, {"n": 2}])
    gallery.set_payload({"a": {"n": 7}})
    item = gallery.get_many(["a"])[0]
    assert (item.payload, item.revision, item.spaces) == ({"n": 7}, 1, (OLD.fingerprint,))
    assert item.changed >= item.created
    hits = view(gallery, embed(["a"]).vectors, filter=Eq("n", 7))[0]
    assert [(hit.id, hit.payload) for hit in hits] == [("a", {"n": 7})]
    with pytest.raises(UnknownId, match="first 'zz'"):
        gallery.set_payload({"a": {"n": 8}, "zz": {}})
    assert gallery.get_many(["a"])[0].payload == {"n": 7}


def test_add_missing_vectors_writes_once_for_the_matching_revision(gallery: Gallery) -> None:
    add(gallery, ["a", "b", "c"])
    start_upgrade(gallery)
    gallery.put_drafts(drafts(["b"]), [embed(["b"], seed=1)], mode="replace")
    gallery.delete(["c"])
    assert gallery.add_missing_vectors(embed(["a", "b", "c"], NEW), revisions=[1, 1, 1]) == 1
    assert (
        gallery.add_missing_vectors(embed(["a", "b", "c"], NEW, seed=9), revisions=[1, 2, 1]) == 1
    )
    np.testing.assert_array_equal(  # never overwritten
        gallery.vectors(["a"], space=NEW.fingerprint).vectors, embed(["a"], NEW).vectors
    )
    assert gallery.get_many(["a"])[0].spaces == (OLD.fingerprint, NEW.fingerprint)


def test_add_missing_vectors_with_too_few_revisions_raises(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start_upgrade(gallery)
    with pytest.raises(ItemError, match="1 revisions for 2 vectors"):
        gallery.add_missing_vectors(embed(["a", "b"], NEW), revisions=[1])
    assert gallery.count().stored[NEW.fingerprint] == 0


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (STRANGER, "which this gallery does not know; it holds 'old'"),
        (Space(name="old", dim=4, fingerprint="f-old"), "which this gallery does not know"),
        (WIDE, "start an upgrade to the other"),
    ],
)
def test_add_vectors_of_another_space_raises(gallery: Gallery, space: Space, message: str) -> None:
    with pytest.raises(SpaceMismatch, match=message):
        add(gallery, ["a"], space)
    add(gallery, ["b"])
    with pytest.raises(SpaceMismatch, match=message):
        gallery.add_missing_vectors(embed(["b"], space), revisions=[1])
    assert gallery.count().items == 1


def test_add_items_and_vectors_that_do_not_match_raise(gallery: Gallery) -> None:
    with pytest.raises(ItemError, match="1 of 2 items come without a vector, first 'b'"):
        gallery.put_drafts(drafts(["a", "b"]), [embed(["a"])], mode="add")
    with pytest.raises(ItemError, match="a vector for 'b', which is none of the items"):
        gallery.put_drafts(drafts(["a"]), [embed(["a", "b"])], mode="add")
    with pytest.raises(ItemError, match="give each item once"):
        gallery.put_drafts(drafts(["a", "a"]), [embed(["a"])], mode="add")
    with pytest.raises(ItemError, match="two sets of vectors"):
        gallery.put_drafts(drafts(["a"]), [embed(["a"]), embed(["a"])], mode="add")
    assert gallery.count().items == 0


def test_add_vectors_too_long_to_compare_raises(gallery: Gallery) -> None:
    long = Embeddings(
        ids=np.array(["a"]), vectors=np.full((1, OLD.dim), 1e30, np.float32), space=OLD
    )
    with pytest.raises(VectorError, match="scale it"):
        gallery.put_drafts(drafts(["a"]), [long], mode="add")


def test_add_hostile_ids_and_payloads_are_kept_unchanged(gallery: Gallery) -> None:
    ids = [
        "../../etc/passwd",
        "'; DROP TABLE items; --",
        "日本語 🙂",
        "a" * 512,
        "%s %(x)s {} $1",
        '"',
    ]
    payload = {"'; --": "\\\"'\n\t", "ключ": {"$x": [1, {'a"b': "\u2028"}]}, "": 0, "big": 2**62}
    add(gallery, ids, payloads=[payload] * len(ids))
    assert {item.id: item.payload for item in gallery.get_many(ids)} == dict.fromkeys(ids, payload)
    assert [item.id for item in gallery.scan(after="", limit=10)] == sorted(ids)
    for id in ids:
        hits = view(gallery, embed([id]).vectors, k=1)[0]
        assert (hits[0].id, hits[0].payload) == (id, payload)
    assert gallery.delete(ids) == len(ids)


def test_lookups_of_impossible_ids_find_nothing(gallery: Gallery) -> None:
    add(gallery, ["a"])
    start_upgrade(gallery)
    odd = ["", "\0", "a\0", "\ud800", "x" * 100_000, "a\n"]
    assert [item.id for item in gallery.get_many([*odd, "a"])] == ["a"]
    assert gallery.vectors([*odd, "a"], space=OLD.fingerprint).ids.tolist() == ["a"]
    gallery.work.prioritise(odd, [1.0] * len(odd))
    gallery.work.fail([Failed(id, 1, "x") for id in odd], retry_after=None)
    with pytest.raises(UnknownId):
        gallery.set_payload({"\ud800": {}})
    for cursor in odd[1:]:
        with pytest.raises(ItemError, match="item id"):
            gallery.scan(after=cursor, limit=5)
        with pytest.raises(ItemError, match="item id"):
            gallery.work.failures(after=cursor, limit=5)
    assert gallery.delete(odd) == 0
    assert gallery.count().items == 1


def test_add_payload_of_one_megabyte_is_kept(gallery: Gallery) -> None:
    payload = {"text": "x" * (2**20 - 20)}
    add(gallery, ["a"], payloads=[payload])
    assert gallery.get_many(["a"])[0].payload == payload


def test_scan_pages_by_id_with_a_cursor(gallery: Gallery) -> None:
    ids = [f"i{number:03}" for number in range(25)]
    add(gallery, ids[::-1], payloads=[{"even": number % 2 == 0} for number in range(25)][::-1])
    start_upgrade(gallery)
    gallery.add_missing_vectors(embed(ids[:10], NEW), revisions=[1] * 10)
    seen: list[str] = []
    while page := gallery.scan(after=seen[-1] if seen else "", limit=7):
        seen += [item.id for item in page]
    assert seen == ids
    evens = gallery.scan(filter=Eq("even", True), after="i004", limit=3)
    assert [item.id for item in evens] == ["i006", "i008", "i010"]
    left = gallery.scan(filter=Eq("even", False), missing=NEW.fingerprint, after="", limit=2)
    assert [item.id for item in left] == ["i011", "i013"]
    with pytest.raises(SpaceMismatch, match="does not know"):
        gallery.scan(filter=None, missing="f-nobody", after="", limit=2)
    with pytest.raises(GalleryError, match="limit = 0"):
        gallery.scan(after="", limit=0)


def test_closed_gallery_raises_store_error(gallery: Gallery) -> None:
    add(gallery, ["a"])
    gallery.close()
    gallery.close()  # twice does no harm
    with pytest.raises(StoreError, match="closed"):
        gallery.get_many(["a"])
    with pytest.raises(StoreError, match="closed"):
        add(gallery, ["b"])


def test_sequence_grows_with_each_write(gallery: Gallery) -> None:
    numbers = [gallery.sequence()]
    for write in (
        lambda: add(gallery, ["a", "b"]),
        lambda: gallery.set_payload({"a": {"x": 1}}),
        lambda: start_upgrade(gallery),
        lambda: gallery.add_missing_vectors(embed(["a"], NEW), revisions=[1]),
        lambda: gallery.delete(["b"]),
        lambda: gallery.record(event("note")),
    ):
        write()
        numbers.append(gallery.sequence())
    assert numbers == sorted(set(numbers))
