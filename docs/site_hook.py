"""What mkdocs cannot know by itself: pages made from the code, and files that lie outside docs/.

The reference of commands, of the HTTP API and of the modules is made when the site is built;
nothing of it is written into docs/. Links to result files and notebooks
(`../benchmarks/results/x.csv`) lead to the repository when read there, and to a copy of the file
when read on the site.
"""

from __future__ import annotations

import html
import inspect
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MODULES = (
    *("bridges", "client", "data", "encoders", "evaluation", "gallery", "losses", "methods"),
    "upgrade",
)
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\]\(((?:\.\./)+(?:benchmarks|examples|deploy)/[^)#\s]+)")
Schema = dict[str, Any]


def on_files(files: Any, config: Any) -> Any:
    """mkdocs calls this when it has listed docs/: the made pages and linked files join the list."""
    from mkdocs.structure.files import File

    pages = {"reference/cli.md": cli_page(), "reference/http.md": http_page()}
    pages |= {f"reference/modules/{name}.md": module_page(name) for name in MODULES}
    for notebook in NOTEBOOKS:
        pages[f"notebooks/{notebook.stem}.md"] = notebook_page(notebook)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    linked = {
        target
        for page in files.documentation_pages()
        for _, target in outside_links(page.src_uri, page.content_string)
    }
    for target in sorted(linked):
        files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """mkdocs calls this for each page: links out of docs/ become links to the copies."""
    here = posixpath.dirname(page.file.src_uri)
    for link, target in outside_links(page.file.src_uri, markdown):
        markdown = markdown.replace(f"]({link}", f"]({posixpath.relpath(target, here or '.')}")
    return markdown


def outside_links(page: str, markdown: str) -> Iterator[tuple[str, str]]:
    """Links of a page to files of the repository outside docs/, with their path from its root."""
    for link in sorted(set(LINK.findall(markdown))):
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
        if not (ROOT / target).is_file():
            raise FileNotFoundError(f"docs/{page} links to {link}; there is no file {target}")
        yield link, target


def cell(text: object) -> str:
    """Plain text for a cell of a table: nothing in it is markup."""
    plain = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\[\]|*_`])", r"\\\1", plain)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cli_page() -> str:
    """One section for each command: what it does, its arguments and options."""
    import typer

    from midspan.cli import app
    from midspan.cli.exits import TEXT

    sections = ["# Commands", "Made from the commands themselves.", TEXT]

    def describe(command: Any, name: str) -> None:
        if inner := getattr(command, "commands", None):
            for word, one in inner.items():
                describe(one, f"{name} {word}")
            return
        sections.append(f"## {name}")
        sections.append(cell(plain_help(command.help or "")))
        rows = []
        for one in command.params:
            if getattr(one, "hidden", False):
                continue
            shown = ", ".join(one.opts) if one.param_type_name == "option" else one.name.upper()
            default = one.default
            plain = "" if default is None or callable(default) or default is False else default
            rows.append(
                [f"`{shown}`", cell(plain_help(getattr(one, "help", None) or "")), cell(plain)]
            )
        sections.append(table(["option", "meaning", "default"], rows))

    describe(typer.main.get_command(app), "midspan")
    return "\n\n".join(sections) + "\n"


def plain_help(text: str) -> str:
    """Help as the terminal shows it: without the marks that escape rich's markup."""
    from rich.text import Text

    return Text.from_markup(text).plain


def http_page() -> str:
    """Every route with its parameters, body and answers, from the service's OpenAPI document."""
    from midspan.service.openapi import plain_document

    document = plain_document()
    schemas: dict[str, Schema] = document["components"]["schemas"]
    sections = [
        "# HTTP",
        html.escape(document["info"]["description"], quote=False),
        "Made from the service's OpenAPI document, which a running service has at `/openapi.json`"
        " and, to be tried in a browser, at `/docs`. *open*: anyone who reaches the service; *read*"
        " and *admin*: the token of this role, if the service has tokens.",
    ]
    for tag in document["tags"]:
        sections += [f"## {tag['name'].capitalize()}", cell(tag["description"])]
        for path, verbs in document["paths"].items():
            for verb, operation in verbs.items():
                if tag["name"] in operation["tags"]:
                    sections += operation_sections(path, verb, operation)
    sections.append("## Bodies and answers")
    for name, schema in schemas.items():
        sections.append(f"### {name}")
        sections.append(cell(schema.get("description", "")))
        sections.append(fields(schema))
    if len(document["paths"]) < 20 or len(schemas) < 20:
        raise ValueError("the service's OpenAPI document is not whole: few routes or schemas")
    return "\n\n".join(one for one in sections if one) + "\n"


def operation_sections(path: str, verb: str, operation: dict[str, Any]) -> list[str]:
    role = operation.get("x-role", "open")
    found = [f"### {verb.upper()} {path}", f"*{role}* · {cell(operation['summary'])}"]
    if parameters := operation.get("parameters"):
        rows = [
            [f"`{one['name']}`", one["in"], kind(one["schema"]), cell(one.get("description", ""))]
            for one in parameters
        ]
        found.append(table(["parameter", "in", "type", ""], rows))
    for content, body in operation.get("requestBody", {}).get("content", {}).items():
        schema = body["schema"]
        found.append(f"Body, `{content}`: " + (kind(schema) if "$ref" in schema else "fields"))
        if "$ref" not in schema:
            found.append(fields(schema))
    answers = [
        f"{status}: "
        + " or ".join(kind(body["schema"], content) for content, body in inner.items())
        for status, answer in operation["responses"].items()
        if status < "300" and (inner := answer["content"])
    ]
    errors = ", ".join(status for status in operation["responses"] if status >= "300")
    return [*found, "Answers " + "; ".join(answers) + f". Errors: {errors}."]


def fields(schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        [
            f"`{name}`",
            kind(one),
            "required" if name in required else cell(one.get("default", "")),
            cell(one.get("description", "")),
        ]
        for name, one in schema.get("properties", {}).items()
    ]
    return table(["field", "type", "default", ""], rows) if rows else ""


def kind(schema: Schema, content: str = "application/json") -> str:
    """The type of a schema in a few words, with a link to the one it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(kind(one) for one in options))
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    if content != "application/json":
        return f"`{content}`"
    return "file" if schema.get("format") == "binary" else str(schema.get("type", "any"))


def module_page(name: str) -> str:
    """Everything that a module exports: its docstring, then each name where it is defined."""
    import importlib

    module = importlib.import_module(f"midspan.{name}")
    doc = inspect.cleandoc(module.__doc__ or "").split("\n\n    ")
    sections = [f"# midspan.{name}", doc[0]]
    if len(doc) > 1:
        example, _, rest = "\n\n    ".join(doc[1:]).partition("\n\n")
        sections += [f"```python\n{inspect.cleandoc('    ' + example)}\n```", rest]
    shown_there = re.findall(r"^::: (\S+)", (DOCS / "reference/api.md").read_text("utf-8"), re.M)
    constants = []
    for word in module.__all__:
        value = getattr(module, word)
        if not hasattr(value, "__module__") or not hasattr(value, "__name__"):
            shown = ", ".join(f"`{one}`" for one in value) if is_table(value) else f"`{value!r}`"
            constants.append([f"`{word}`", shown if len(shown) < 1500 else "see the source"])
            continue
        if value.__module__.split(".")[0] != "midspan":
            constants.append([f"`{word}`", f"`{value.__module__}.{value.__name__}`"])
            continue
        path = f"{value.__module__}.{value.__qualname__}"
        if path in shown_there:
            sections.append(f"## {word}\n\nSee [{word}](../api.md#{path}).")
        else:
            sections.append(f"::: {path}\n    options:\n      heading: {word}")
    if constants:
        sections.insert(2, table(["constant", "holds"], constants))
    return "\n\n".join(one for one in sections if one) + "\n"


def notebook_page(path: Path) -> str:
    """The cells of a notebook, and the notebook itself to be taken along."""
    sections = []
    for one in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(one["source"])
        sections.append(text if one["cell_type"] == "markdown" else f"```python\n{text}\n```")
    file = f"../../examples/notebooks/{path.name}"
    sections.insert(1, f"This page is the notebook [{path.name}]({file}), which runs in the tests.")
    return "\n\n".join(sections) + "\n"


def is_table(value: object) -> bool:
    return isinstance(value, dict | tuple | frozenset | set | list)
