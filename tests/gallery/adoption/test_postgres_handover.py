"""After an upgrade the application reads the new vectors from its own column; and back again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from midspan.errors import GalleryError
from midspan.gallery import Gallery
from midspan.gallery.adoption.postgres_adopt import detach_table, reconcile_table
from midspan.gallery.adoption.postgres_handover import hand_over_table, take_back_table
from midspan.spaces import FloatArray
from midspan.upgrade import Upgrade
from tests.gallery.adoption.shop import Shop, backfill, text
from tests.gallery.postgres import Postgres
from tests.gallery.samples import NEW, OLD, embed, found, start

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def shop(postgres: Postgres) -> Iterator[Shop]:
    made = Shop(postgres)
    made.run(f"ALTER TABLE {made.name} ALTER COLUMN embedding SET NOT NULL")
    made.insert(*range(1, 31))
    made.index()
    yield made
    made.close()


@pytest.fixture
def gallery(shop: Shop) -> Iterator[Gallery]:
    """An upgrade that is finished."""
    with shop.adopt() as made:
        start(made)
        backfill(made)
        Upgrade(made).finish(override="a test")
        yield made


def column(shop: Shop, name: str, key: int) -> FloatArray:
    ((vector,),) = shop.run(f"SELECT {name} FROM {shop.name} WHERE id = %s", key)
    return np.array(vector[1:-1].split(","), dtype=np.float32)


def best(gallery: Gallery, key: int, *, seed: int = 7) -> str:
    return found(gallery.search(embed([str(key)], NEW, seed=seed), k=1))[0][0]


def test_hand_over_renames_the_new_column_to_the_old_name(shop: Shop, gallery: Gallery) -> None:
    done = hand_over_table(gallery)

    assert (done.rows, done.column, done.former) == (30, "embedding", "embedding_before")
    assert np.allclose(column(shop, "embedding", 5), embed(["5"], NEW, seed=7).vectors[0])
    assert np.allclose(column(shop, "embedding_before", 5), embed(["5"], OLD).vectors[0])
    assert best(gallery, 5) == "5"
    assert done.index is not None
    assert gallery.index_status()[NEW.fingerprint].kind == "hnsw"
    new = text(embed(["77"], NEW, seed=7).vectors[0])
    shop.run(f"INSERT INTO {shop.name} (id, embedding) VALUES (77, %s)", new)
    assert best(gallery, 77) == "77"
    assert gallery.count().without == 0
    assert reconcile_table(gallery).total == 0
    with pytest.raises(Exception, match="null value"):
        shop.run(f"INSERT INTO {shop.name} (id) VALUES (78)")


def test_hand_over_undone_restores_the_former_state(shop: Shop, gallery: Gallery) -> None:
    before = shop.run(f"SELECT id, embedding FROM {shop.name} ORDER BY id")
    hand_over_table(gallery)
    new = text(embed(["77"], NEW, seed=7).vectors[0])
    shop.run(f"INSERT INTO {shop.name} (id, embedding) VALUES (77, %s)", new)
    shop.run(f"UPDATE {shop.name} SET embedding = %s WHERE id = 3", new)
    shop.delete(4)

    without = take_back_table(gallery)
    rolled = Upgrade(gallery).rollback()

    assert without == 2  # 77 and 3 have no vector of the old encoder
    assert rolled.without == 2
    after = dict(shop.run(f"SELECT id, embedding FROM {shop.name}"))
    assert all(after[key] == vector for key, vector in before if key not in (3, 4))
    assert after[3] is None
    hits = gallery.search(embed(["5"], OLD), k=1)
    assert found(hits) == [["5"]]
    assert reconcile_table(gallery).total == 0


def test_forget_after_a_hand_over_drops_the_former_column(shop: Shop, gallery: Gallery) -> None:
    hand_over_table(gallery)

    Upgrade(gallery).forget()

    columns = {name for (name,) in shop.run(
        "SELECT column_name FROM information_schema.columns WHERE table_name = %s", shop.name
    )}  # fmt: skip
    assert columns == {"id", "embedding", "image_url", "brand", "price", "stock"}
    assert best(gallery, 5) == "5"
    shop.delete(5)
    assert best(gallery, 5) != "5"
    with pytest.raises(GalleryError, match="nothing was handed over"):
        take_back_table(gallery)


def test_forget_without_a_hand_over_leaves_the_application_its_column(
    shop: Shop, gallery: Gallery
) -> None:
    before = shop.dump()
    Upgrade(gallery).forget()

    assert shop.dump() == before
    shop.insert(50)  # with an old vector, as it always did: to be embedded
    assert gallery.count().pending == 1
    assert backfill(gallery) == 1
    assert best(gallery, 50) == "50"


def test_hand_over_before_finish_is_refused(shop: Shop) -> None:
    with shop.adopt() as gallery:
        with pytest.raises(GalleryError, match="holds the live vectors already"):
            hand_over_table(gallery)
        start(gallery)
        with pytest.raises(GalleryError, match="not finished"):
            hand_over_table(gallery)


def test_hand_over_below_a_view_is_refused(shop: Shop, gallery: Gallery) -> None:
    shop.run(f"CREATE VIEW {shop.name}_v AS SELECT id, embedding FROM {shop.name}")
    with pytest.raises(GalleryError, match=f"{shop.name}_v reads embedding"):
        hand_over_table(gallery)
    shop.run(f"DROP VIEW {shop.name}_v")


def test_hand_over_includes_rows_changed_meanwhile(
    shop: Shop, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    from midspan.gallery.adoption import postgres_handover

    build = postgres_handover._build_index

    def and_write(*arguments: object) -> object:
        shop.change(6, seed=4)
        backfill(gallery)
        return build(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(postgres_handover, "_build_index", and_write)
    hand_over_table(gallery)

    assert reconcile_table(gallery).total == 0
    assert gallery.get("6").revision == 2
    assert best(gallery, 6) == "6"


def test_detach_after_a_hand_over_leaves_the_new_vectors_in_the_table(
    shop: Shop, gallery: Gallery
) -> None:
    hand_over_table(gallery)
    detach_table(gallery)

    assert shop.leftovers() == []
    assert np.allclose(column(shop, "embedding", 5), embed(["5"], NEW, seed=7).vectors[0])
    assert np.allclose(column(shop, "embedding_before", 5), embed(["5"], OLD).vectors[0])
