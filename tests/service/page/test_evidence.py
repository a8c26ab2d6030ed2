"""What the page says of times, spaces and ids."""

from __future__ import annotations

import pytest

from midspan.gallery import AuditEvent, Gallery
from midspan.upgrade import Upgrade
from tests.service.page.conftest import SIZES, Served, Visitor, settings_of
from tests.service.page.shop import HOSTILE, Shop

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.parametrize("look", SIZES),
]


def test_audit_log_shows_readable_times_and_space_names(
    fresh: Shop, served: Served, visitor: Visitor
) -> None:
    with Gallery.open(fresh.location) as gallery:
        details = {
            "at": 1_700_000_000.25,
            "space": gallery.space.fingerprint,
            "digest": "0123456789abcdef01234567",
            "items": 12_345,
        }
        gallery.record(AuditEvent("bob", "upgrade source", details))
    visit = visitor(served(settings_of(fresh)))
    visit.go("upgrade")
    line = visit.page.locator("#audit li", has_text="upgrade source")
    words = line.locator(".trail-details").inner_text()
    assert "at Nov 14, 2023, 22:13:20" in words or "at Nov 15, 2023" in words
    assert "space digits-v1" in words
    assert "digest 01234567…" in words
    assert "items 12,345" in words


def test_ids_are_cut_in_the_middle_and_turned_text_is_named(
    fresh: Shop, served: Served, visitor: Visitor
) -> None:
    hostile = HOSTILE[11]
    with Gallery.open(fresh.location) as gallery:
        from midspan.encoders import load_encoder

        Upgrade.start(gallery, to=load_encoder(str(fresh.new)), mode="direct")
    base = served(settings_of(fresh))
    visit = visitor(base)
    page = visit.page
    page.goto(f"{base}/#/compare?item=5%E2%80%AEgnp.exe")
    page.wait_for_selector("#after > li")
    assert page.get_attribute("#compare-title", "title") == "5‹U+202E›gnp.exe"
    assert page.get_attribute("#compare-image", "alt") == "query: 5‹U+202E›gnp.exe"
    assert hostile not in page.inner_text("body")
    tails = page.locator("#after .id-tail")
    assert tails.count() == page.locator("#after > li").count()
    visit.go("duplicates")
    page.fill("#duplicates-threshold", "-1")
    page.click("#duplicates-form [type=submit]")
    page.wait_for_selector("#duplicates .group")
    words = page.locator("#duplicates > p").first.inner_text()
    assert words.startswith("1 group among"), words


def test_the_question_before_mode_both_names_its_cost(base: str, visitor: Visitor) -> None:
    visit = visitor(base)
    page = visit.page
    visit.go("upgrade")
    page.select_option("#plan-mode", "both")
    page.click("#plan [type=submit]")
    page.click("#start")
    assert "embedded by both encoders and searched twice" in page.inner_text("dialog")
    page.keyboard.press("Escape")
