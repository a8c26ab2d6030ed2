"""One-file pages: templates with autoescape, style inside, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midspan.reports import numbers

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, context: Mapping[str, Any]) -> str:
    """Fill one of the templates of this package; a name the context lacks is an error."""
    return _environment().get_template(template).render(dict(context))


def write_text(text: str, path: str | Path) -> Path:
    """UTF-8; the file appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("midspan.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["fraction"] = numbers.fraction
    environment.filters["signed"] = numbers.signed
    environment.filters["duration"] = numbers.duration
    environment.filters["count"] = numbers.count
    environment.filters["tail"] = _tail
    return environment


def _tail(text: str, longest: int) -> str:
    """The end of an id: of a long path the file name says most."""
    return text if len(text) <= longest else "…" + text[-(longest - 1) :]
