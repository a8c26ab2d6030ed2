"""No thought of the old encoder: the upper bound for self, the lower bound for cross."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from midspan.methods.base import Batch, Method


class Independent(Method):
    """Recognition alone. Its vectors cannot be compared with the old ones.

    Example:
        >>> import torch
        >>> from midspan.methods import Independent
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = Independent.for_old(old, labels, dim=8)
        >>> terms = compat(torch.randn(40, 8), labels, old=old, rows=torch.arange(40))
        >>> sorted(terms)
        []
    """

    uses_old: ClassVar[bool] = False
    directions: tuple[str, ...] = ()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        return {}
