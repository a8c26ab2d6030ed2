"""The ?name=value of a location: each is asked for once, and what nobody asked for is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

from midspan.errors import GalleryError


class Settings:
    def __init__(self, location: str, *, shown: str) -> None:
        pairs = parse_qsl(urlsplit(location).query, keep_blank_values=True)
        self._given = dict(pairs)
        self._shown = shown
        self._asked: list[str] = []
        self.recorded: dict[str, str] = {}  # those that shape what is stored
        if len(self._given) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise GalleryError(f"{shown}: {twice} is given twice")

    def text(self, name: str, default: str = "", *, record: bool = False) -> str:
        self._asked.append(name)
        value = self._given.pop(name, None)
        if value is None:
            return default
        if record:
            self.recorded[name] = value
        return value

    def choice(
        self, name: str, choices: Sequence[str], default: str, *, record: bool = False
    ) -> str:
        value = self.text(name, default, record=record)
        if value not in choices:
            raise GalleryError(f"{self._shown}: {name}={value}; wanted {' or '.join(choices)}")
        return value

    def flag(self, name: str, *, record: bool = False) -> bool:
        return self.choice(name, ("false", "true"), "false", record=record) == "true"

    def number(
        self, name: str, default: float, low: float, high: float, *, record: bool = False
    ) -> float:
        value = self.text(name, repr(default), record=record)
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise GalleryError(f"{self._shown}: {name}={value}; wanted {low:g} to {high:g}")
        return number

    def whole(self, name: str, default: int, low: int, high: int, *, record: bool = False) -> int:
        number = self.number(name, default, low, high, record=record)
        if number != int(number):
            raise GalleryError(f"{self._shown}: {name}={number:g}; wanted a whole number")
        return int(number)

    def left(self) -> list[tuple[str, str]]:
        """What was not asked for."""
        return list(self._given.items())

    def finish(self) -> None:
        if self._given:
            name = min(self._given)
            raise GalleryError(
                f"{self._shown}: unknown setting {name!r}; there are {', '.join(self._asked)}"
            )


def check_made(given: Mapping[str, str], made: Mapping[str, str], *, shown: str) -> None:
    """What a location says of the tables must be what they were made with."""
    for name, value in given.items():
        if made.get(name) != value:
            raise GalleryError(
                f"{shown}: {name}={value}, but this gallery was made with "
                f"{name}={made.get(name, 'its default')}; leave the setting out, or copy the "
                "gallery to a new place with midspan gallery copy"
            )


def with_settings(location: str, recorded: Mapping[str, str]) -> str:
    """The location as it was when the gallery was made."""
    parts = urlsplit(location)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    pairs += [(name, value) for name, value in recorded.items() if name not in dict(pairs)]
    return parts._replace(query=urlencode(pairs)).geturl()
