"""One-file pages: templates with autoescape, style inside, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midspan.atomic_write import atomic_write
from midspan.reports import numbers

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, context: Mapping[str, Any]) -> str:
    """Fill one of the templates of this package; a name the context lacks is an error."""
    return _environment().get_template(template).render(dict(context))


def write_text(text: str, path: str | Path) -> Path:
    """In UTF-8, with the folder that it needs."""
    path = Path(path)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
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
