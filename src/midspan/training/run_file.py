"""The text of a run file: its paths, changes of single values, and how it is written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midspan.config import current_name, current_settings
from midspan.errors import ConfigError

# Settings that name files: relative ones are meant from the run file's folder.
_PATHS = (
    ("data", "path"),
    ("data", "test"),
    ("encoder", "init_from"),
    ("old", "run"),
    ("old", "embeddings"),
    ("variations", "attributes"),
)


def apply_change(raw: dict[str, Any], change: str) -> None:
    """Set one "section.key=value", the value in TOML's own notation."""
    place, separator, value = change.partition("=")
    section, _, key = place.strip().rpartition(".")
    if not separator or not key:
        raise ConfigError(f"change {change!r}: expected section.key=value, e.g. train.epochs=5")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string
    target = raw.setdefault(section, {}) if section else raw
    target[key] = parsed


def with_paths(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same with absolute paths."""
    resolved = {k: dict(v) if isinstance(v, dict) else v for k, v in raw.items()}
    for section, key in _PATHS:
        value = resolved.get(section, {}).get(key)
        if isinstance(value, str) and not Path(value).is_absolute():
            resolved[section][key] = str(folder / value)
    return resolved


def with_current_names(raw: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """The same with the names that loss, method and their settings have today."""
    current = dict(raw)
    for what in ("loss", "method"):
        if isinstance(section := raw.get(what), Mapping):
            current[what] = current_settings(section, what=what, warn=warn)
            if isinstance(name := section.get("name"), str):
                current[what]["name"] = current_name(name, what=what, warn=warn)
    return current


def comparable(text: str) -> str:
    """A written run file, so that one of an earlier release compares equal to the same run today.

    Earlier releases wrote names of methods with underscores, also as part of a run's name.
    """
    raw = with_current_names(tomllib.loads(text), warn=False)
    if isinstance(name := raw.get("name"), str):
        raw["name"] = name.replace("_", "-")
    return to_toml(raw)


def to_toml(raw: Mapping[str, Any]) -> str:
    """The text of a run file with one level of sections."""
    top = [f"{key} = {_toml_value(value)}" for key, value in raw.items() if not _is_table(value)]
    parts = ["\n".join(top)] if top else []
    for section, values in raw.items():
        if _is_table(values):
            lines = [f"{key} = {_toml_value(value)}" for key, value in values.items()]
            parts.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(parts) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items())
        return "{" + inner + "}"
    return repr(value)
