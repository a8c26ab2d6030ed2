"""Any loss of pytorch-metric-learning, by its class name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from midspan.errors import ConfigError, MissingDependency
from midspan.losses.base import RecognitionLoss


class MetricLearning(RecognitionLoss):
    """`loss = "TripletMarginLoss"`, `settings = {margin = 0.1}`, and a miner in the same way.

    Classification losses of that library get `num_classes` and `embedding_size` automatically.

    Args:
        loss: Name of a loss of pytorch-metric-learning.
        settings: Its arguments.
        miner: Name of one of its miners.
        miner_settings: Its arguments.

    Example:
        >>> import torch
        >>> from midspan.losses import MetricLearning
        >>> loss = MetricLearning.for_classes(10, dim=8, loss="TripletMarginLoss")
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    has_classifier: ClassVar[bool] = False

    def __init__(
        self,
        *,
        loss: str,
        settings: Mapping[str, Any] | None = None,
        miner: str | None = None,
        miner_settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._loss_class = _find("losses", loss)
        self._settings = dict(settings or {})
        self.loss: nn.Module | None = None
        self.miner: nn.Module | None = None
        if miner is not None:
            self.miner = _make(_find("miners", miner), dict(miner_settings or {}))
        elif miner_settings:
            raise ConfigError("[loss] has miner_settings but no miner; name one, or drop them")

    def prepare(self, *, num_classes: int, dim: int) -> None:
        given = dict(self._settings)
        if _takes(self._loss_class, "num_classes"):
            given = {"num_classes": num_classes, "embedding_size": dim} | given
        self.loss = _make(self._loss_class, given)

    def logits(self, vectors: Tensor) -> None:
        return None

    def part(
        self,
        vectors: Tensor,
        labels: Tensor,
        dims: slice,
        *,
        confidence: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Tensor:
        if classes is not None:
            raise ConfigError(
                f"[train] own_classes = true cannot be used with {type(self).__name__}"
            )
        if list(self.parameters()):
            raise ConfigError(
                "a loss of pytorch-metric-learning that learns class weights cannot judge a slice "
                "of the embedding; use 'proxy-anchor', 'proxy-nca' or a loss on pairs"
            )
        return super().part(vectors, labels, dims)

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        if self.loss is None:
            raise RuntimeError("MetricLearning.prepare was not called")
        pairs = self.miner(vectors, labels) if self.miner is not None else None
        value: Tensor = self.loss(vectors, labels, pairs)
        return value


def _find(kind: str, name: str) -> type[nn.Module]:
    try:
        module = importlib.import_module(f"pytorch_metric_learning.{kind}")
    except ImportError as error:
        raise MissingDependency(
            "pytorch-metric-learning", extra="train", required_for="loss 'metric-learning'"
        ) from error
    kind_class = getattr(module, name, None)
    if not isinstance(kind_class, type):
        known = ", ".join(sorted(n for n in vars(module) if n[0].isupper()))
        raise ConfigError(f"pytorch-metric-learning has no {kind} {name!r}; known: {known}")
    return kind_class


def _takes(target: type[nn.Module], argument: str) -> bool:
    """Its classes pass settings up by **kwargs, so every class of the chain is checked."""
    return any(
        argument in inspect.signature(vars(cls)["__init__"]).parameters
        for cls in target.__mro__
        if "__init__" in vars(cls) and cls is not object
    )


def _make(target: type[nn.Module], settings: Mapping[str, Any]) -> nn.Module:
    for name in settings:
        if not _takes(target, name):
            raise ConfigError(f"[loss] settings: {target.__name__} has no setting {name!r}")
    return target(**settings)
