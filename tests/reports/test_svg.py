from __future__ import annotations

import re
from xml.etree import ElementTree

from midspan.reports.svg import CLASSES, INK, VARIABLES, drawing, label, to_svg


def draw(text: str = "title", *, name: str = "plot") -> str:
    with drawing(width=300, height=200) as (figure, axes):
        axes.plot([0, 1], [0, 1], marker="o", color=CLASSES[0])
        axes.set_title(text)
        return to_svg(figure, name=name, title=text)


def test_svg_is_complete_and_uses_the_colours_of_the_page() -> None:
    plot = draw()
    root = ElementTree.fromstring(plot)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.attrib["viewBox"] == "0 0 300 200"
    assert f"var(--ink, {INK})" in plot
    assert f"var(--class-0, {CLASSES[0]})" in plot
    bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", plot)
    assert re.findall(r"#[0-9a-f]{6}\b(?![0-9a-f])", bare) == []  # no colour of its own
    assert "font-family" not in plot.partition(">")[2]
    assert "<metadata" not in plot
    assert "<style" not in plot
    assert plot.count("http") == 1  # the namespace


def test_svg_every_colour_has_its_variable() -> None:
    assert len(set(VARIABLES.values())) == len(VARIABLES)


def test_svg_is_deterministic() -> None:
    assert draw() == draw()


def test_svg_ids_of_two_plots_are_distinct() -> None:
    first, second = (set(re.findall(r' id="([^"]+)"', draw(name=name))) for name in ("one", "two"))
    assert first
    assert not first & second


def test_svg_references_match_the_ids() -> None:
    root = ElementTree.fromstring(draw())
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    uses = [e.attrib["href"][1:] for e in root.iter() if e.tag.endswith("use")]
    clips = [e.attrib["clip-path"][5:-1] for e in root.iter() if "clip-path" in e.attrib]
    assert uses
    assert clips
    assert set(uses) | set(clips) <= ids


def test_svg_escapes_hostile_text() -> None:
    hostile = '<script>alert(1)</script> $\\frac{ id="x" #1b2530 漢字 \x00\x1b'
    root = ElementTree.fromstring(draw(hostile := label(hostile, longest=100)))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert hostile in texts
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    title = root[0]
    assert (title.tag.endswith("title"), title.text) == (True, hostile)
    assert root.attrib["aria-labelledby"] == title.attrib["id"]


def test_label_is_cut_to_one_short_line() -> None:
    assert label("a\n b\x00\tc") == "a b c"
    assert label("x" * 50, longest=10) == "x" * 9 + "…"
    assert label(17) == "17"
