"""The first minutes: an empty gallery, query images that stay, the original of an item."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from midspan.gallery import Gallery
from tests.service.page.conftest import SIZES, Served, Visitor, settings_of
from tests.service.page.shop import Shop
from tests.service.page.test_search import results

pytestmark = [pytest.mark.slow, pytest.mark.server]


@pytest.fixture
def empty(shop: Shop, tmp_path: Path) -> Shop:
    with Gallery.open(shop.location) as gallery:
        space = gallery.space
    Gallery.create(tmp_path / "empty.midspan", space).close()
    return dataclasses.replace(shop, location=str(tmp_path / "empty.midspan"))


@pytest.mark.parametrize("look", SIZES)
def test_an_empty_gallery_is_filled_from_the_page(
    empty: Shop, served: Served, visitor: Visitor, look: dict[str, object], tmp_path: Path
) -> None:
    visit = visitor(served(settings_of(empty)), ready="#first-pick", expected=("404",), **look)
    page = visit.page
    assert visit.overflow() <= 0
    page.click("#first-samples")
    page.wait_for_selector("#grid > [data-id]")
    assert len(visit.ids()) == 32
    with Gallery.open(empty.location) as gallery:
        assert gallery.get("samples/star-3").payload == {"label": "star"}
        gallery.delete([item.id for item in gallery.scan(limit=100)])
    page.reload()
    folder = tmp_path / "photos" / "sevens"
    folder.mkdir(parents=True)
    for row in (7, 17):
        (folder / f"{row}.png").write_bytes((empty.images / f"{row:03d}.png").read_bytes())
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    page.set_input_files("#first-folder", tmp_path / "photos")
    page.wait_for_selector("#grid > [data-id]")
    assert visit.ids() == ["photos/sevens/17.png", "photos/sevens/7.png"]
    with Gallery.open(empty.location) as gallery:
        assert gallery.get("photos/sevens/7.png").payload == {"label": "sevens"}


def test_query_images_survive_a_reload_and_several_are_asked_together(
    base: str, shop: Shop, visitor: Visitor
) -> None:
    visit = visitor(base)
    page = visit.page
    page.set_input_files("#file", shop.image("digit-007"))
    hits = results(visit, "Most alike")
    page.reload()
    page.wait_for_selector("#grid .score")
    assert results(visit, "Most alike") == hits
    assert page.eval_on_selector("#query-image", "image => image.naturalWidth") == 48
    page.set_input_files("#file", [shop.image("digit-007"), shop.image("digit-021")])
    page.wait_for_function(
        "() => document.querySelector('#query-words').textContent.startsWith('2 images')"
    )
    assert set(results(visit, "Most alike")[:2]) == {"digit-007", "digit-021"}


def test_the_details_show_the_original(base: str, shop: Shop, visitor: Visitor) -> None:
    visit = visitor(base)
    page = visit.page
    page.locator("#grid .open").first.click()
    page.click("dialog .whole")
    page.wait_for_function(
        "() => document.querySelector('dialog .whole-size img')?.src.endsWith('size=4096')"
        " && document.querySelector('dialog .whole-size img').naturalWidth === 48"
    )
    assert page.get_attribute("dialog .whole", "aria-pressed") == "true"
