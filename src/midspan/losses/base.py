"""The contract of recognition losses, and the cosine logits most of them share."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.errors import ConfigError


class RecognitionLoss(nn.Module):
    """Hyper-parameters in `__init__`, the number of classes in `prepare`.

    `logits` are what the classifier says without margin, so that a method can reuse them;
    `forward` turns vectors, logits and labels into one number, the mean over the batch.

    Example:
        >>> import torch
        >>> from midspan.losses import CosFace
        >>> loss = CosFace.for_classes(10, dim=8)
        >>> loss.logits(torch.randn(4, 8)).shape
        torch.Size([4, 10])
    """

    has_classifier: ClassVar[bool] = True  # False: pairs only, logits are None
    normalised: ClassVar[bool] = True  # cosines of unit rows, or plain dot products
    uses_confidence: ClassVar[bool] = False  # True: requires a `confident` encoder
    shardable: ClassVar[bool] = False  # True: cross-entropy, so its classes may be in parts
    has_bias: bool = False  # may follow from the settings
    scale: float = 1.0
    proxy_lr: float = 1.0  # learning rate of the class weights, as a multiple of the encoder's

    def __init__(self) -> None:
        super().__init__()
        self.rows: nn.Parameter | None = None  # (C, D) class weights
        self.bias: nn.Parameter | None = None  # (C,)

    def prepare(self, *, num_classes: int, dim: int) -> None:
        """Create the class weights, drawn as for a linear layer from torch's global generator."""
        bound = 1.0 / math.sqrt(dim)
        self.rows = nn.Parameter(torch.empty(num_classes, dim).uniform_(-bound, bound))

    @classmethod
    def for_classes(cls, num_classes: int, *, dim: int, **settings: Any) -> Self:
        """Ready to train with; settings: the loss's own."""
        loss = cls(**settings)
        loss.prepare(num_classes=num_classes, dim=dim)
        return loss

    def value(self, vectors: Tensor, labels: Tensor, *, confidence: Tensor | None = None) -> Tensor:
        """The loss of new vectors (B, D), not normalised; the mean over the batch."""
        logits = self.confident_logits(vectors, confidence)
        value: Tensor = self(vectors=vectors, logits=logits, labels=labels)
        bounds = self.regulariser(confidence)
        return value if bounds is None else value + bounds

    def start_rows(self, rows: Tensor, known: Tensor) -> None:
        """Start at the directions of these rows (C, d) where `known` (C,); called after `prepare`.

        d may be less than the dims of the loss: then only the first d dims start there. Lengths
        stay as they were drawn.
        """
        have = None if self.rows is None else tuple(self.rows.shape)
        if self.rows is None or len(self.rows) != len(rows) or self.rows.shape[1] < rows.shape[1]:
            raise ConfigError(
                f"class weights cannot start at {tuple(rows.shape)} old centres: this loss has "
                f"{have}; use a loss with a classifier and at least the old dim, or drop "
                "[classifier] init"
            )
        with torch.no_grad():
            first = self.rows[:, : rows.shape[1]]  # (C, d)
            lengths = first.norm(dim=1, keepdim=True)
            started = F.normalize(rows.to(first)) * lengths
            first.copy_(torch.where(known.unsqueeze(1), started, first))

    def fix_rows(self, rows: Tensor) -> None:
        """Keep these class weights (C, D) fixed; called after `prepare`."""
        if self.rows is None or self.rows.shape != rows.shape:
            have = None if self.rows is None else tuple(self.rows.shape)
            raise ConfigError(
                f"fixed class weights: expected shape {have}, got {tuple(rows.shape)}; "
                "use a loss with a classifier, e.g. name = 'cosface'"
            )
        self.rows = nn.Parameter(rows.detach().clone(), requires_grad=False)

    def logits(self, vectors: Tensor) -> Tensor | None:  # (B, D) → (B, C)
        return self.logits_of(vectors, self.class_rows())

    def logits_of(self, vectors: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        """With other class weights (C, D) than its own, such as a slice of them."""
        return self.scale * cosines(vectors, rows)

    def margin_on(self, own: Tensor) -> Tensor:
        """What the margin adds to the logit of the true class, of any shape."""
        return torch.zeros_like(own)

    def confident_logits(self, vectors: Tensor, confidence: Tensor | None) -> Tensor | None:
        """As `logits`, for an encoder with a confidence for each of its K sub-embeddings (B, K).

        A loss that does not use confidences has the same logits with and without them.
        """
        return self.logits(vectors)

    def regulariser(self, confidence: Tensor | None) -> Tensor | None:
        """What keeps the confidences in bounds, weighted; None: nothing is needed."""
        return None

    def typical_scale(self) -> float:
        """The mean factor of a cosine, for those who reuse the class weights."""
        return self.scale

    def part(
        self,
        vectors: Tensor,
        labels: Tensor,
        dims: slice,
        *,
        confidence: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Tensor:
        """The loss of these dims alone, with the same dims of the class weights.

        Nothing outside of the slice gets a gradient. classes: (K,) ascending, the only ones that
        are compared; every label is one of them.
        """
        logits = None
        if self.has_classifier:
            rows = self.class_rows()[:, dims]
            bias: Tensor | None = self.bias
            if classes is not None:
                self.check_own_classes()
                rows, bias = rows[classes], None if bias is None else bias[classes]
                labels = torch.searchsorted(classes, labels)
            logits = self.logits_of(vectors[:, dims], rows, bias)
        value: Tensor = self(vectors=vectors[:, dims], logits=logits, labels=labels)
        return value

    def check_own_classes(self) -> None:
        """Only a cross-entropy over class weights can be computed over some of the classes."""
        if not self.shardable:
            raise ConfigError(
                f"[train] own_classes = true needs a cross-entropy over class weights, and "
                f"{type(self).__name__} is not one; use e.g. [loss] name = 'cosface', or drop it"
            )

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
    """`logits` with `change` added at the label, where every margin applies."""
    index = labels.unsqueeze(1)
    if isinstance(change, float):
        change = torch.full_like(index, change, dtype=logits.dtype)
    return logits.scatter_add(1, index, change)
