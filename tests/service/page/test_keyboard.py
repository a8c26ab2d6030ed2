"""A whole upgrade without a pointer, on a desk and on a phone."""

from __future__ import annotations

from typing import Any

import pytest

from midspan.gallery import Gallery
from midspan.upgrade import Upgrade
from tests.service.page.conftest import SIZES, Served, Visitor, settings_of
from tests.service.page.shop import Shop
from tests.service.page.test_upgrade import headline

pytestmark = [pytest.mark.slow, pytest.mark.server]
FOCUSED = "document.activeElement?.matches(selector)"


def reach(page: Any, selector: str) -> None:
    """Tab until the focus is there."""
    page.wait_for_selector(selector)
    for _ in range(200):
        if page.evaluate(f"selector => {FOCUSED}", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {selector}")


def press(page: Any, selector: str) -> None:
    reach(page, selector)
    page.keyboard.press("Enter")


@pytest.mark.parametrize("look", SIZES)
def test_an_upgrade_by_keyboard_alone(
    fresh: Shop, served: Served, visitor: Visitor, look: dict[str, Any]
) -> None:
    visit = visitor(served(settings_of(fresh)), **look)
    page = visit.page
    press(page, '[data-view="upgrade"]')
    headline(visit, "No upgrade is open")
    reach(page, "#plan-mode")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#plan-mode") == "direct"
    press(page, "#plan [type=submit]")
    press(page, "#start")
    page.wait_for_selector("dialog[open]")
    assert page.evaluate(f"selector => {FOCUSED}", "dialog [type=submit]")
    page.keyboard.press("Enter")
    headline(visit, "Every item is new")
    press(page, '[data-action="gate"]')
    page.keyboard.press("Enter")
    page.wait_for_selector("#gate .checks .verdict")
    reach(page, "#audit .trail")  # it scrolls
    press(page, '[data-action="rollback"]')
    page.wait_for_selector("dialog[open]")
    assert page.evaluate("document.activeElement.textContent") == "Cancel", "the safe one first"
    press(page, "dialog .danger")
    headline(visit, "No upgrade is open")
    assert visit.overflow() <= 0
    with Gallery.open(fresh.location) as gallery:
        assert Upgrade(gallery).status().phase == "none"
