"""`midspan gallery adopt` and what follows, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from midspan.spaces import Embeddings
from tests.cli.conftest import Command, midspan, short_look  # noqa: F401
from tests.gallery.adoption.shop import Shop
from tests.gallery.postgres import Postgres
from tests.gallery.samples import NEW, embed


@pytest.fixture
def shop(postgres: Postgres) -> Iterator[Shop]:
    made = Shop(postgres)
    made.insert(*range(40))
    yield made
    made.close()


@pytest.mark.server
@pytest.mark.slow
def test_cli_table_dry_run_upgrade_hand_over_rollback_and_detach_work(
    shop: Shop,
    midspan: Command,  # noqa: F811
    tmp_path: Path,
) -> None:
    columns = ("--table", shop.name, "--uri", "image_url", "--payload", "brand,price")
    given = (shop.location, *columns, "--space-name", "old")
    code, out, err = midspan("gallery", "adopt", *given, "--dry-run")
    assert (code, err) == (0, "")
    assert "nothing was changed" in out
    assert shop.leftovers() == []

    code, out, _ = midspan("gallery", "adopt", *given, "--json")
    assert code == 0
    assert json.loads(out)["items"] == 40
    new = embed([str(key) for key in range(40)], NEW)
    file = tmp_path / "new.npz"
    Embeddings(ids=new.ids, vectors=new.vectors, space=NEW).save(file)
    steps = [
        ("upgrade", "start", shop.location, "--to", file, "--mode", "both"),
        ("upgrade", "run", shop.location, "--embeddings", file),
        ("upgrade", "finish", shop.location, "--hand-over", "--override", "few items"),
    ]
    for step in steps:
        code, out, err = midspan(*step)
        assert code == 0, (out, err)
    ((vector,),) = shop.run(f"SELECT embedding FROM {shop.name} WHERE id = 3")
    assert np.allclose(np.array(vector[1:-1].split(","), np.float32), new.vectors[3])
    code, _, err = midspan("upgrade", "rollback", shop.location)
    assert code == 0, err
    code, out, _ = midspan("gallery", "reconcile", shop.location)
    assert (code, out.split(",")[0]) == (0, "0 items added")
    code, out, err = midspan("gallery", "detach", shop.location, "--keep", f"{shop.name}_new")
    assert code == 0, err
    assert "40 vectors" in out
    assert shop.leftovers() == []
