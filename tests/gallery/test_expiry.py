"""Items with an end: a payload field says when, and whoever has the gallery open removes them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from midspan.errors import GalleryError, ItemError
from midspan.gallery import Gallery, maintenance
from tests.cli.conftest import Command, midspan  # noqa: F401
from tests.gallery.conftest import Locate
from tests.gallery.samples import OLD, embed, found, start

IDS = ["past", "future", "never", "text"]


def fill(gallery: Gallery) -> None:
    gallery._session.maintenance.close()  # which would be faster than the tests
    now = time.time()
    payloads: list[Any] = [{"until": now - 5}, {"until": now + 1000}, {}, {"until": "tomorrow"}]
    gallery.add(embed(IDS), payloads=payloads)


def left(gallery: Gallery) -> set[str]:
    hits = set(found(gallery.search(embed(["past"]), k=10))[0])
    assert hits == {item.id for item in gallery.scan(limit=10)}
    assert len(gallery) == gallery.count().items == len(hits)
    return hits


def test_expired_items_are_in_no_answer_and_no_count(locate: Locate) -> None:
    with Gallery.create(locate(), OLD) as gallery:
        fill(gallery)
        assert gallery.expire() == 0  # nobody has said by which field
        gallery.expire_by("until")
        assert gallery.expire() == 1
        assert left(gallery) == {"future", "never", "text"}
        assert gallery.expire() == 0
        gallery.set_payload({"never": {"until": 1}})
        assert gallery.expire() == 1
        gallery.expire_by(None)
        gallery.set_payload({"future": {"until": 1}})
        assert gallery.expire() == 0
        assert gallery.audit_log(limit=1, what="expire by")[0].details == {"field": None}


def test_expired_items_leave_the_work_list(gallery: Gallery) -> None:
    fill(gallery)
    start(gallery)
    gallery.expire_by("until")
    assert gallery.expire() == 1
    counts = gallery.count()
    assert (counts.items, counts.pending) == (3, 3)
    assert gallery.garbage() == 0


def test_more_items_than_one_transaction_takes(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery._session.maintenance.close()
    monkeypatch.setattr(maintenance, "EXPIRED", 7)
    gallery.expire_by("end.at")
    ids = [f"i{number}" for number in range(30)]
    gallery.add(embed(ids), payloads=[{"end": {"at": 1}}] * 29 + [{"end": {"at": 1e12}}])
    assert gallery.expire() == 29
    assert left(gallery) == {"i29"}


def test_open_gallery_removes_expired_items_in_the_background(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "EXPIRE_SECONDS", 0.0)
    fill(gallery)
    gallery.expire_by("until")
    gallery._session.maintenance.look()  # as its thread does
    assert left(gallery) == {"future", "never", "text"}


def test_expiry_invalid_field_raises(gallery: Gallery) -> None:
    for field in ("", "a..b"):
        with pytest.raises(ItemError):
            gallery.expire_by(field)


def test_cli_sets_the_expiry_field_and_removes(
    tmp_path: Path,
    midspan: Command,  # noqa: F811
) -> None:
    shop = tmp_path / "shop.midspan"
    with Gallery.create(shop, OLD) as gallery:
        fill(gallery)
    code, _, err = midspan("gallery", "expire", shop)
    assert code == 2
    assert "--field" in err
    code, out, _ = midspan("gallery", "expire", shop, "--field", "until", "--json")
    assert (code, json.loads(out)) == (0, {"field": "until", "removed": 1})
    code, out, _ = midspan("gallery", "expire", shop, "--json")
    assert (code, json.loads(out)) == (0, {"field": "until", "removed": 0})
    code, out, _ = midspan("gallery", "expire", shop, "--off", "--json")
    assert (code, json.loads(out)) == (0, {"field": None, "removed": 0})


def test_expiry_in_an_adopted_gallery_raises(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gallery, "owner", "table products")
    with pytest.raises(GalleryError, match="delete them there"):
        gallery.expire_by("until")
