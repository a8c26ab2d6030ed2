"""The range of a confidence. A module of its own, so that run files are read without torch."""

from __future__ import annotations

CONFIDENCE_RANGE = (-4.0, 6.0)  # of the logarithm of a confidence, so that exp cannot run away
