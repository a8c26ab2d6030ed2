"""Proxy-NCA: nearer to the own class's proxy than to all the others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.deprecation import renamed_argument
from midspan.losses.base import RecognitionLoss


class ProxyNCA(RecognitionLoss):
    """−log e^{−s·d²(x, p_y)} / Σ_{j≠y} e^{−s·d²(x, p_j)}, all vectors of unit length.

    Paper: arXiv:1703.07464. Default: scale 1 (paper). The own proxy is left out of the sum, as the
    paper writes it; common libraries keep it in. Proxies learn 100 times faster than the encoder
    (customary; our choice of where to put it: `proxy_lr`).

    Args:
        scale: s, of the squared distances.
        proxy_lr: How many times faster the proxies learn than the encoder.

    Example:
        >>> import torch
        >>> from midspan.losses import ProxyNCA
        >>> loss = ProxyNCA.for_classes(10, dim=8)
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    @renamed_argument("rows_lr", "proxy_lr")
    def __init__(self, *, scale: float = 1.0, proxy_lr: float = 100.0) -> None:
        super().__init__()
        self.scale = 2.0 * scale  # d² = 2 − 2·cos: the same ranking of classes as these logits
        self.proxy_lr = proxy_lr

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        assert logits is not None
        # −s·d² = 2s·cos − 2s, and the constant falls out of the quotient.
        own = F.one_hot(labels, logits.shape[1]).bool()
        others = logits.masked_fill(own, float("-inf"))
        return (torch.logsumexp(others, dim=1) - logits[own]).mean()
