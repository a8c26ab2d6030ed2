"""Old names that work for one more release, each with a warning that says the new name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that `old` is now `new`; the warning points at the caller of the caller."""
    warnings.warn(
        f"{old} is now {new}; the old name is removed in the next release",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


def renamed_argument(old: str, new: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: the keyword argument `old` is passed on as `new`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if old in kwargs:
                warn_renamed(f"{function.__name__}({old}=)", f"{new}=")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_attribute(module: str, name: str, renamed: Mapping[str, str]) -> str:
    """The attribute of `module` that `name` stands for; for the `__getattr__` of a package."""
    if name not in renamed:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warn_renamed(f"{module}.{name}", f"{module}.{renamed[name]}", stacklevel=4)
    return renamed[name]


def current_name(name: str, known: Collection[Any], *, renamed: Mapping[str, str]) -> str:
    """The entry of a table of names that `name` means: itself, or what an old spelling became."""
    if name in known or name not in renamed:
        return name
    warn_renamed(repr(name), repr(renamed[name]), stacklevel=4)
    return renamed[name]
