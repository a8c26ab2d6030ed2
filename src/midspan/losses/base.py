"""The contract of recognition losses, and the cosine logits most of them share."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.errors import ConfigError


class RecognitionLoss(nn.Module):
    """Hyper-parameters in `__init__`, the number of classes in `prepare`.

    `logits` are what the classifier says without margin, so that a method can reuse them;
    `forward` turns vectors, logits and labels into one number, the mean over the batch.
    """

    has_classifier: ClassVar[bool] = True  # False: pairs only, logits are None
    normalised: ClassVar[bool] = True  # cosines of unit rows, or plain dot products
    uses_confidence: ClassVar[bool] = False  # True: wants an encoder that is `confident`
    shardable: ClassVar[bool] = False  # True: cross-entropy, so its classes may be in parts
    has_bias: ClassVar[bool] = False
    scale: float = 1.0
    rows_lr: float = 1.0  # learning rate of the class rows, as a multiple of the encoder's

    def __init__(self) -> None:
        super().__init__()
        self.rows: nn.Parameter | None = None  # (C, D) class rows
        self.bias: nn.Parameter | None = None  # (C,)

    def prepare(self, *, num_classes: int, dim: int) -> None:
        """Make the class rows; drawn as for a linear layer, from torch's global generator."""
        bound = 1.0 / math.sqrt(dim)
        self.rows = nn.Parameter(torch.empty(num_classes, dim).uniform_(-bound, bound))

    def fix_rows(self, rows: Tensor) -> None:
        """Keep these class rows (C, D) to the end; called after `prepare`."""
        if self.rows is None or self.rows.shape != rows.shape:
            have = None if self.rows is None else tuple(self.rows.shape)
            raise ConfigError(
                f"fixed class rows of shape {tuple(rows.shape)} do not fit this loss, whose rows "
                f"are {have}; use a loss with a classifier, e.g. name = 'cosface'"
            )
        self.rows = nn.Parameter(rows.detach().clone(), requires_grad=False)

    def logits(self, vectors: Tensor) -> Tensor | None:  # (B, D) → (B, C)
        return self.logits_of(vectors, self.class_rows())

    def logits_of(self, vectors: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        """With other class rows (C, D) than its own, such as a slice of them."""
        return self.scale * cosines(vectors, rows)

    def margin_on(self, own: Tensor) -> Tensor:
        """What the margin adds to the logit of the true class, of any shape."""
        return torch.zeros_like(own)

    def confident_logits(self, vectors: Tensor, confidence: Tensor | None) -> Tensor | None:
        """As `logits`, for an encoder that says how sure it is of its K sub-embeddings (B, K).

        A loss that does not ask for confidences has the same logits with and without them.
        """
        return self.logits(vectors)

    def regulariser(self, confidence: Tensor | None) -> Tensor | None:
        """What keeps the confidences in bounds, weighted; None: nothing is needed."""
        return None

    def typical_scale(self) -> float:
        """By what a cosine is multiplied, on average: for those who reuse the class rows."""
        return self.scale

    def part(
        self, vectors: Tensor, labels: Tensor, dims: slice, *, confidence: Tensor | None = None
    ) -> Tensor:
        """The loss of these dims alone, with the same dims of the class rows.

        Nothing outside of the slice gets a gradient.
        """
        logits = None
        if self.has_classifier:
            logits = self.logits_of(vectors[:, dims], self.class_rows()[:, dims])
        value: Tensor = self(vectors=vectors[:, dims], logits=logits, labels=labels)
        return value

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        raise NotImplementedError

    def class_rows(self) -> Tensor:
        if self.rows is None:
            raise RuntimeError(f"{type(self).__name__}.prepare was not called")
        return self.rows


def cosines(vectors: Tensor, rows: Tensor) -> Tensor:
    """(B, D), (C, D) → (B, C)."""
    return F.linear(F.normalize(vectors), F.normalize(rows))


def at_label(logits: Tensor, labels: Tensor, change: Tensor | float) -> Tensor:
    """`logits` with `change` added where the label is: the place of every margin."""
    index = labels.unsqueeze(1)
    if isinstance(change, float):
        change = torch.full_like(index, change, dtype=logits.dtype)
    return logits.scatter_add(1, index, change)
