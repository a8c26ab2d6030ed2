"""For every test: one thread each, so that tests side by side do not wait for one another."""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # read when torch and NumPy are first imported
