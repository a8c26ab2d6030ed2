"""A strict look at a page: what a browser would forgive is an error here."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input"}
LOADS = {"src", "href", "srcset", "data", "poster", "action"}


class Walk(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.by_tag: dict[str, list[str]] = {}
        self.errors: list[str] = []
        self.feed(page)
        self.close()
        if self.open:
            self.errors.append(f"never closed: {self.open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.errors.append(f"<{tag}> has an attribute twice: {names}")
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.by_tag.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if "svg" not in self.open:
            self.errors.append(f"<{tag}/> outside of an SVG")
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.errors.append(f"</{tag}> closes {self.open[-1:]} at {self.getpos()}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        for tag in set(self.open):
            self.by_tag[tag][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def having(self, attribute: str, value: str) -> list[dict[str, str | None]]:
        return [a for _, a in self.tags if value in (a.get(attribute) or "").split()]


def check_page(page: str) -> Walk:
    """Balanced, accessible, nothing loaded from outside; returns the walk for more questions."""
    walk = Walk(page)
    assert walk.errors == []
    assert page.startswith("<!doctype html>")
    assert walk.all("html")[0]["lang"] == "en"
    assert len(walk.all("h1")) == 1
    for landmark in ("header", "main", "footer", "title"):
        assert walk.all(landmark), landmark
    assert all("alt" in image for image in walk.all("img"))
    assert all(header.get("scope") in ("col", "row") for header in walk.all("th"))
    assert all(plot.get("role") == "img" for plot in walk.all("svg") if "aria-hidden" not in plot)
    assert not walk.all("script")
    assert not [name for _, a in walk.tags for name in a if name.startswith("on")]
    for _, attributes in walk.tags:
        for name in LOADS & attributes.keys():
            assert (attributes[name] or "").startswith(("data:", "#")), attributes
        style = attributes.get("style") or ""
        assert "url(" not in style.replace("url(#", "")
    assert "url(" not in "".join(walk.by_tag["style"])
    assert "@import" not in "".join(walk.by_tag["style"])
    ids = [a["id"] for _, a in walk.tags if "id" in a]
    assert len(ids) == len(set(ids)), "an id stands twice on the page"
    references = [a.get("aria-labelledby") for _, a in walk.tags]
    assert {name for name in references if name} <= set(ids)
    pointed = {(a["href"] or "")[1:] for tag, a in walk.tags if tag == "use"}
    assert pointed <= set(ids)
    return walk
