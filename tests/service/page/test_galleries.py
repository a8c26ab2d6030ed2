"""The switch between the galleries of a server, in a real browser."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from midspan.gallery import Gallery
from midspan.service.settings import Settings
from tests.service.page.conftest import SIZES, Visitor, running, settings_of
from tests.service.page.shop import Shop

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.parametrize("look", SIZES),
]


def test_the_switch_leads_to_the_other_gallery_and_stays_there(
    shop: Shop, visitor: Visitor, tmp_path: Path
) -> None:
    [first] = settings_of(shop).galleries
    place = tmp_path / "archive.midspan"
    shutil.copy(shop.location, place)
    with Gallery.open(str(place)) as gallery:
        gallery.delete(shop.ids[30:])
    second = dataclasses.replace(first, name="archive", gallery=str(place), new_encoder=None)
    with running(Settings(galleries=(first, second))) as base:
        visit = visitor(base, expected=("ERR_INCOMPLETE_CHUNKED",))  # the server ends before it
        switch = visit.page.get_by_role("combobox", name="Gallery", exact=True)
        assert switch.locator("option").all_inner_texts() == [
            "default (60 items)",
            "archive (30 items)",
        ]
        switch.select_option("archive")
        visit.page.wait_for_url("**/?gallery=archive*")
        visit.page.wait_for_selector("#grid > li")
        assert set(visit.ids()) == set(shop.ids[:30])
        visit.page.click('[data-id="digit-005"] .like')
        visit.page.wait_for_function(
            "() => document.querySelector('#results-title').textContent.startsWith('Most like')"
            " && document.querySelector('#results').getAttribute('aria-busy') === 'false'"
        )
        assert set(visit.ids()) < set(shop.ids[:30])
        visit.page.wait_for_function(
            "() => [...document.querySelectorAll('#grid img')].every(one => one.naturalWidth > 0)"
        )
        visit.page.reload()
        visit.page.wait_for_selector("#grid > li")
        assert visit.page.input_value("#gallery") == "archive"


def test_gallery_switch_is_hidden_for_a_single_gallery(base: str, visitor: Visitor) -> None:
    assert visitor(base).page.locator("#gallery").is_hidden()
