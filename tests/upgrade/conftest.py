"""Every store behind one fixture: whole upgrades run on each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from midspan.gallery import Gallery
from tests.gallery.conftest import SERVER, milvus, postgres
from tests.upgrade.world import OLD, STORES, add, ids, make

__all__ = ["milvus", "postgres"]  # the gallery's own servers, as fixtures of ours


@pytest.fixture(params=[*STORES, pytest.param("postgresql", marks=SERVER)])
def gallery(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gallery]:
    """60 items with old vectors."""
    if request.param != "postgresql":
        with make(request.param, tmp_path) as made:
            yield made
        return
    location = request.getfixturevalue("postgres").location("u" + uuid.uuid4().hex[:12])
    with Gallery.create(location, OLD) as made:
        add(made, ids(60))
        yield made
