"""TOML run files → typed settings. A constructor's signature is the schema; the rest is an error.

A part of a run file names a thing from a plain table and gives its settings:

    [method]
    name = "bct"
    weight = 1.0

`build(METHODS, {...}, what="method")` finds "bct" in the table, imports it, checks each key and
value against the keyword arguments of its constructor, and calls it.

Names in the tables are written with hyphens. An underscore instead, or a name that was changed,
still works for one release, with a warning.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union

from midspan.deprecation import RenamedWarning, warn_renamed
from midspan.errors import ConfigError

Settings = Mapping[str, Any]

RENAMED = {("loss", "url"): "universal"}  # (what, old name) → new name
RENAMED_SETTINGS = {("loss", "rows_lr"): "proxy_lr"}


def read_toml(path: str | Path) -> dict[str, Any]:
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such run file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML ({error})") from error


def current_name(name: str, *, what: str, warn: bool = True) -> str:
    """How the tables spell `name` today. `warn`: False for names in files of earlier releases."""
    new = RENAMED.get((what, name), name.replace("_", "-"))
    if warn and new != name:
        warn_renamed(f"the {what} {name!r}", repr(new), stacklevel=4, category=RenamedWarning)
    return new


def look_up(table: Mapping[str, str], name: str, *, what: str, warn: bool = True) -> Any:
    """The object behind 'package.module:Name', imported only now."""
    if name not in table and current_name(name, what=what, warn=False) in table:
        name = current_name(name, what=what, warn=warn)
    if name not in table:
        raise ConfigError(f"no {what} is called {name!r}{_hint(name, table)}")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def build(table: Mapping[str, str], section: Settings, *, what: str, **given: Any) -> Any:
    """Create what `section` names. `given` are arguments that the caller supplies itself."""
    settings = current_settings(section, what=what)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"[{what}] name: expected one of {', '.join(sorted(table))}, got {name!r}"
        )
    target = look_up(table, name, what=what)
    return construct(target, settings, where=f"[{what}] name = {name!r}", **given)


def current_settings(section: Settings, *, what: str, warn: bool = True) -> dict[str, Any]:
    """A copy of `section` with its settings under the names that they have today."""
    settings = dict(section)
    for (owner, old), new in RENAMED_SETTINGS.items():
        if owner == what and old in settings:
            if warn:
                warn_renamed(
                    f"the setting {old!r} of [{what}]",
                    repr(new),
                    stacklevel=4,
                    category=RenamedWarning,
                )
            settings.setdefault(new, settings.pop(old))
    return settings


def construct(target: Callable[..., Any], settings: Settings, *, where: str, **given: Any) -> Any:
    """Call `target` with settings that were checked against its signature."""
    checked = check_settings(target, settings, where=where, taken=given)
    return target(**checked, **given)


def check_settings(
    target: Callable[..., Any],
    settings: Settings,
    *,
    where: str,
    taken: Iterable[str] = (),
    complete: bool = True,
) -> dict[str, Any]:
    """Settings in the types of the signature. `complete`: all that have no default are there."""
    title = getattr(target, "__name__", str(target))
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and name not in taken
    }
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    checked = {}
    for name, value in settings.items():
        if name not in parameters:
            raise ConfigError(f"{where}: {title} has no setting {name!r}{_hint(name, parameters)}")
        hint = hints.get(name, Any)
        fits, converted = _convert(value, hint)
        if not fits:
            raise ConfigError(
                f"{where}: {title} setting {name!r}: expected {_readable(hint)}, got {value!r}"
            )
        checked[name] = converted
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in checked
    ]
    if missing and complete:
        raise ConfigError(f"{where}: {title} requires a value for {', '.join(map(repr, missing))}")
    return checked


def _hint(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else "; it has no settings"


def _convert(value: Any, hint: Any) -> tuple[bool, Any]:
    """(does it fit, the value in the expected type). TOML has no None, tuples or paths."""
    if hint is Any:
        return True, value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        for option in arguments:
            fits, converted = _convert(value, option)
            if fits:
                return True, converted
        return False, value
    if origin is Literal:
        return value in arguments, value
    if origin in (tuple, list):
        return _convert_sequence(value, origin, arguments)
    if origin in (dict, Mapping) or hint is dict:
        return isinstance(value, dict), value
    if hint is bool or isinstance(value, bool):  # bool is an int for Python, not for us
        return hint is bool and isinstance(value, bool), value
    if hint is float:
        return isinstance(value, int | float), float(value) if isinstance(value, int) else value
    if hint is Path:
        return isinstance(value, str | Path), Path(value) if isinstance(value, str) else value
    if hint is type(None):
        return value is None, value
    return (isinstance(value, hint) if inspect.isclass(hint) else True), value


def _convert_sequence(value: Any, origin: Any, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    if not isinstance(value, list | tuple):
        return False, value
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(arguments) != len(value):
            return False, value
        kinds = list(arguments)
    else:
        kinds = [arguments[0] if arguments else Any] * len(value)
    pairs = [_convert(item, kind) for item, kind in zip(value, kinds, strict=True)]
    return all(fits for fits, _ in pairs), origin(converted for _, converted in pairs)


def _readable(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    return str(hint).replace("typing.", "") if typing.get_origin(hint) else hint.__name__
