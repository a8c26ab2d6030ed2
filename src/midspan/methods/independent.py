"""No thought of the old encoder: the upper bound for self, the lower bound for cross."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from midspan.methods.base import Batch, Method


class Independent(Method):
    """Recognition alone. Its vectors cannot be compared with the old ones."""

    uses_old: ClassVar[bool] = False
    uses_labels: ClassVar[bool] = True
    directions: tuple[str, ...] = ()

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {}
