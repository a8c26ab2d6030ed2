"""Indexes on payload fields: the same answers, by the index."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.dialects import postgresql

from midspan.errors import GalleryError
from midspan.gallery import Eq, Filter, Gallery, Range
from midspan.gallery.catalogue.where import indexed_paths
from midspan.gallery.filters import matches
from tests.gallery.conftest import elsewhere_with_postgresql
from tests.gallery.postgres import Postgres
from tests.gallery.samples import OLD, add, drafts, embed, found
from tests.gallery.test_contract_search import FILTERS, PAYLOADS

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def gallery(postgres: Postgres, request: pytest.FixtureRequest) -> Iterator[Gallery]:
    location = elsewhere_with_postgresql(request, "g" + uuid.uuid4().hex[:12])
    with Gallery.create(location, OLD) as made:
        yield made


RARE: list[Filter] = [
    Eq("brand", "b7"),
    Range("price", gte=995),
    Range("day", gt="2024-01-0995"),
    Eq("brand", "b7") & Range("price", lt=500),
]


def plan(gallery: Gallery, condition: Filter) -> str:
    """How the database finds the rows that pass."""
    catalogue = gallery._session.catalogue
    items = catalogue.tables.items
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    statement = str(
        select(items.c.row)
        .where(catalogue.where(condition))
        .compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    )
    with catalogue.reading() as connection:
        lines = connection.execute(text(f"EXPLAIN {statement}".replace(":", "\\:"))).fetchall()
    return "\n".join(str(line) for line in lines)


def test_payload_index_serves_rare_filters(gallery: Gallery) -> None:
    ids = [f"i{number:04}" for number in range(1000)]
    payloads = [
        {"brand": f"b{number}", "price": number, "day": f"2024-01-{number:04}"}
        for number in range(1000)
    ]
    add(gallery, ids, payloads=payloads)
    before = [found(gallery.search(embed(["q"]), k=50, filter=one)) for one in RARE]
    for field in ("brand", "price", "day", "brand"):
        gallery.index_payload(field)
    assert indexed_paths(gallery._session.catalogue) == [("brand",), ("price",), ("day",)]
    for condition in RARE:
        assert "index" in plan(gallery, condition).lower(), condition
    after = [found(gallery.search(embed(["q"]), k=50, filter=one)) for one in RARE]
    assert after == before
    for one, hits in zip(RARE, after, strict=True):
        expected = {id for id, payload in zip(ids, payloads, strict=True) if matches(one, payload)}
        assert set(hits[0]) == expected
    assert gallery.audit_log(limit=1)[0].what == "index payload"


def test_payload_index_filters_equal_the_reference(gallery: Gallery) -> None:
    for field in ("brand", "price", "maker.country", "date", "sold"):
        gallery.index_payload(field)
    ids = [f"p{number}" for number in range(len(PAYLOADS))]
    add(gallery, ids, payloads=PAYLOADS)
    for condition in FILTERS:
        expected = [
            id for id, payload in zip(ids, PAYLOADS, strict=True) if matches(condition, payload)
        ]
        assert [item.id for item in gallery.scan(filter=condition, limit=100)] == expected, (
            condition
        )


@pytest.mark.parametrize("field", ["text", "it's %s :x"])
def test_payload_index_on_long_texts_and_unusual_names_works(gallery: Gallery, field: str) -> None:
    long = "x" * 100_000
    gallery.index_payload((field,))
    values = [long, long + "y", "a"]
    gallery.put_drafts(
        drafts(["a", "b", "c"], [{field: value} for value in values]), [embed(["a", "b", "c"])]
    )

    def passing(condition: Filter) -> list[str]:
        return [item.id for item in gallery.scan(filter=condition, limit=10)]

    assert passing(Eq((field,), long)) == ["a"]
    assert passing(Range((field,), gt=long)) == ["b"]
    assert passing(Range((field,), gte=long)) == ["a", "b"]
    assert passing(Range((field,), lt=long)) == ["c"]


def test_payload_index_in_an_engine_without_them_raises() -> None:
    with (
        Gallery.create("memory:", OLD) as gallery,
        pytest.raises(GalleryError, match="memory has no indexes on payload fields"),
    ):
        gallery.index_payload("brand")


def test_payload_index_in_a_file_raises_with_the_reason(tmp_path: Path) -> None:
    with (
        Gallery.create(tmp_path / "shop.midspan", OLD) as gallery,
        pytest.raises(GalleryError, match="a file needs no indexes on payload fields"),
    ):
        gallery.index_payload("brand")
