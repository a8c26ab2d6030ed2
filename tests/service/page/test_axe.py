"""axe-core looks at every view, and at an upgrade that is open, failed and paused."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midspan.gallery import Gallery
from tests.service.page.conftest import SIZES, Visit, Visitor, running, settings_of
from tests.service.page.shop import Shop

pytestmark = [pytest.mark.slow, pytest.mark.server]

AXE = Path(sys.prefix) / "axe" / "package" / "axe.min.js"  # `make test` puts it there
GRAVE = {"serious", "critical"}


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        why = "npm is not installed" if shutil.which("npm") is None else "run: make axe"
        pytest.skip(f"axe-core is not there: {why}")
    return AXE.read_text(encoding="utf-8")


def faults(visit: Visit, axe: str) -> list[tuple[str, list[str]]]:
    """Each serious or critical rule with the elements that break it, best practices included."""
    page = visit.page
    page.wait_for_timeout(300)  # colours fade in: axe must see them as they stay
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(axe)
    report = page.evaluate(
        "axe.run(document, {resultTypes: ['violations'],"
        " rules: {'label-content-name-mismatch': {enabled: true}}})"
    )
    return [
        (rule["id"], [node["html"][:160] for node in rule["nodes"]][:5])
        for rule in report["violations"]
        if rule["impact"] in GRAVE
    ]


@pytest.fixture
def failing(fresh: Shop) -> Iterator[str]:
    """A server whose new encoder fails the gate, and two of whose images are broken."""
    with running(failing_settings(fresh)) as base:
        yield base


def failing_settings(shop: Shop) -> Any:
    from midspan.encoders import build_encoder

    bad = build_encoder(backbone="small-cnn", dim=32, size=32, name="digits-bad", seed=9)
    bad.eval()
    with Gallery.open(shop.location) as gallery:
        bad.compatible_with = (gallery.space.fingerprint,)
    for row in (50, 51):
        (shop.images / f"{row:03d}.png").write_bytes(b"no image")
    return settings_of(dataclasses.replace(shop, new=bad.save(shop.images.parent / "bad")), batch=8)


@pytest.mark.parametrize("look", SIZES)
def test_axe_finds_no_serious_fault(
    failing: str, axe: str, visitor: Visitor, look: dict[str, Any]
) -> None:
    visit = visitor(failing, **look, expected=("404",))
    page = visit.page
    violations: dict[str, Any] = {}

    def check(name: str) -> None:
        if some := faults(visit, axe):
            violations[name] = some

    check("gallery")
    page.click("#add-filter")
    page.click(".options summary")
    check("gallery with filters")
    visit.go("search?item=digit-005")
    page.wait_for_selector("#grid .score")
    check("results")
    page.locator("#grid .open").first.click()
    page.wait_for_selector("dialog[open] .facts")
    check("details")
    page.keyboard.press("Escape")
    visit.go("search?text=nothing-has-this")
    page.wait_for_selector("#grid .empty")
    check("nothing found")
    visit.go("compare")
    page.wait_for_selector("#compare-notice:not([hidden])")
    check("comparison without a query")
    visit.go("duplicates")
    page.fill("#duplicates-threshold", "0.5")
    page.click("#duplicates-form [type=submit]")
    page.wait_for_selector("#duplicates .group")
    check("duplicates")
    visit.go("upgrade")
    page.wait_for_selector("#plan [type=submit]")
    check("no upgrade")
    page.click("#plan [type=submit]")
    page.wait_for_selector("#start")
    check("plan")
    page.click("#start")
    check("question before the start")
    page.uncheck("#dialog-extra")
    page.click("dialog .danger")
    page.wait_for_selector("#view-upgrade[data-state=idle]")
    check("open upgrade")
    page.click('[data-action="gate"]')
    page.click("dialog [type=submit]")
    page.wait_for_selector("#view-upgrade[data-state=paused]")
    page.wait_for_selector("#flips .flip-row")
    page.wait_for_selector("#audit .trail")
    check("paused by a failed gate")
    visit.go("compare?item=digit-005")
    page.wait_for_selector("#after > li")
    check("comparison")
    visit.go("upgrade")
    page.click('[data-action="resume"]')
    page.fill("#dialog-extra", "a test")
    page.click("dialog [type=submit]")
    page.wait_for_selector("#failures li")
    check("items that failed")
    page.click('[data-action="rollback"]')
    page.click("dialog .danger")
    page.wait_for_selector("#view-upgrade[data-state=none]")
    check("rolled back")
    page.goto(f"{failing}/docs")
    page.wait_for_selector("main details, main section")
    check("page of the API")
    assert violations == {}
