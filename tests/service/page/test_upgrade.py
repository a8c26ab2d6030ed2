"""An upgrade watched and steered in a real browser, on a real gallery."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midspan.gallery import Gallery
from midspan.service.image_loader import ImageLoader
from midspan.service.settings import ServerSettings
from midspan.upgrade import Upgrade
from midspan.upgrade.throttle import Throttle
from tests.service.page.conftest import (
    SIZES,
    Served,
    Visit,
    Visitor,
    running,
    settings_of,
)
from tests.service.page.shop import ITEMS, Shop

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.parametrize("look", SIZES),
]

READ, ADMIN = "read-token-of-the-test", "admin-token-of-the-test"


def headline(visit: Visit, words: str) -> None:
    visit.page.wait_for_function(
        "words => document.querySelector('#state-words').textContent.includes(words)", arg=words
    )


def do(page: Any, action: str) -> None:
    page.click(f'[data-action="{action}"]')
    page.click("dialog [type=submit]")


@pytest.fixture
def past_half(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A backfill stops in the middle until this is set: a slow browser finds it at work."""
    allowed, wait, done = threading.Event(), Throttle.wait, Throttle.done
    counted = [0]

    def count(throttle: Throttle, items: int) -> None:
        counted[0] += items
        done(throttle, items)

    def wait_for_test(throttle: Throttle, go_on: Callable[[], bool]) -> None:
        wait(throttle, go_on)
        while counted[0] >= ITEMS // 2 and go_on() and not allowed.wait(0.02):
            pass

    monkeypatch.setattr(Throttle, "done", count)
    monkeypatch.setattr(Throttle, "wait", wait_for_test)
    yield allowed
    allowed.set()


@pytest.fixture
def slowly(fresh: Shop, past_half: threading.Event) -> Iterator[str]:
    """A server whose backfill can be watched."""
    with running(settings_of(fresh, batch=4, max_rate=20.0)) as base:
        yield base


def test_upgrade_page_start_rollback_finish_and_forget_work(
    slowly: str, fresh: Shop, visitor: Visitor, past_half: threading.Event
) -> None:
    visit = visitor(slowly)
    page = visit.page
    visit.go("upgrade")
    headline(visit, "No upgrade is open")

    page.click("#plan [type=submit]")
    page.wait_for_selector("#start")
    assert f"{ITEMS} of {ITEMS} items" in page.inner_text("#plan-answer")
    assert "digits-v1" in page.inner_text("#plan")
    assert "digits-v2" in page.inner_text("#plan")
    page.click("#start")
    assert "No stored vector is touched" in page.inner_text("dialog")
    page.keyboard.press("Escape")  # a cancelled question changes nothing
    with Gallery.open(fresh.location) as gallery:
        assert Upgrade(gallery).status().phase == "none"
    page.evaluate(
        """() => {
            window.seen = [];
            const bar = document.querySelector("#bar");
            const look = () => window.seen.push(Number(bar.getAttribute("aria-valuenow")));
            new MutationObserver(look).observe(bar, {attributes: true});
        }"""
    )
    page.click("#start")
    page.click("dialog [type=submit]")
    page.wait_for_selector("#curve .curve")
    page.wait_for_function(
        "() => document.querySelectorAll('#curve figure:first-child .dot').length >= 3"
    )
    assert page.is_visible("#glance")

    do(page, "pause")
    headline(visit, "Paused at")
    past_half.set()
    do(page, "resume")
    headline(visit, "Every item is new")
    seen = page.evaluate("window.seen")
    assert seen == sorted(seen)
    assert seen[0] < 70  # it was held in the middle
    assert any(0 < value < 100 for value in seen)
    assert seen[-1] == 100
    page.wait_for_function("() => document.querySelector('#curve .line').points.length >= 5")
    assert page.locator("#curve figure").count() == 2
    do(page, "gate")
    page.wait_for_selector("#gate .checks .verdict")
    assert "negative flips" in page.inner_text("#gate .checks")
    assert "FAIL" not in page.inner_text("#gate")
    assert page.inner_text("#glance") == "all new"

    visit.go("search?item=digit-005")
    page.wait_for_selector("#grid .badge")
    assert set(page.locator("#grid .badge").all_inner_texts()) == {"new"}
    page.click("#to-compare")
    page.wait_for_selector("#after > li")
    before = page.eval_on_selector_all("#before > li", "all => all.map(one => one.dataset.id)")
    assert before == fresh.alike("digit-005", 12)
    after = page.eval_on_selector_all("#after > li", "all => all.map(one => one.dataset.id)")
    left = page.eval_on_selector_all(
        "#before > .rank-left", "all => all.map(one => one.dataset.id)"
    )
    entered = page.eval_on_selector_all(
        "#after > .rank-entered", "all => all.map(one => one.dataset.id)"
    )
    assert set(left) == set(before) - set(after)
    assert set(entered) == set(after) - set(before)

    visit.go("upgrade")
    page.click('[data-action="rollback"]')
    assert "the old vectors (digits-v1) answer again" in page.inner_text("dialog")
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    page.click("dialog .danger")
    headline(visit, "No upgrade is open")
    page.wait_for_selector("#plan [type=submit]")
    page.wait_for_selector("#audit >> text=rolled back")
    assert page.is_hidden("#glance")
    assert page.is_visible("#curve .curve"), "what the last upgrade showed stays"
    assert page.inner_text("#curve-title") == "Quality along the last upgrade"
    assert page.locator("#gate .verdict").count() > 0
    with Gallery.open(fresh.location) as gallery:
        assert Upgrade(gallery).status().phase == "none"
        assert gallery.space.name == "digits-v1"

    page.click("#plan [type=submit]")  # again, now to the end; the new vectors are still there
    page.click("#start")
    page.click("dialog [type=submit]")
    headline(visit, "Every item is new")
    page.click('[data-action="finish"]')
    assert "you can still roll back" in page.inner_text("dialog")
    page.click("dialog [type=submit]")
    headline(visit, "Finished: the new vectors answer")
    page.click('[data-action="forget"]')
    assert "There is no way back" in page.inner_text("dialog")
    page.click("dialog .danger")
    headline(visit, "No upgrade is open")
    page.wait_for_selector("#plan >> text=knows no encoder to upgrade to")
    with Gallery.open(fresh.location) as gallery:
        assert gallery.space.name == "digits-v2"
        assert len(gallery.state.spaces) == 1


@pytest.fixture
def guarded(fresh: Shop, tmp_path: Path) -> Iterator[str]:
    """Tokens are wanted, and the new encoder is not what it claims to be."""
    from midspan.encoders import build_encoder

    bad = build_encoder(backbone="small-cnn", dim=32, size=32, name="digits-bad", seed=9)
    bad.eval()
    with Gallery.open(fresh.location) as gallery:
        bad.compatible_with = (gallery.space.fingerprint,)
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'read = "{READ}"\nadmin = "{ADMIN}"\n', encoding="utf-8")
    tokens.chmod(0o600)
    shop = dataclasses.replace(fresh, new=bad.save(tmp_path / "bad"))
    with running(settings_of(shop, server=ServerSettings(tokens=tokens), batch=8)) as base:
        yield base


def give(page: Any, token: str) -> None:
    page.wait_for_selector("#token")
    page.fill("#token", token)
    page.click("dialog [type=submit]")


def test_tokens_are_asked_for_and_a_failed_gate_is_explained(
    guarded: str, visitor: Visitor
) -> None:
    visit = visitor(guarded, expected=("401", "403"), ready="#token")
    page = visit.page
    page.click("dialog [data-cancel]")  # not now: said once, not asked again at once
    page.wait_for_selector("#search-notice:not([hidden])")
    assert page.is_hidden("dialog")
    page.wait_for_timeout(3100)
    page.click("#search-notice button")
    give(page, "not-the-right-token")
    page.wait_for_selector("dialog >> text=does not know this token")
    give(page, READ)
    page.wait_for_selector("#grid > li")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#grid img')].every(one => one.naturalWidth > 0)"
    )
    sources = page.eval_on_selector_all("#grid img", "all => all.map(one => one.src)")
    assert all(source.startswith("blob:") for source in sources)
    assert READ not in page.content()

    visit.go("upgrade")
    page.click("#plan [type=submit]")
    page.wait_for_selector("dialog >> text=admin token")
    give(page, ADMIN)
    page.wait_for_selector("#start")
    assert "FAIL" in page.inner_text("#plan-answer")
    page.click("#start")
    assert "The gate FAILS in the plan" in page.inner_text("dialog")
    page.uncheck("#dialog-extra")  # begin to refresh at once
    page.click("dialog .danger")
    headline(visit, "Open, and ready to run")
    do(page, "gate")
    headline(visit, "Paused at 0 %")
    assert re.search(r"retention 0\.\d+ .*, limit 0\.98", page.inner_text("#state-lead"))
    assert "FAIL" in page.inner_text("#gate")
    page.wait_for_selector("#flips .flip-row")
    row = page.locator("#flips .flip-row").first
    assert row.locator(".hits").count() == 2
    assert row.locator(".hits").first.locator(".right").count() > 0
    assert row.locator(".hits").last.locator("li").first.get_attribute("class").endswith("wrong")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#flips img')].every(one => one.naturalWidth > 0)"
    )
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert visit.overflow() <= 0
    row.locator(".flip-query").click()
    page.wait_for_selector("#before > .rank-left")
    page.wait_for_selector("#after > .rank-entered")
    assert visit.overflow() <= 0
    visit.go("upgrade")
    do(page, "rollback")
    headline(visit, "No upgrade is open")
    page.wait_for_selector("#audit >> text=admin")


@dataclasses.dataclass
class Held:
    """A server whose images wait until `go` is set, once `hold` is."""

    base: str
    hold: threading.Event
    go: threading.Event


@pytest.fixture
def held(fresh: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    hold, go, plain = threading.Event(), threading.Event(), ImageLoader.pixels

    def slow(loader: ImageLoader, uri: str | None, box: Any) -> Any:
        assert not hold.is_set() or go.wait(90)
        return plain(loader, uri, box)

    monkeypatch.setattr(ImageLoader, "pixels", slow)
    monkeypatch.setattr("midspan.upgrade.priorities.find_sample", lambda *_, **__: None)
    with running(settings_of(fresh)) as base:
        yield Held(base, hold, go)
    go.set()


def test_a_start_shows_its_progress_and_can_be_cancelled(held: Held, visitor: Visitor) -> None:
    visit = visitor(held.base)
    page = visit.page
    visit.go("upgrade")
    held.hold.set()
    page.click("#plan [type=submit]")
    page.click("#plan-answer .cancel-job")
    held.go.set()
    page.wait_for_function("() => !document.querySelector('#plan-answer').children.length")
    held.hold.clear()
    page.click("#plan [type=submit]")
    page.wait_for_selector("#start")
    held.hold.set()
    held.go.clear()
    page.click("#start")
    page.click("dialog [type=submit]")
    headline(visit, "Starting the upgrade")
    page.click("#running-jobs .cancel-job")
    held.go.set()
    headline(visit, "No upgrade is open")
    page.wait_for_selector("#upgrade-notice >> text=Cancelled")
    page.wait_for_selector("#jobs .job-cancelled")


def test_plan_offers_only_modes_that_the_encoders_allow(
    fresh: Shop, served: Served, visitor: Visitor, tmp_path: Path
) -> None:
    from midspan.encoders import build_encoder

    stranger = build_encoder(backbone="small-cnn", dim=16, size=32, name="digits-other", seed=5)
    stranger.eval()
    shop = dataclasses.replace(fresh, new=stranger.save(tmp_path / "other"))
    visit = visitor(served(settings_of(shop)))
    page = visit.page
    visit.go("upgrade")
    page.wait_for_selector("#plan-mode")
    assert page.input_value("#plan-mode") == "both"
    possible = "#plan-mode option:not([disabled])"
    assert page.locator(possible).all_text_contents() == ["both"]
    direct = page.locator("#plan-mode option[value=direct]").text_content()
    assert direct == "direct: the new encoder was not trained for it"
    page.click("#plan [type=submit]")
    page.wait_for_selector("#start")
    assert not re.search(r"[0-9a-f]{12}", page.inner_text("#plan")), "no fingerprints"
