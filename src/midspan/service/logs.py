"""Logs: one JSON object a line, with the request's id. Never vectors, payloads or tokens."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

from pydantic_core import to_json

LOGGER = logging.getLogger("midspan.service")
EVERY = 0.05  # seconds between two writes


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
    handler = _Batches(sys.stderr)
    logging.captureWarnings(True)  # of NumPy and others: as lines of this log
    for name in ("midspan.service", "uvicorn", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = True
    for name in ("logThreads", "logProcesses", "logMultiprocessing"):
        setattr(logging, name, False)  # half of the time of a line, for fields that no line has
    handler.start()
    return handler.stop


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


class _Batches(logging.Handler):
    """Lines are kept as they come, and formatted and written together by a thread of its own.

    A thread that is woken for each line takes the interpreter from the event loop each time: that
    cost more than all else that a request does there.
    """

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out, self._format = out, JsonLines().format
        self._records: deque[logging.LogRecord] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def handle(self, record: logging.LogRecord) -> bool:
        self._records.append(record)  # atomic: no lock is needed
        return True

    def _work(self) -> None:
        while not self._stopping.wait(EVERY):
            self._write()
        self._write()

    def _write(self) -> None:
        lines = []
        while self._records:
            lines.append(self._format(self._records.popleft()) + "\n")
        if lines:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                self._out.write("".join(lines))
                self._out.flush()


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
