"""Search in a real browser: by image, by item, with filters, and with hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from midspan.encoders import load_encoder
from midspan.gallery import Gallery
from midspan.service.settings import GallerySettings, ServerSettings, Settings
from tests.service.page.conftest import SIZES, Visit, Visitor, running
from tests.service.page.shop import HOSTILE, ITEMS, PAYLOAD_ATTACK, Shop

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.parametrize("look", SIZES),
]


def results(visit: Visit, title: str) -> list[str]:
    """The ids shown once the answer to this question is there."""
    visit.page.wait_for_function(
        "title => document.querySelector('#results-title').textContent.startsWith(title)"
        " && document.querySelector('#results').getAttribute('aria-busy') === 'false'",
        arg=title,
    )
    return visit.ids()


def test_an_uploaded_image_finds_itself_first(base: str, shop: Shop, visitor: Visitor) -> None:
    visit = visitor(base)
    visit.page.set_input_files("#file", shop.image("digit-007"))
    hits = results(visit, "Most alike")
    assert hits[0] == "digit-007"
    assert visit.page.inner_text("#grid > li:first-child .score") == "1.000"
    assert visit.page.eval_on_selector("#query-image", "image => image.naturalWidth") == 48
    assert len(hits) == 24
    visit.page.wait_for_function(
        "() => [...document.querySelectorAll('#grid img')].every(one => one.naturalWidth > 0)"
    )


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_an_image_can_be_dropped_or_pasted(
    base: str, shop: Shop, visitor: Visitor, how: str
) -> None:
    visit = visitor(base)
    visit.page.evaluate(
        """async ([how, bytes]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "a.png", {type: "image/png"}));
            const event = how === "drop"
                ? new DragEvent("drop", {dataTransfer: data, bubbles: true})
                : new ClipboardEvent("paste", {clipboardData: data, bubbles: true});
            document.body.dispatchEvent(event);
        }""",
        [how, list(shop.image("digit-021").read_bytes())],
    )
    assert results(visit, "Most alike")[0] == "digit-021"


def test_more_like_this_shows_similar_items_and_back_returns(
    base: str, shop: Shop, visitor: Visitor
) -> None:
    visit = visitor(base)
    visit.page.click('[data-id="digit-005"] .like')
    assert results(visit, "Most like digit-005")[:8] == shop.alike("digit-005", 8)
    nearest = shop.alike("digit-005", 1)[0]
    visit.page.click(f'[data-id="{nearest}"] .like')
    assert results(visit, f"Most like {nearest}")[:8] == shop.alike(nearest, 8)
    visit.page.go_back()
    assert results(visit, "Most like digit-005")[:8] == shop.alike("digit-005", 8)


def add_filter(page: Any, key: str, relation: str, value: str, *, end: str = "Tab") -> None:
    page.click("#add-filter")
    row = page.locator("#filters > li").last
    row.locator(".filter-key").fill(key)
    row.locator(".filter-relation").select_option(label=relation)
    row.locator(".filter-value").fill(value)
    row.locator(".filter-value").press(end)


def test_filters_hold_for_browsing_and_for_searching(
    base: str, shop: Shop, visitor: Visitor
) -> None:
    visit = visitor(base)
    page = visit.page
    threes = {
        id for id, payload in zip(shop.ids, shop.payloads, strict=True) if payload["labels"] == 3
    }
    cheap = {
        id for id, payload in zip(shop.ids, shop.payloads, strict=True) if payload["price"] <= 20
    }
    add_filter(page, "labels", "is", "3", end="Enter")
    page.wait_for_function(
        "n => document.querySelectorAll('#grid > [data-id]').length === n", arg=len(threes)
    )
    assert set(visit.ids()) == threes
    add_filter(page, "price", "at most", "20")
    page.wait_for_function(
        "n => document.querySelectorAll('#grid > [data-id]').length === n", arg=len(threes & cheap)
    )
    assert set(visit.ids()) == threes & cheap
    page.fill("#item-id", "digit-005")
    page.keyboard.press("Enter")
    assert set(results(visit, "Most like")) == threes & cheap
    add_filter(page, "shelf", "is", "nowhere")
    page.wait_for_selector(".empty")
    assert "Nothing is alike enough" in page.inner_text(".empty")
    page.click(".empty button")  # remove all filters
    page.wait_for_function("() => document.querySelectorAll('#grid > [data-id]').length === 24")


def test_hostile_ids_and_payloads_are_text(base: str, shop: Shop, visitor: Visitor) -> None:
    visit = visitor(base)
    page = visit.page
    for id in HOSTILE.values():
        card = page.locator("#grid > li").nth(sorted(shop.ids).index(id))
        seen = id.replace("\u202e", "‹U+202E›")  # it would turn what comes after it
        assert card.locator(".id").text_content() == seen
        assert PAYLOAD_ATTACK in card.inner_text()
        card.locator(".open").click()
        assert page.inner_text("#dialog-title") == seen
        page.wait_for_selector("dialog .facts >> text=vectors in")
        assert PAYLOAD_ATTACK in page.inner_text("dialog .facts")
        page.wait_for_function("() => document.querySelector('dialog img').naturalWidth > 0")
        page.click("dialog button >> text=More like this")
        assert results(visit, f"Most like {seen}")[:5] == shop.alike(id, 5)
        page.go_back()
        results(visit, "In the gallery")
    assert page.locator("#grid script, #grid svg").count() == 0


def test_mistakes_show_a_message_with_what_to_do(base: str, visitor: Visitor) -> None:
    visit = visitor(base, expected=("404", "400", "415", "422"))
    page = visit.page
    page.fill("#item-id", "<b>nobody</b>")
    page.click("#query [type=submit]")
    page.wait_for_selector(".empty")
    assert "There is no item “<b>nobody</b>”" in page.inner_text(".empty")
    page.set_input_files(
        "#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"}
    )
    page.wait_for_selector("#query-notice >> text=is not an image")
    page.set_input_files(
        "#file", {"name": "broken.png", "mimeType": "image/png", "buffer": b"hello"}
    )
    page.wait_for_selector("#search-notice >> text=image")


def test_lost_connection_shows_a_notice_and_retry_works(base: str, visitor: Visitor) -> None:
    visit = visitor(base, expected=("ERR_INTERNET_DISCONNECTED",))
    page = visit.page
    page.context.set_offline(True)
    page.click('[data-id="digit-005"] .like')
    page.wait_for_selector("#search-notice >> text=The server does not answer")
    page.context.set_offline(False)
    page.click("#search-notice button")
    assert len(results(visit, "Most like digit-005")) == 24
    assert page.is_hidden("#search-notice")


def test_the_keyboard_is_enough(base: str, shop: Shop, visitor: Visitor) -> None:
    visit = visitor(base)
    page = visit.page
    page.keyboard.press("/")
    page.wait_for_function("() => document.activeElement.id === 'item-id'")
    page.keyboard.type("digit-012")
    page.keyboard.press("Enter")
    hits = results(visit, "Most like digit-012")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#grid') !== null"):
            break
    focused = "document.activeElement.closest('li').dataset.id"
    assert page.evaluate(focused) == hits[0]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == hits[2]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == hits[1]
    page.keyboard.press("Enter")  # details
    page.wait_for_selector("dialog[open]")
    assert page.inner_text("#dialog-title") == hits[1]
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    assert page.evaluate(focused) == hits[1]
    page.keyboard.press("m")
    assert results(visit, f"Most like {hits[1]}")[:5] == shop.alike(hits[1], 5)
    page.keyboard.press("Escape")
    assert len(results(visit, "In the gallery")) == 48


def test_the_rest_of_the_gallery_comes_on_demand(base: str, shop: Shop, visitor: Visitor) -> None:
    visit = visitor(base)
    assert visit.ids() == sorted(shop.ids)[:48]
    visit.page.click("#more")
    visit.page.wait_for_function(
        "n => document.querySelectorAll('#grid > [data-id]').length === n", arg=ITEMS
    )
    assert visit.ids() == sorted(shop.ids)
    assert visit.page.is_hidden("#more")


def test_text_filters_and_duplicates_are_found_and_kept_in_the_address(
    base: str, shop: Shop, visitor: Visitor
) -> None:
    visit = visitor(base, expected=("404",))
    page = visit.page
    page.fill("#item-id", "GIT-01")
    page.keyboard.press("Enter")
    assert results(visit, "With “GIT-01”") == [id for id in sorted(shop.ids) if "git-01" in id]
    visit.go("search")
    results(visit, "In the gallery")
    page.click("#add-filter")
    row = page.locator("#filters > li").last
    row.locator(".filter-key").fill("labels")
    row.locator(".filter-value").focus()
    page.wait_for_selector("#filter-values option", state="attached")
    row.locator(".filter-value").fill("3")
    row.locator(".filter-value").press("Tab")
    many = sum(payload["labels"] == 3 for payload in shop.payloads)
    page.wait_for_function(
        "words => document.querySelector('#results-note').textContent === words",
        arg=f"{many} of {ITEMS} items match",
    )
    page.reload()
    page.wait_for_function(
        "words => document.querySelector('#results-note').textContent === words",
        arg=f"{many} of {ITEMS} items match",
    )
    page.locator("#grid .open").first.click()
    first = page.inner_text("#dialog-title")
    page.click("dialog button >> text=Next")
    page.wait_for_function(
        "first => document.querySelector('#dialog-title')?.textContent !== first", arg=first
    )
    page.keyboard.press("Escape")
    visit.go("duplicates")
    page.fill("#duplicates-threshold", "0.5")
    page.click("#duplicates-form [type=submit]")
    page.wait_for_selector("#duplicates .group [data-id]")


@pytest.fixture(scope="module")
def with_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose encoder has a text tower."""
    from tests.encoders.test_text import save_model

    folder = tmp_path_factory.mktemp("clip")
    target = f"hf:{save_model('clip', folder / 'model')}?output=projected"
    (folder / "images").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / "images" / f"{number:02d}.png")
    items = load_encoder(target, device="cpu").embed(folder / "images", progress=False)
    place = str(folder / "shop.midspan")
    with Gallery.create(place, items.space) as gallery:
        gallery.add(items, uris=[str(folder / "images" / id) for id in items.ids])
    one = GallerySettings(
        gallery=place, encoder=target, images=(folder / "images",), runtime="torch"
    )
    with running(Settings(galleries=(one,), server=ServerSettings())) as address:
        yield address


def test_words_find_images_where_the_encoder_has_a_text_tower(
    with_text: str, visitor: Visitor
) -> None:
    visit = visitor(with_text)
    page = visit.page
    page.fill("#words", "a red bird")
    page.keyboard.press("Enter")
    answer = httpx.post(f"{with_text}/v1/search", json={"text": "a red bird", "k": 24})
    expected = [hit["id"] for hit in answer.json()["results"]]
    assert results(visit, "Most like “a red bird”") == expected
    assert page.is_hidden("#to-compare")
    page.reload()
    assert results(visit, "Most like “a red bird”") == expected
    assert page.input_value("#words") == "a red bird"
    assert visit.overflow() <= 0


def test_no_box_for_words_without_a_text_tower(base: str, visitor: Visitor) -> None:
    assert visitor(base).page.is_hidden("#words")
