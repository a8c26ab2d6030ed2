"""Old names that work for one more release, each with a warning that gives the new name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class RenamedWarning(UserWarning, FutureWarning):
    """An old name in a run file or an option: shown to users, unlike a DeprecationWarning."""


def warn_renamed(
    old: str, new: str, *, stacklevel: int = 3, category: type[Warning] = DeprecationWarning
) -> None:
    """Warn that `old` is now `new`; the warning points at the caller of the caller."""
    warnings.warn(
        f"{old} is now {new}; the old name is removed in the next release",
        category,
        stacklevel=stacklevel,
    )


def renamed_argument(old: str, new: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: the keyword argument `old` is passed on as `new`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if old in kwargs:
                warn_renamed(f"{function.__qualname__}({old}=)", f"{new}=")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_attribute(module: str, name: str, renamed: Mapping[str, str]) -> str:
    """The attribute of `module` that `name` refers to; for the `__getattr__` of a package."""
    if name not in renamed:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warn_renamed(f"{module}.{name}", f"{module}.{renamed[name]}", stacklevel=4)
    return renamed[name]
