"""Where the time of an exact search goes, on one thread: python benchmarks/profile_search.py

Writes benchmarks/results/profile_search.txt; the shapes are those of benchmarks/evaluation.py (b),
with a tenth of the gallery.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy: a profile of one thread is one that adds up

import cProfile
import io
import pstats
from pathlib import Path

import numpy as np

from midspan.evaluation import search_exact

RESULTS = Path(__file__).parent / "results" / "profile_search.txt"


def main() -> None:
    rng = np.random.default_rng(0)
    gallery = rng.standard_normal((100_000, 128), dtype=np.float32)
    queries = rng.standard_normal((1000, 128), dtype=np.float32)
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    search_exact(queries, gallery, k=100)
    profile = cProfile.Profile()
    profile.runcall(search_exact, queries, gallery, k=100)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(14)
    RESULTS.write_text("\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
