"""Server-sent events, from the lines of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from midspan.client.reading import read
from midspan.errors import FormatError
from midspan.wire import Event


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Server-sent events: `event:` and `data:` lines, and an empty one at the end of each."""
    name, data = "message", ""
    for line in lines:
        field, _, value = line.partition(":")
        if field == "event":
            name = value.strip()
        elif field == "data":
            data += value.removeprefix(" ")
        elif not line and data:
            yield Event(name=name, data=_event_data(data))
            name, data = "message", ""


def _event_data(data: str) -> dict[str, Any]:
    try:
        return read(dict[str, Any], json.loads(data))
    except ValueError as error:
        raise FormatError("an event of the service is not JSON") from error
