"""Both themes, phone width, names for screen readers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.service.page.conftest import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.server]

VIEWS = {
    "search": "#grid > li",
    "search?item=digit-005": "#query-image:not([hidden])",
    "compare": "#compare-notice:not([hidden])",
    "compare?item=digit-005": "#compare-notice:not([hidden])",
    "duplicates": "#duplicates-form",
    "upgrade": "#plan [type=submit]",
}
CONTROLS = {
    "button",
    "link",
    "textbox",
    "combobox",
    "checkbox",
    "spinbutton",
    "progressbar",
    "image",
}


@pytest.mark.parametrize("width", [390, 320])
def test_views_fit_the_width_of_a_phone(base: str, visitor: Visitor, width: int) -> None:
    visit = visitor(base, width=width, height=844, has_touch=True)
    for view, there in VIEWS.items():
        visit.go(view)
        visit.page.wait_for_selector(there)
        assert visit.overflow() <= 0, view
    visit.go("search")
    visit.page.click("#add-filter")
    visit.page.click(".options summary")
    visit.page.locator("#grid .open").nth(3).click()  # a hostile, long id
    visit.page.wait_for_selector("dialog[open] .facts")
    assert visit.overflow() <= 0
    box = visit.page.locator("dialog").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_every_control_has_a_name(base: str, visitor: Visitor) -> None:
    visit = visitor(base)
    page = visit.page
    session = page.context.new_cdp_session(page)
    for view, there in VIEWS.items():
        visit.go(view)
        page.wait_for_selector(there)
        if view == "search":
            page.click("#add-filter")
            page.click(".options summary")
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        named = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if "role" in node and not node.get("ignored")
        ]
        controls = [(role, name) for role, name in named if role in CONTROLS]
        assert len(controls) > 5
        assert [role for role, name in controls if not name.strip()] == [], view
        assert [name for role, name in named if role == "heading"], view
    levels = page.eval_on_selector_all("main > section:not([hidden]) h1", "all => all.length")
    assert levels == 1


def luminance(colour: list[float]) -> float:
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: list[float], other: list[float]) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def colours(page: Any) -> dict[str, list[float]]:
    """The page's colours as they are painted, 0 to 1."""
    palette: dict[str, list[float]] = page.evaluate(
        """() => {
            const canvas = document.createElement("canvas")
                .getContext("2d", {willReadFrequently: true});
            const read = (name) => {
                const probe = document.createElement("i");
                probe.className = "unseen";
                document.body.append(probe);
                probe.style.color = `var(--${name})`;
                canvas.fillStyle = getComputedStyle(probe).color;
                canvas.fillRect(0, 0, 1, 1);
                probe.remove();
                return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((n) => n / 255);
            };
            const names = ["page", "paper", "well", "ink", "muted", "edge", "old", "new", "other",
                "good", "bad", "on-new", "on-bad"];
            return Object.fromEntries(names.map((name) => [name, read(name)]));
        }"""
    )
    return palette


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_and_the_theme_is_kept(base: str, visitor: Visitor, scheme: str) -> None:
    other = "dark" if scheme == "light" else "light"
    visit = visitor(base, color_scheme=scheme)
    page = visit.page
    palette = colours(page)
    assert (luminance(palette["page"]) > 0.5) == (scheme == "light")
    for ink, ground in product(
        ["ink", "muted", "old", "new", "other", "good", "bad"], ["page", "paper"]
    ):
        assert contrast(palette[ink], palette[ground]) >= 4.5, (ink, ground)
    assert contrast(palette["on-new"], palette["new"]) >= 4.5
    assert contrast(palette["on-bad"], palette["bad"]) >= 4.5
    assert contrast(palette["edge"], palette["paper"]) >= 3  # borders of inputs
    page.get_by_role("button", name=f"Switch to {other}").click()
    assert (luminance(colours(page)["page"]) > 0.5) == (other == "light")
    page.reload()
    page.wait_for_selector("#grid > li")
    assert (luminance(colours(page)["page"]) > 0.5) == (other == "light")


def test_reduced_motion_is_respected(base: str, visitor: Visitor) -> None:
    visit = visitor(base, reduced_motion="reduce")
    visit.page.locator("#grid .open").first.click()
    visit.page.wait_for_selector("dialog[open]")
    assert visit.page.evaluate("document.getAnimations().length") == 0
