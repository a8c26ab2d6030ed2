"""The contract, second part: search, against a reference written from the definitions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from midspan.errors import GalleryError, SpaceMismatch, VectorError
from midspan.gallery import Gallery
from midspan.gallery.filters import And, Eq, Exists, Filter, In, Not, Or, Range, matches
from midspan.spaces import Embeddings, FloatArray, Space
from tests.gallery.conftest import VECTORS, Locate, engines, locator
from tests.gallery.samples import (
    DIM,
    NEW,
    OLD,
    WIDE,
    add,
    drafts,
    embed,
    event,
    found,
    start,
    unit,
    view,
)


@pytest.fixture(params=engines(("memory", *VECTORS)))
def locate(request: pytest.FixtureRequest) -> Locate:
    """The reference and every engine."""
    return locator(request)


def slow_search(
    rows: dict[str, FloatArray], query: FloatArray, *, k: int, metric: str
) -> list[tuple[str, float]]:
    """Cosine, inner product or minus squared distance, in float64, one pair at a time."""
    pairs = []
    for id, row in rows.items():
        a, b = query.astype(np.float64), row.astype(np.float64)
        if metric == "cosine":
            score = float(a @ b / np.sqrt((a @ a) * (b @ b)))
        else:
            score = float(a @ b) if metric == "dot" else -float(((a - b) ** 2).sum())
        pairs.append((id, score))
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("exact", [True, False])
def test_search_equals_the_definition(locate: Locate, metric: Any, exact: bool) -> None:
    rng = np.random.default_rng(1)
    space = Space(name="s", dim=DIM, metric=metric)
    ids = [f"i{number:03}" for number in range(200)]
    rows = (rng.standard_normal((200, DIM)) * rng.uniform(0.5, 2, (200, 1)) + 1).astype(np.float32)
    gallery = Gallery.create(locate(), space)
    given = Embeddings(ids=np.array(ids), vectors=rows, space=space)
    gallery.put_drafts(drafts(ids), [given], mode="add")
    queries = rng.standard_normal((7, DIM)).astype(np.float32) + 1
    hits = view(gallery, queries, k=13, exact=exact)
    by_id = dict(zip(ids, rows, strict=True))
    for query, got in zip(queries, hits, strict=True):
        wanted = slow_search(by_id, query, k=13, metric=metric)
        assert [hit.id for hit in got] == [id for id, _ in wanted]
        np.testing.assert_allclose(
            [hit.score for hit in got], [score for _, score in wanted], rtol=1e-5, atol=1e-6
        )
        assert all(hit.space == space for hit in got)
    gallery.close()


def test_search_equal_scores_are_ordered_by_id(gallery: Gallery) -> None:
    ids = [f"d{number:03}" for number in range(60)]
    same = np.repeat(embed(["x"]).vectors, 60, axis=0)
    order = np.random.default_rng(0).permutation(60)
    shuffled = [ids[row] for row in order]
    gallery.put_drafts(
        drafts(shuffled),
        [Embeddings(ids=np.array(shuffled), vectors=same, space=OLD)],
        mode="add",
    )
    hits = view(gallery, same[0], k=7)[0]
    assert [hit.id for hit in hits] == ids[:7]
    assert len({hit.score for hit in hits}) == 1


def test_search_cosine_ignores_the_length_of_the_query(gallery: Gallery) -> None:
    add(gallery, ["a", "b", "c"])
    query = embed(["b"]).vectors
    one, other = view(gallery, np.concatenate([query, query * 1000]))
    assert [hit.id for hit in one] == [hit.id for hit in other]
    assert one[0].score == pytest.approx(1.0)
    np.testing.assert_allclose([h.score for h in one], [h.score for h in other], atol=1e-6)


def test_search_threshold_and_k_limit_the_hits(gallery: Gallery) -> None:
    add(gallery, [f"i{number}" for number in range(20)])
    query = embed(["i3"]).vectors
    every = view(gallery, query, k=100)[0]
    assert len(every) == 20
    cut = every[4].score
    above = gallery.search(query, space=OLD, k=100, threshold=cut)[0]
    assert above == every[:5]
    assert gallery.search(query, space=OLD, k=100, threshold=1.5) == [[]]


def test_search_empty_gallery_gives_no_hits(gallery: Gallery) -> None:
    assert view(gallery, unit(np.random.default_rng(0), 3)) == [[], [], []]
    assert view(gallery, np.empty((0, DIM), np.float32)) == []


# ---- live rule


def test_search_first_live_space_takes_precedence(gallery: Gallery) -> None:
    ids = ["a", "b", "c", "d"]
    add(gallery, ids)
    start(gallery)
    gallery.add_missing_vectors(embed(["b", "d"], NEW), revisions=[1, 1])
    hits = {hit.id: hit for hit in view(gallery, embed(["b"], NEW).vectors)[0]}
    assert hits.keys() == set(ids)  # each once
    assert {id: hit.space.name for id, hit in hits.items()} == {
        "a": "old",
        "b": "new",
        "c": "old",
        "d": "new",
    }
    assert hits["b"].score == pytest.approx(1.0)


def test_search_restricted_to_a_space_or_with_superseded_rows(gallery: Gallery) -> None:
    ids = ["a", "b", "c", "d"]
    add(gallery, ids)
    start(gallery)
    gallery.add_missing_vectors(embed(["b", "d"], NEW), revisions=[1, 1])
    query = embed(["b"]).vectors
    parts = {
        space.name: found(view(gallery, query, among=(space.fingerprint,)))[0]
        for space in (OLD, NEW)
    }
    assert {name: sorted(part) for name, part in parts.items()} == {
        "old": ["a", "c"],
        "new": ["b", "d"],
    }
    before = view(gallery, query, live=(OLD.fingerprint,))[0]
    assert {hit.id for hit in before} == set(ids)
    assert {hit.space.name for hit in before} == {"old"}
    assert before[0].id == "b"
    assert before[0].score == pytest.approx(1.0)


def test_search_spaces_of_other_dims_are_searched_separately(gallery: Gallery) -> None:
    add(gallery, ["a", "b", "c"])
    start(gallery, to=WIDE)
    gallery.add_missing_vectors(embed(["c"], WIDE), revisions=[1])
    live = gallery.state.live
    old = view(gallery, embed(["c"]).vectors, among=(OLD.fingerprint,))
    assert sorted(found(old)[0]) == ["a", "b"]
    wide = view(gallery, embed(["c"], WIDE).vectors, among=(WIDE.fingerprint,))
    assert found(wide) == [["c"]]
    with pytest.raises(SpaceMismatch, match="one by one through a bridge"):
        view(gallery, embed(["c"]).vectors, among=live)


def test_rollback_is_one_change_and_restores_the_old_answers(gallery: Gallery) -> None:
    ids = [f"i{number}" for number in range(30)]
    add(gallery, ids)
    queries = embed(["q1", "q2", "q3"]).vectors
    before = view(gallery, queries)
    start(gallery)
    gallery.add_missing_vectors(embed(ids, NEW), revisions=[1] * 30)
    during = view(gallery, queries)
    assert {hit.space.name for hits in during for hit in hits} == {"new"}
    state = gallery.state
    gallery.change(
        dataclasses.replace(state, live=(OLD.fingerprint,), target=None, upgrade=None),
        event=event("upgrade rollback"),
    )
    assert view(gallery, queries) == before


def test_dropped_space_vectors_are_gone_and_answers_unchanged(gallery: Gallery) -> None:
    ids = [f"i{number}" for number in range(10)]
    add(gallery, ids)
    state = start(gallery)
    gallery.add_missing_vectors(embed(ids, NEW), revisions=[1] * 10)
    during = view(gallery, embed(["q"], NEW).vectors)
    with pytest.raises(GalleryError, match="is in use"):
        gallery.drop_vectors(OLD.fingerprint)
    state = gallery.change(
        dataclasses.replace(state, live=(NEW.fingerprint,), target=None, upgrade=None),
        event=event("upgrade finish"),
    )
    rest = dataclasses.replace(state, spaces={NEW.fingerprint: NEW})
    with pytest.raises(GalleryError, match=r"10 vectors of 'old'.*drop them"):
        gallery.change(rest, event=event("forget"))
    assert gallery.drop_vectors(OLD.fingerprint, event=event("drop")) == 10
    assert gallery.state.spaces == {NEW.fingerprint: NEW}
    assert gallery.audit_log(limit=1)[0].what == "drop"
    assert gallery.get_many(["i3"])[0].spaces == (NEW.fingerprint,)
    assert view(gallery, embed(["q"], NEW).vectors) == during
    start(gallery, to=OLD)  # and it may come back, empty
    assert gallery.count().stored == {NEW.fingerprint: 10, OLD.fingerprint: 0}
    gallery.add_missing_vectors(embed(["i3"], OLD), revisions=[1])
    hits = {hit.id: hit.space.name for hit in view(gallery, embed(["q"]).vectors)[0]}
    assert hits == {id: "old" if id == "i3" else "new" for id in ids}


# ---- filters


PAYLOADS: list[dict[str, Any]] = [
    {"brand": "acme", "price": 5, "maker": {"country": "DE", "year": 1999}, "sold": True},
    {"brand": "acme", "price": 5.0, "sold": False, "maker": {"country": None}},
    {"brand": "Acme", "price": "5", "sold": 1, "maker": "nobody"},
    {"brand": "zebra", "price": -2.5, "sold": "true", "maker": ["DE"]},
    {"brand": None, "price": 2**53 + 1, "date": "2024-05-01"},
    {"brand": "ä", "date": "2024-06-30", "a.b": 3, "price": 2**53},
    {"brand": ["acme"], "price": True, "date": 20240501},
    {"": 1, "brand": {"acme": 1}, "0": {"1": "x"}},
    {},
]
FILTERS: list[Filter] = [
    Eq("brand", "acme"),
    Eq("brand", None),
    Eq("brand", "' OR 1=1 --"),
    Eq("price", 5),
    Eq("price", 5.0),
    Eq("price", "5"),
    Eq("price", 2**53 + 1),
    Eq("sold", True),
    Eq("sold", 1),
    Eq("maker.country", "DE"),
    Eq("maker.country", None),
    Eq(("a.b",), 3),
    Eq("a.b", 3),
    Eq("0.1", "x"),
    In("brand", ("acme", "zebra", None)),
    In("price", (5, "5", True)),
    In("price", ()),
    Exists("maker"),
    Exists("maker.country"),
    Exists("nothing.at.all"),
    Range("price", gt=-3, lte=5),
    Range("price", gte=5, lt=5.5),
    Range("price", gt=2**53),
    Range("price", gte="0"),
    Range("date", gte="2024-05-02"),
    Range("brand", gt="a"),
    Range("brand", lt="a"),
    ~Eq("brand", "acme"),
    ~Range("price", gt=0),
    Eq("brand", "acme") & ~Eq("sold", True),
    Eq("sold", False) | Exists("date"),
    And((Or((Eq("brand", "acme"), Exists("date"))), Not(Exists("maker")))),
]


def test_filters_equal_the_reference(gallery: Gallery) -> None:
    ids = [f"p{number}" for number in range(len(PAYLOADS))]
    add(gallery, ids, payloads=PAYLOADS)
    for condition in FILTERS:
        wanted = [
            id for id, payload in zip(ids, PAYLOADS, strict=True) if matches(condition, payload)
        ]
        scanned = gallery.scan(filter=condition, after="", limit=100)
        assert [item.id for item in scanned] == wanted, condition
        for exact in (True, False):
            hits = view(gallery, embed(["q"]).vectors, k=100, filter=condition, exact=exact)
            assert sorted(found(hits)[0]) == wanted, condition


def test_filter_follows_changed_payloads(gallery: Gallery) -> None:
    ids = [f"p{number}" for number in range(20)]
    add(gallery, ids, payloads=[{"n": number % 2} for number in range(20)])

    def passing() -> list[str]:
        return found(gallery.search(embed(["q"]), k=100, filter=Eq("n", 1)))[0]

    assert len(passing()) == 10
    gallery.set_payload({"p0": {"n": 1}, "p1": {}})
    gallery.delete(["p3"])
    gallery.put_drafts(
        drafts(["p5", "new"], [{"n": 0}, {"n": 1}]), [embed(["p5", "new"], seed=4)], mode="put"
    )
    wanted = {f"p{n}" for n in range(7, 20, 2)} | {"p0", "new"}
    assert set(passing()) == wanted


# ---- bad queries


# refused above the engines: one of them is enough
@pytest.mark.parametrize("locate", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("vectors", "k", "error", "message"),
    [
        (np.ones((1, DIM + 1), np.float32), 5, VectorError, r"shape \(1, 9\).*requires \(Q, 8\)"),
        (np.zeros((1, DIM), np.float32), 5, VectorError, "length zero, which"),
        (np.full((1, DIM), np.nan, np.float32), 5, VectorError, "NaN"),
        (np.full((1, DIM), np.inf, np.float32), 5, VectorError, "NaN or infinite"),
        (np.ones((1, DIM), np.float32), 0, GalleryError, "k = 0"),
        (np.ones((1, DIM), np.float32), 10**9, GalleryError, "from 1 to 10,000"),
    ],
)
def test_search_invalid_queries_raise(
    gallery: Gallery, vectors: FloatArray, k: int, error: type[Exception], message: str
) -> None:
    add(gallery, ["a"])
    with pytest.raises(error, match=message):
        gallery.search(vectors, space=OLD, k=k)
