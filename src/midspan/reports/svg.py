"""From a matplotlib figure to an SVG that lives inside a page.

The colours become CSS variables with a fall-back, so that one plot is readable on a light and on
a dark page and is still complete as a file. Text stays text, in the font of the page. The
same figure always gives the same bytes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE, PAPER = "#1b2530", "#5d6b7a", "#d5dce3", "#fefefe"
OLD, NEW, OTHER = "#6b5b95", "#0a6f9e", "#b8541f"  # old encoder, compatible one, independent one
GOOD, BAD = "#1a7f4e", "#b42f26"
CLASSES = (  # eight hues that stay apart for colour-blind readers, on light and on dark
    "#0072b2",
    "#d55e00",
    "#019e73",
    "#c9609b",
    "#b88a00",
    "#2e92cc",
    "#7552a8",
    "#8a6a3a",
)
# The CSS variable behind each colour; templates/style.css sets them for light and dark pages.
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    LINE: "--line",
    PAPER: "--paper",
    OLD: "--old",
    NEW: "--new",
    OTHER: "--other",
    GOOD: "--good",
    BAD: "--bad",
    **{colour: f"--class-{number}" for number, colour in enumerate(CLASSES)},
}
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "midspan",
    "text.parse_math": False,  # a class may be called "$5"
    "axes.unicode_minus": True,
    "font.size": 12,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "grid.color": LINE,
    "axes.axisbelow": True,
}
FONT = "var(--font, system-ui, sans-serif)"


@contextmanager
def drawing(*, width: int, height: int) -> Iterator[tuple[Figure, Axes]]:
    """A figure of width x height CSS pixels with one pair of axes; draw and save inside."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        # The reader's browser has the glyphs that the measuring font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        yield figure, figure.add_subplot()


def to_svg(figure: Figure, *, name: str, title: str) -> str:
    """The figure as one <svg> element. `name` keeps its ids apart from other plots of the page."""
    out = io.StringIO()
    unmarked = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(out, format="svg", transparent=True, metadata=unmarked)
    root = ElementTree.fromstring(out.getvalue())
    for parent in list(root.iter()):
        parent.tag = parent.tag.rpartition("}")[2]
        for child in list(parent):
            # Metadata says nothing; the style element would reach out of the plot.
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
        parent.attrib.update(_rewritten(parent, prefix=name))
    _drop_foreign(root)
    width, height = (root.attrib.pop(side).removesuffix("pt") for side in ("width", "height"))
    root.attrib.update(
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": width,
            "height": height,
            "role": "img",
            "aria-labelledby": f"{name}-title",
            "style": f"font-family: {FONT}; stroke-linejoin: round; stroke-linecap: butt",
        }
    )
    heading = ElementTree.Element("title", {"id": f"{name}-title"})
    heading.text = label(title, longest=400)
    root.insert(0, heading)
    return ElementTree.tostring(root, encoding="unicode")


def label(text: object, *, longest: int = 40) -> str:
    """Any text as a plot can hold it: one line, no control characters, not too long."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def _rewritten(element: ElementTree.Element, *, prefix: str) -> dict[str, str]:
    """The attributes with page-wide ids and with variables for colours. Text is never touched."""
    changed = {}
    for key, value in element.attrib.items():
        if key == "id":
            changed[key] = f"{prefix}-{value}"
        elif key.endswith("href"):
            changed["href"] = f"#{prefix}-{value.removeprefix('#')}"
        elif key == "clip-path":
            changed[key] = value.replace("url(#", f"url(#{prefix}-")
        elif key == "style":
            changed[key] = _styled(value)
        elif key == "d":
            changed[key] = " ".join(value.split())
    return changed


def _styled(style: str) -> str:
    kept = []
    for entry in style.split("; "):
        key, _, value = entry.partition(": ")
        if key == "font-family":
            continue  # inherited from the page
        if value in VARIABLES:
            value = f"var({VARIABLES[value]}, {value})"
        kept.append(f"{key}: {value}")
    return "; ".join(kept)


def _drop_foreign(root: ElementTree.Element) -> None:
    """xlink attributes have been copied to plain ones."""
    for element in root.iter():
        for key in [key for key in element.attrib if key.startswith("{")]:
            del element.attrib[key]
