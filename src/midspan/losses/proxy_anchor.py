"""Proxy-Anchor: every proxy pulls its own images of the batch and pushes the rest."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.deprecation import renamed_argument
from midspan.losses.base import RecognitionLoss


class ProxyAnchor(RecognitionLoss):
    """Mean over P⁺ of log(1 + Σ e^{−α(c − δ)}) + mean over P of log(1 + Σ e^{α(c + δ)}).

    The first sum runs over the proxy's own images of the batch, the second over all others; P are
    all proxies, P⁺ those with an image in the batch. Paper: arXiv:2003.13911. Defaults: scale
    α = 32, margin δ = 0.1 (paper); proxies learn 100 times faster than the encoder (its code).

    Args:
        scale: α, of the cosines.
        margin: δ, of positives and negatives.
        proxy_lr: How many times faster the proxies learn than the encoder.

    Example:
        >>> import torch
        >>> from midspan.losses import ProxyAnchor
        >>> loss = ProxyAnchor.for_classes(10, dim=8)
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    @renamed_argument("rows_lr", "proxy_lr")
    def __init__(
        self, *, scale: float = 32.0, margin: float = 0.1, proxy_lr: float = 100.0
    ) -> None:
        super().__init__()
        self.scale = scale
        self.margin = margin
        self.proxy_lr = proxy_lr

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        assert logits is not None
        shift = self.scale * self.margin
        own = F.one_hot(labels, logits.shape[1]).bool()  # (B, C)
        zero = logits.new_zeros(1, logits.shape[1])  # the 1 inside the logarithm
        pull = (shift - logits).masked_fill(~own, float("-inf"))
        push = (shift + logits).masked_fill(own, float("-inf"))
        pulls = torch.logsumexp(torch.cat([zero, pull]), dim=0)  # (C,): 0 for absent classes
        pushes = torch.logsumexp(torch.cat([zero, push]), dim=0)
        return pulls.sum() / own.any(dim=0).sum() + pushes.mean()
