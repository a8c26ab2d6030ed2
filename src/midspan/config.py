"""TOML run files → typed settings. A constructor's signature is the schema; the rest is an error.

A part of a run file names a thing from a plain table and gives its settings:

    [method]
    name = "bct"
    weight = 1.0

`build(METHODS, {...}, what="method")` finds "bct" in the table, imports it, checks each key and
value against the keyword arguments of its constructor, and calls it.
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

from midspan.errors import ConfigError

Settings = Mapping[str, Any]


def read_toml(path: str | Path) -> dict[str, Any]:
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such run file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML ({error})") from error


def look_up(table: Mapping[str, str], name: str, *, what: str) -> Any:
    """The object behind 'package.module:Name', imported only now."""
    if name not in table:
        raise ConfigError(f"no {what} is called {name!r}{_hint(name, table)}")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def build(table: Mapping[str, str], section: Settings, *, what: str, **given: Any) -> Any:
    """Make the thing that `section` names. `given` are arguments the caller supplies itself."""
    settings = dict(section)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"[{what}] wants a name; one of {', '.join(sorted(table))}")
    target = look_up(table, name, what=what)
    return construct(target, settings, where=f"[{what}] name = {name!r}", **given)


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
    """The settings in the types of the signature. `complete`: none without a default may miss."""
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
                f"{where}: {title} setting {name!r} wants {_readable(hint)}, got {value!r}"
            )
        checked[name] = converted
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in checked
    ]
    if missing and complete:
        raise ConfigError(f"{where}: {title} wants a value for {', '.join(map(repr, missing))}")
    return checked


def _hint(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else "; it has no settings"


def _convert(value: Any, hint: Any) -> tuple[bool, Any]:
    """(does it fit, the value in the wanted type). TOML has no None, tuples or paths."""
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
