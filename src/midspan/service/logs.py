"""Logs: one JSON object a line, with the request's id. Never vectors, payloads or tokens."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from pydantic_core import to_json

LOGGER = logging.getLogger("midspan.service")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage().strip(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            # Where it happened, not what it said: messages may quote what a client sent.
            line["error"] = type(error).__name__
            line["where"] = [
                f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)[-8:]
            ]
        return to_json(line, fallback=str).decode()


def set_up(level: int = logging.INFO) -> Callable[[], None]:
    """To stderr through a thread, since a slow reader of the log must not stop the service.

    Returns what writes the last lines and ends the thread.
    """
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonLines())
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = logging.handlers.QueueListener(lines, out)
    handler = _AsItIs(lines)
    logging.captureWarnings(True)  # of NumPy and others: as lines of this log
    for name in ("midspan.service", "uvicorn", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = True
    for name in ("logThreads", "logProcesses", "logMultiprocessing"):
        setattr(logging, name, False)  # half of the time of a line, for what no line tells
    listener.start()
    return listener.stop


@contextlib.contextmanager
def notices() -> Iterator[None]:
    """What libraries and encoders print to stderr comes as lines of this log."""
    plain, sys.stderr = sys.stderr, _Notices()
    try:
        yield
    finally:
        sys.stderr = plain


class _Notices(io.TextIOBase):
    def __init__(self) -> None:
        self._part = ""
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            if line.strip():
                event(line.strip()[:2000], source="stderr")
        return len(text)


class _AsItIs(logging.handlers.QueueHandler):
    """Formatted by the listener; the usual handler would format here, and drop the traceback."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


def event(message: str, *, level: int = logging.INFO, **fields: object) -> None:
    if LOGGER.isEnabledFor(level):
        # Made by hand: Logger.log would look through the stack for a line that nobody prints.
        record = logging.LogRecord(LOGGER.name, level, __file__, 0, message, None, None)
        record.fields = fields
        LOGGER.handle(record)


def fault(message: str, error: BaseException, **fields: object) -> None:
    LOGGER.error(
        message, exc_info=(type(error), error, error.__traceback__), extra={"fields": fields}
    )
