"""Decoding in processes of their own: what breaks one breaks one request."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from midspan.data.decode import decode_image
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import ImageError
from midspan.image_size import ImageSize
from midspan.service.decoding import DecodePool
from midspan.service.errors import TooLarge
from midspan.service.settings import MIB, Limits
from tests.service.corpus import gif_of, hungry_png, png_that_says
from tests.service.shop import encoded

BOX = Preprocessing(height=24, width=20, channels=3, mean=(0, 0, 0), std=(1, 1, 1))


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    made = DecodePool(Limits(decode_workers=1, decode_seconds=5.0, pixels=2_000_000, frames=8))
    yield made
    made.close()


def worker_of(pool: DecodePool) -> int:
    worker = pool._idle.get()
    pool._idle.put(worker)
    assert worker is not None
    return worker._process.pid


def test_decoded_pixels_equal_those_of_training(pool: DecodePool) -> None:
    expected = decode_image(encoded(3), ImageSize(24, 20, 3))
    assert np.array_equal(pool.fit(encoded(3), BOX), expected)


def test_image_caps_are_checked_before_decoding(pool: DecodePool) -> None:
    with pytest.raises(ImageError, match="40,000 x 40,000 pixels"):
        pool.fit(png_that_says(40_000, 40_000), BOX)
    with pytest.raises(ImageError, match="at most 2,000,000 are taken"):
        pool.thumbnail(png_that_says(2000, 2000), size=64)
    with pytest.raises(ImageError, match="9 frames; at most 8"):
        pool.fit(gif_of(9), BOX)
    assert pool.fit(gif_of(8), BOX).shape == (24, 20, 3)
    with pytest.raises(TooLarge):
        DecodePool(Limits(image_bytes=10)).fit(encoded(1), BOX)


def test_decode_worker_that_dies_is_replaced(pool: DecodePool) -> None:
    pool.fit(encoded(1), BOX)
    before, pid = pool.replaced, worker_of(pool)
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    try:
        pool.fit(encoded(1), BOX)
    except ImageError:
        assert pool.replaced == before + 1  # it died with this one in hand
    assert pool.fit(encoded(1), BOX).shape == (24, 20, 3)
    assert worker_of(pool) != pid


def test_decode_worker_that_hangs_is_killed_after_the_timeout() -> None:
    pool = DecodePool(Limits(decode_workers=1, decode_seconds=0.5))
    try:
        pool.fit(encoded(1), BOX)
        os.kill(worker_of(pool), signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(ImageError, match=r"more than 0\.5 s"):
            pool.fit(encoded(1), BOX)
        assert time.monotonic() - started < 10
        assert pool.replaced == 1
    finally:
        pool.close()


@pytest.mark.slow
def test_image_beyond_the_memory_limit_fails_and_the_pool_continues() -> None:
    """Within the pixel cap, but beyond the memory of a worker."""
    pool = DecodePool(Limits(decode_workers=1, decode_memory=400 * MIB, pixels=200_000_000))
    try:
        with pytest.raises(ImageError):
            pool.fit(hungry_png(), BOX)
        assert pool.fit(encoded(1), BOX).shape == (24, 20, 3)
    finally:
        pool.close()


def test_decode_workers_do_not_inherit_tokens(
    pool: DecodePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSPAN_ADMIN_TOKEN", "x" * 20)
    fresh = DecodePool(Limits(decode_workers=1))
    try:
        fresh.fit(encoded(1), BOX)
        with open(f"/proc/{worker_of(fresh)}/environ", "rb") as file:
            assert b"MIDSPAN_ADMIN_TOKEN" not in file.read()
    finally:
        fresh.close()
