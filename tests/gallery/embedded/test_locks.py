"""Readers together, writers alone."""

from __future__ import annotations

import threading
import time

from midspan.gallery.engines.embedded.segment import SharedLock


def test_lock_is_shared_by_readers_and_exclusive_for_a_writer() -> None:
    lock, inside, seen = SharedLock(), list[str](), list[frozenset[str]]()
    guard = threading.Lock()

    def visit(name: str, *, exclusive: bool) -> None:
        for _ in range(30):
            with lock.exclusive() if exclusive else lock.shared():
                with guard:
                    inside.append(name)
                    seen.append(frozenset(inside))
                time.sleep(0.0005)
                with guard:
                    inside.remove(name)

    threads = [
        threading.Thread(target=visit, args=(name,), kwargs={"exclusive": name.startswith("w")})
        for name in ("r1", "r2", "r3", "w1", "w2")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(together) == 1 for together in seen if together & {"w1", "w2"})
    assert any(len(together) > 1 for together in seen), "readers never met"


def test_lock_waiting_writer_precedes_new_readers() -> None:
    lock, order = SharedLock(), list[str]()
    reading = lock.shared()
    reading.__enter__()

    def write() -> None:
        with lock.exclusive():
            order.append("writer")

    def read() -> None:
        with lock.shared():
            order.append("reader")

    writer = threading.Thread(target=write)
    writer.start()
    while not lock._waiting:
        time.sleep(0.001)
    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.02)
    assert order == []
    reading.__exit__(None, None, None)
    writer.join()
    reader.join()
    assert order == ["writer", "reader"]
