"""A table of an application, adopted where it is: reading, capturing, letting go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest

from midspan.errors import GalleryError, MidspanError
from midspan.gallery import Gallery
from midspan.gallery.adoption.postgres_adopt import detach_table, reconcile_table
from midspan.gallery.adoption.postgres_table import TableColumns, survey_table
from midspan.gallery.filters import Eq
from midspan.gallery.location import parse_location
from tests.gallery.adoption.shop import COLUMNS, Shop, backfill, text
from tests.gallery.postgres import Postgres
from tests.gallery.samples import DIM, NEW, OLD, embed, found, start, unit
from tests.gallery.test_pgvector import plans

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def shop(postgres: Postgres) -> Iterator[Shop]:
    made = Shop(postgres)
    yield made
    made.close()


@pytest.fixture
def gallery(shop: Shop) -> Iterator[Gallery]:
    shop.insert(*range(1, 41))
    with shop.adopt() as made:
        yield made


def ids(gallery: Gallery, key: object, *, seed: int = 0, k: int = 3, **settings: Any) -> list[str]:
    of = NEW if gallery.space.fingerprint == NEW.fingerprint else OLD
    query = embed([str(key)], of, seed=seed).vectors
    return found(gallery.search(query, k=k, space=gallery.space, **settings))[0]


# ---- what was there ------------------------------------------------------------------------------


def test_adopted_table_is_found_with_payload_uri_and_filters(shop: Shop, gallery: Gallery) -> None:
    shop.run(f"UPDATE {shop.name} SET brand = 'rare' WHERE id IN (7, 9)")

    item = gallery.get("7")
    hits = gallery.search(embed(["7"], gallery.space), k=1)[0]

    assert len(gallery) == 40
    assert (item.uri, item.payload) == ("img/7.jpg", {"brand": "rare", "price": 5})
    assert (hits[0].id, round(hits[0].score, 5)) == ("7", 1.0)
    assert sorted(ids(gallery, 7, k=10, filter=Eq("brand", "rare"))) == ["7", "9"]
    assert np.array_equal(
        gallery.vectors(["7"], space=gallery.space.fingerprint).vectors,
        embed(["7"], OLD).vectors,
    )
    assert gallery.verify().ok


def test_adopted_table_search_uses_the_table_index(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = unit(np.random.default_rng(0), 4000)
    statement = f"COPY {shop.name} (id, embedding) FROM STDIN"
    with shop.connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row, vector in enumerate(vectors):
            copy.write_row((row, text(vector)))
    shop.index()
    with shop.adopt() as gallery:
        for table in ("adopted", "items"):
            shop.run(f"ANALYZE {shop.gallery_name}_{table}")
        shop.run(f"ANALYZE {shop.name}")
        rough = found(gallery.search(vectors[:20], space=gallery.space, k=10))
        exact = found(gallery.search(vectors[:20], space=gallery.space, k=10, exact=True))

        assert next(iter(gallery.index_status().values())).kind == "hnsw"
        assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rough, exact, strict=True)]) > 0.9
        (plan,) = plans(gallery, monkeypatch)
        assert f"Index Scan using {shop.name}_embedding_idx" in plan


@pytest.mark.parametrize(
    ("kind", "operators"),
    [
        (f"halfvec({DIM})", "halfvec_cosine_ops"),
        (f"vector({DIM})", "vector_l2_ops"),
        ("vector", None),
    ],
)
def test_adopted_table_other_vector_types_are_searched(
    postgres: Postgres, kind: str, operators: str | None
) -> None:
    shop = Shop(postgres, vector=kind)
    shop.insert(*range(30))
    if operators is not None:
        shop.index(operators)
    with shop.adopt(space=None) as gallery:
        assert gallery.space.metric == ("l2" if operators == "vector_l2_ops" else "cosine")
        assert ids(gallery, 4)[0] == "4"
        assert ids(gallery, 4, exact=True) == ids(gallery, 4)
        shop.change(4, seed=2)
        assert ids(gallery, 4, seed=2)[0] == "4"
    shop.close()


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("text", ["a b", "Ünï→✓", "日本", "'\"%s"]),
        ("uuid", ["0188b5a0-0000-7000-8000-000000000001"]),
    ],
)
def test_adopted_table_ids_of_any_text_are_kept(
    postgres: Postgres, kind: str, keys: list[str]
) -> None:
    shop = Shop(postgres, id=kind)
    shop.insert(*keys)
    with shop.adopt() as gallery:
        assert sorted(item.id for item in gallery.scan(limit=10)) == sorted(keys)
        shop.delete(keys[0])
        assert len(gallery) == len(keys) - 1
    shop.close()


def test_adopted_table_null_and_zero_vectors_count_as_missing(shop: Shop) -> None:
    shop.insert(1, 2, 3)
    shop.run(f"UPDATE {shop.name} SET embedding = NULL WHERE id = 1")
    shop.run(f"UPDATE {shop.name} SET embedding = %s WHERE id = 2", text(np.zeros(DIM, np.float32)))
    with shop.adopt() as gallery:
        assert gallery.count().without == 2
        assert ids(gallery, 1, k=3) == ["3"]
        start(gallery, live=(NEW.fingerprint, gallery.space.fingerprint))
        assert backfill(gallery) == 3
        assert gallery.count().without == 0


# ---- what the application does afterwards --------------------------------------------------------


def test_capture_records_application_writes_in_its_transaction(
    shop: Shop, gallery: Gallery
) -> None:
    shop.connection.autocommit = False
    shop.insert(100, 101)
    shop.delete(1)
    shop.change(2, seed=5)
    before = len(gallery), ids(gallery, 2)[0]
    shop.connection.commit()
    shop.connection.autocommit = True

    assert before == (40, "2")
    assert len(gallery) == 41
    assert ids(gallery, 2, seed=5)[0] == "2"
    assert gallery.get("2").revision == 2
    assert ids(gallery, 1)[0] != "1"
    shop.run(f"UPDATE {shop.name} SET stock = stock + 1")  # nothing that the gallery shows
    assert gallery.get("3").revision == 1
    shop.run(f"UPDATE {shop.name} SET id = id + 1000 WHERE id = 101")
    assert [item.id for item in gallery.get_many(["101", "1101"])] == ["1101"]
    shop.run(f"TRUNCATE {shop.name}")
    assert len(gallery) == 0


def test_capture_vector_changed_during_a_backfill_makes_the_new_one_stale(
    shop: Shop, gallery: Gallery
) -> None:
    start(gallery, live=(NEW.fingerprint, gallery.space.fingerprint))
    claimed = gallery.work.claim(worker="w", limit=40, seconds=60)
    shop.change(5, seed=9)  # while the encoder computes
    made = embed([task.item.id for task in claimed], NEW, seed=7)

    written = gallery.add_missing_vectors(made, revisions=[task.item.revision for task in claimed])

    assert written == 39
    assert [task.item.id for task in gallery.work.claim(worker="w", limit=9, seconds=9)] == ["5"]
    shop.change(6, seed=9)  # after it: its new vector goes
    assert NEW.fingerprint not in gallery.get("6").spaces


def test_adopted_table_writes_through_the_gallery_raise(gallery: Gallery) -> None:
    with pytest.raises(GalleryError, match="add, change and delete them there"):
        gallery.add(embed(["x"], gallery.space))
    with pytest.raises(GalleryError, match="add, change and delete them there"):
        gallery.delete(["1"])
    with pytest.raises(GalleryError, match="add, change and delete them there"):
        gallery.set_payload({"1": {}})


def test_capture_failing_never_fails_the_application(shop: Shop, gallery: Gallery) -> None:
    session = gallery._session
    session.maintenance.stop()
    with session.catalogue.database.writing(exclusive=True):  # a change of the state, for long
        shop.run("SET lock_timeout = '50ms'")  # the function has a limit of its own
        shop.insert(50)
    assert len(gallery) == 40

    session.maintenance.run_once()

    assert len(gallery) == 41
    assert ids(gallery, 50)[0] == "50"


def test_reconcile_finds_changes_missed_by_the_trigger(shop: Shop, gallery: Gallery) -> None:
    shop.run(f"ALTER TABLE {shop.name} DISABLE TRIGGER USER")
    shop.insert(60, 61)
    shop.delete(3)
    shop.change(4, seed=3)
    shop.run(f"UPDATE {shop.name} SET brand = 'other' WHERE id = 5")
    shop.run(f"ALTER TABLE {shop.name} ENABLE TRIGGER USER")

    done = reconcile_table(gallery)

    assert (done.added, done.removed, done.replaced, done.annotated) == (2, 1, 1, 1)
    assert ids(gallery, 4, seed=3)[0] == "4"
    assert reconcile_table(gallery).total == 0


# ---- dry run -------------------------------------------------------------------------------------


def test_survey_counts_problems_and_changes_nothing(shop: Shop) -> None:
    shop.insert(1, 2, 3, 4)
    shop.run(f"UPDATE {shop.name} SET embedding = NULL WHERE id = 1")
    shop.run(f"UPDATE {shop.name} SET embedding = (SELECT embedding FROM {shop.name} WHERE id = 3) "
             "WHERE id = 4")  # fmt: skip
    shop.run(f"UPDATE {shop.name} SET embedding = %s WHERE id = 2", text(np.zeros(DIM, np.float32)))
    shop.index()
    before = shop.dump()

    survey = survey_table(parse_location(shop.location), shop.name, COLUMNS)

    assert (survey.rows, survey.dim, survey.metric) == (4, DIM, "cosine")
    assert (survey.without, survey.zero, survey.duplicates) == (1, 1, 1)
    assert "hnsw" in (survey.index or "")
    assert any("zero" in problem for problem in survey.problems)
    assert shop.leftovers() == []
    assert shop.dump() == before


# ---- odd tables ----------------------------------------------------------------------------------


def refused(shop: Shop, match: str, columns: TableColumns = COLUMNS) -> None:
    before = shop.dump()
    for attempt in (
        lambda: survey_table(parse_location(shop.location), shop.name, columns),
        lambda: shop.adopt(columns),
    ):
        with pytest.raises(GalleryError, match=match):
            attempt()
    assert shop.leftovers() == []
    assert shop.dump() == before


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("DROP CONSTRAINT {0}_pkey", "no primary key"),
        ("ALTER COLUMN embedding TYPE text", "expected vector or halfvec"),
        ("ALTER COLUMN id TYPE numeric", "the ids in 'id' are numeric"),
        ("DROP COLUMN brand", "has no column 'brand'"),
        ("RENAME TO {0}_x", "is not there"),
    ],
)
def test_adopt_unfit_table_raises_and_changes_nothing(shop: Shop, change: str, match: str) -> None:
    shop.insert(1, 2)
    shop.run(f"ALTER TABLE {shop.name} {change.format(shop.name)}")
    if "RENAME" in change:
        with pytest.raises(GalleryError, match=match):
            shop.adopt()
        return
    refused(shop, match)


def test_adopt_mixed_dimensions_raise(postgres: Postgres) -> None:
    shop = Shop(postgres, vector="vector")
    shop.insert(1, 2)
    shop.run(f"UPDATE {shop.name} SET embedding = '[1,2,3]' WHERE id = 1")
    refused(shop, "mixes dimensions")
    shop.close()


def test_adopt_view_or_partition_raises(shop: Shop) -> None:
    shop.run(f"CREATE VIEW {shop.name}_v AS SELECT * FROM {shop.name}")
    with pytest.raises(GalleryError, match="is a view"):
        survey_table(parse_location(shop.location), f"{shop.name}_v", COLUMNS)


def test_adopt_role_without_rights_raises_with_the_missing_grants(shop: Shop) -> None:
    shop.insert(1)
    role = f"r{shop.name}"
    shop.run(f"CREATE ROLE {role} LOGIN")
    shop.run(f"GRANT SELECT ON {shop.name} TO {role}")
    location = shop.location.replace("midspan@", f"{role}@")
    with pytest.raises(GalleryError, match="lacks TRIGGER on the table"):
        survey_table(parse_location(location), shop.name, COLUMNS)
    shop.run(f"DROP OWNED BY {role}")
    shop.run(f"DROP ROLE {role}")


def test_capture_application_with_few_rights_can_still_write(shop: Shop, gallery: Gallery) -> None:
    role = f"r{shop.name}"
    shop.run(f"CREATE ROLE {role} LOGIN")
    shop.run(f"GRANT SELECT, INSERT, DELETE ON {shop.name} TO {role}")
    with psycopg.connect(shop.postgres.url().replace("midspan@", f"{role}@")) as connection:
        connection.execute(f"INSERT INTO {shop.name} (id) VALUES (999)")
    assert gallery.get("999").revision == 1
    shop.run(f"DROP OWNED BY {role}")
    shop.run(f"DROP ROLE {role}")


# ---- letting go ----------------------------------------------------------------------------------


def test_detach_restores_the_table_and_keeps_new_vectors_on_request(shop: Shop) -> None:
    shop.insert(*range(10))
    before = shop.dump()
    gallery = shop.adopt()
    start(gallery, live=(NEW.fingerprint, gallery.space.fingerprint))
    backfill(gallery)

    kept = detach_table(gallery, keep=f"{shop.name}_new")

    assert kept == 10
    assert shop.dump() == before
    assert shop.leftovers() == []
    ((vector,),) = shop.run(f"SELECT vector FROM {shop.name}_new WHERE id = 3")
    assert np.allclose(np.fromstring(vector[1:-1], sep=","), embed(["3"], NEW, seed=7).vectors[0])
    with pytest.raises(MidspanError):
        Gallery.open(shop.location)


def test_adopt_again_continues_an_interrupted_adoption(shop: Shop) -> None:
    shop.insert(*range(10))
    with shop.adopt() as gallery:
        assert len(gallery) == 10
    shop.run(f"ALTER TABLE {shop.name} DISABLE TRIGGER USER")
    shop.insert(20)
    with shop.adopt() as gallery:
        assert len(gallery) == 11
