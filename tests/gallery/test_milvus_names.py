"""What is Milvus' own and needs no server: locations, keys, conditions, requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from midspan.errors import GalleryError, StoreError
from midspan.gallery import Gallery
from midspan.gallery.filters import And, Eq, Exists, In, Not, Or
from midspan.gallery.stores.milvus import connection, server
from midspan.gallery.stores.milvus.place import split_location
from midspan.gallery.stores.milvus.server import Server
from midspan.gallery.stores.milvus.where import where
from midspan.gallery.stores.turns.conditions import Condition
from midspan.gallery.stores.turns.engine import Row, Sought
from midspan.gallery.stores.turns.head import Head
from midspan.gallery.stores.turns.keys import after_item, item_key, trail_key, work_key, work_keys
from midspan.gallery.stores.turns.names import hide_token
from midspan.spaces import FloatArray


def test_a_location_names_server_database_and_gallery() -> None:
    place = split_location("milvus://me:s%40cret@db/shop?database=photos&lease=4")
    assert (place.uri, place.token, place.name) == ("http://db:19530", "me:s@cret", "shop")
    assert (place.database, place.lease) == ("photos", 4.0)
    assert split_location("milvus://[::1]:19531/a_b?tls=true").uri == "https://[::1]:19531"
    for bad in ("db:1/", "db/a__b", "db/Shop", "db/1a", "db/a/b", "db/" + "a" * 41, "db/a_", "/a"):
        with pytest.raises(GalleryError, match="wanted milvus://host:19530/NAME"):
            split_location(f"milvus://{bad}")
    with pytest.raises(GalleryError, match="unknown setting 'table'"):
        split_location("milvus://db/shop?table=x")
    with pytest.raises(GalleryError, match=r"wanted 0.5 to 600"):
        split_location("milvus://db/shop?lease=0")
    with pytest.raises(GalleryError, match=r"lease=long; wanted 0.5 to 600"):
        split_location("milvus://db/shop?lease=long")


def test_settings_of_an_index_are_those_of_its_kind() -> None:
    place = split_location("milvus://db/shop?index=HNSW&M=32&breadth=64&shards=4&partitions=16")
    assert place.index == {"index_type": "HNSW", "params": {"M": 32, "efConstruction": 200}}
    assert (place.shards, place.partitions, place.breadth) == (4, 16, 64)
    assert place.settings == {"index": "HNSW", "M": "32", "shards": "4", "partitions": "16"}
    place = split_location("milvus://db/shop?index=IVF_PQ&nlist=4096&m=32&oversampling=10")
    assert place.index["params"] == {"nlist": 4096, "m": 32, "nbits": 8}
    assert place.oversampling == 10
    for bad, message in (
        ("index=FLAT", "wanted HNSW or IVF_FLAT or IVF_SQ8 or IVF_PQ or DISKANN"),
        ("index=IVF_SQ8&M=32", "unknown setting 'M'"),
        ("index=DISKANN&nlist=4", "unknown setting 'nlist'"),
        ("shards=0", "wanted 1 to 64"),
        ("consistency=none", "wanted strong or bounded or eventually"),
    ):
        with pytest.raises(GalleryError, match=message):
            split_location(f"milvus://db/shop?{bad}")


class Noted(Server):
    """No server: has so many rows, and notes how many queries come in a request."""

    def __init__(self, rows: int) -> None:
        self.rows, self.requests = rows, list[int]()

    def count(self, collection: str, where: Sequence[Condition], *, time: int) -> int:
        return self.rows

    def _search(
        self, collection: str, sought: Sought, *, vectors: Sequence[FloatArray]
    ) -> list[list[Row]]:
        self.requests.append(len(vectors))
        return [[{"pk": int(vector[0])}] for vector in vectors]


@pytest.mark.parametrize(
    ("rows", "index", "requests"),
    [
        (0, None, [7]),
        (10, None, [7]),
        (100, None, [3, 3, 1]),
        (10**6, None, [1] * 7),  # more than one request should do: still one query
        (10**6, {"index_type": "HNSW", "params": {}}, [7]),
    ],
)
def test_a_request_compares_a_limited_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, rows: int, index: dict[str, Any] | None, requests: list[int]
) -> None:
    monkeypatch.setattr(server, "NUMBERS", 300 * 4)
    engine = Noted(rows)
    sought = Sought(
        vectors=[np.full(4, number, np.float32) for number in range(7)],
        where=[],
        metric="dot",
        limit=1,
        index=index,
        exact=True,
        time=0,
    )
    found = engine.search("vectors", sought)
    assert engine.requests == requests
    assert [hits[0]["pk"] for hits in found] == list(range(7))


def test_a_server_that_brings_rows_back_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"Milvus 2\.3\.5-lite at milvus://db/shop brings removed"):
        connection.warn_of("v2.3.5-lite", shown="milvus://db/shop")
    for fine in ("v2.4.15", "2.6.4", "v2.30.1"):
        connection.warn_of(fine, shown="milvus://db/shop")  # warnings are errors here


def test_tokens_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = hide_token("milvus://me:secret@db:1/shop?database=a")
    assert shown == "milvus://me@db:1/shop?database=a"
    monkeypatch.setattr(connection, "SECONDS", 0.3)
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        Gallery.open("milvus://me:secret@127.0.0.1:1/shop")
    assert "secret" not in str(caught.value)


def test_a_head_is_its_name() -> None:
    head = Head("a_shop__1f", "held", 255, 3, 2, 1, 470497970583764995, 256, "0a0b")
    assert head.name == f"a_shop__1f_held_ff_3_2_1_{470497970583764995:x}_100_0a0b"
    assert Head.from_name(head.name) == head
    assert len(dataclasses.replace(head, gallery="x" * 40 + "__12345678").name) < 255
    for other in ("shop", "shop__1f_records", "shop__1f_vectors_0_0_0_0_0_0_0_0"):
        assert Head.from_name(other) is None


def test_keys_stand_in_the_order_of_the_answers() -> None:
    ids = ["a", "a!", "ab", "b", "z", "ä", "日", "🙂", "\U0010ffff", "a b", "A", "0", "~"]
    keys = {item_key(id, stamp): id for id in ids for stamp in (5, 2**60)}
    assert [keys[key] for key in sorted(keys)][::2] == sorted(ids)
    for id in ids:
        assert item_key(id, 2**62) < after_item(id)
        later = [other for other in ids if other > id]
        assert all(after_item(id) < item_key(other, 0) for other in later)
    jobs = [
        (priority, number)
        for priority in (-2.5, -0.0, 0.0, 1e-300, 3.0, 1e300)
        for number in (1, 9)
    ]
    wanted = sorted(jobs, key=lambda job: (-job[0], job[1]))
    keyed = sorted(jobs, key=lambda job: work_key(7, job[0], job[1], 3))
    assert [(p + 0.0, n) for p, n in keyed] == [(p + 0.0, n) for p, n in wanted]
    assert all(work_key(7, p, n, 3).startswith(work_keys(7)) for p, n in jobs)
    assert trail_key(5) > trail_key(6)


def test_only_what_means_the_same_is_translated() -> None:
    assert where(Eq("brand", "acme")) == ('payload["brand"] == "acme"', True)
    sure = In(("a", "b"), (1, 2.5, True))
    assert where(sure)[1]
    assert 'payload["a"]["b"] == true' in where(sure)[0]
    for filter in (
        Eq("brand", None),
        Exists("brand"),
        Not(Eq("brand", "x")),
        Eq("brand", 'quo"te'),
        Eq("brand", "back\\slash"),
        Eq("price", 2**53),
        Eq("0.1", "x"),
        Eq("a/b", 1),
        In("x", ()),
        Or((Eq("a", 1), Exists("b"))),
    ):
        assert where(filter) == ("", False), filter
    condition, certain = where(And((Eq("a", 1), Exists("b"))))
    assert not certain
    assert 'payload["a"] == 1' in condition
