"""Inverted lists beside a library that swaps the methods of faiss."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import faiss.contrib.torch_utils  # as pytorch-metric-learning does
import numpy as np
from midspan.gallery.engines.embedded.ivf import EightBits
from midspan.gallery.engines.embedded.ivf import Ivf

rng = np.random.default_rng(0)
vectors = rng.normal(size=(200, 8)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
index = Ivf.learn(vectors[:4].copy(), metric="cosine", sample=vectors, codes=EightBits(8))
index.add(np.arange(200), vectors)
_, rows = index.search(vectors[:20], 1, probes=4)
print((rows[:, 0] == np.arange(20)).all())
"""


@pytest.mark.slow  # torch in a process of its own
def test_faiss_with_patched_methods_still_works() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
