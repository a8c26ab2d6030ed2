"""For every test: one thread each, so that tests side by side do not wait for one another."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import shutil
import tempfile
from collections import Counter

import hypothesis
import pytest
import typer.main
import typer.testing

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # read when torch and NumPy are first imported

# Millions of objects of modules and collected tests live until the end. The collector goes through
# all of them again and again, unless it is told that they stay (pytest_collection_finish).
gc.disable()

# What earlier runs or the developer cached must not decide a test; the workers share one folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["MIDSPAN_CACHE"] = tempfile.mkdtemp(prefix="midspan-cache-")
    atexit.register(shutil.rmtree, os.environ["MIDSPAN_CACHE"], ignore_errors=True)

# The same examples each time, and none is too slow: a busy machine is no reason to fail.
hypothesis.settings.register_profile(
    "midspan",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("midspan")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with most slow tests first: else one worker has such a file left when the other is
    done."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def commands_are_made_once() -> None:
    """typer reads the signatures of all commands at every call, which takes longer than most."""
    made = functools.cache(typer.main.get_command)
    patch = pytest.MonkeyPatch()
    patch.setattr("typer.main.get_command", made)
    patch.setattr("typer.testing._get_command", made)
