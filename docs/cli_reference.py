"""Write the command reference from the commands themselves, when mkdocs builds the site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parent / "reference"


def on_pre_build(config: Any) -> None:
    """mkdocs calls this before it reads the pages."""
    write("cli.md", cli_page())
    write("http.md", http_page())


def write(name: str, text: str) -> None:
    file = REFERENCE / name
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def cli_page() -> str:
    """One section for each command: what it does, its arguments and options."""
    import typer

    from midspan.cli import app
    from midspan.cli.exits import TEXT

    sections = ["# Commands", "Generated from the commands themselves.", TEXT]

    def describe(command: Any, name: str) -> None:
        if inner := getattr(command, "commands", None):
            for word, one in inner.items():
                describe(one, f"{name} {word}")
            return
        sections.append(f"## {name}")
        sections.append(" ".join((command.help or "").split()))
        rows = ["| option | meaning | default |", "|---|---|---|"]
        for one in command.params:
            if getattr(one, "hidden", False):
                continue
            shown = ", ".join(one.opts) if one.param_type_name == "option" else one.name.upper()
            text = " ".join((getattr(one, "help", None) or "").split()).replace("|", "\\|")
            default = one.default
            plain = "" if default is None or callable(default) or default is False else str(default)
            rows.append(f"| `{shown}` | {text} | {plain} |")
        sections.append("\n".join(rows))

    describe(typer.main.get_command(app), "midspan")
    return "\n\n".join(sections) + "\n"


def http_page() -> str:
    """One line for each route, from the service's OpenAPI document."""
    file = Path(__file__).parent / "openapi.json"
    if not file.exists():
        return "# HTTP\n\nA running service describes its routes at `/openapi.json`.\n"
    paths = json.loads(file.read_text(encoding="utf-8"))["paths"]
    rows = ["| | route | |", "|---|---|---|"]
    for route, verbs in paths.items():
        for verb, about in verbs.items():
            rows.append(f"| {verb.upper()} | `{route}` | {about.get('summary', '')} |")
    return "# HTTP\n\n" + "\n".join(rows) + "\n"
