"""A small residual network on top of ridge: learns what is not affine, if anything is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from midspan.bridges.base import TINY, Bridge, Pairs
from midspan.bridges.descent import (
    array,
    descend,
    held_out_split,
    need_torch,
    retrieval_score,
    seeded,
    tensor32,
)
from midspan.bridges.ridge import Ridge
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from torch import Tensor

    from midspan.bridges.onnx_export import Graph


class MLP(Bridge):
    """y = xL + b + GELU(xW₁ + b₁)W₂ with L, b from ridge and W₂ = 0 at the start.

    The residual MLP of Drift-Adapter (EMNLP 2025, arXiv:2509.23471): hidden 256, AdamW 3e-4.
    Loss: 1 - cos (squared error in other spaces) + `contrast` · InfoNCE at `temperature` 0.05
    within the batch (ours). Departs: L stays fixed, and the number of epochs is the one that is
    best on held-out pairs, 0 included, so the result is plain ridge where training does not help;
    then all pairs are fitted for that many epochs. An epoch has at least 32 batches, if they keep
    32 pairs each.

    Args:
        hidden: Width of the residual branch.
        epochs: At most so many.
        batch_size: Pairs in a step.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        contrast: Weight of InfoNCE; 0 leaves it out.
        temperature: Of InfoNCE.
        held_out: Share of the pairs that chooses the number of epochs.
        alpha: Penalty of the ridge; None chooses it as `Ridge` does.
        seed: Of weights, batches and held-out pairs.
        progress: A progress bar.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.MLP(epochs=1).fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "mlp"

    def __init__(
        self,
        *,
        hidden: int = 256,
        epochs: int = 30,
        batch_size: int = 256,
        learning_rate: float = 3e-4,
        weight_decay: float = 1e-2,
        contrast: float = 0.1,
        temperature: float = 0.05,
        held_out: float = 0.15,
        alpha: float | None = None,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.contrast = contrast
        self.temperature = temperature
        self.held_out = held_out
        self.alpha = alpha
        self.seed = seed
        self.progress = progress

    def pairs_needed(self, source_dim: int, target_dim: int) -> int:
        return 32

    def _fit(self, pairs: Pairs) -> None:
        need_torch(self.name)
        self.epochs_ = 0
        if self.epochs > 0:
            fit_rows, held_rows = held_out_split(pairs, share=self.held_out, seed=self.seed)
            self.epochs_ = self._train(
                pairs.part(fit_rows), epochs=self.epochs, held=pairs.part(held_rows)
            )
        self._train(pairs, epochs=self.epochs_, held=None)

    def _train(self, pairs: Pairs, *, epochs: int, held: Pairs | None) -> int:
        """Start at ridge, train; the best epoch on `held`."""
        import torch
        from torch import nn
        from torch.nn import functional

        start = Ridge(alpha=self.alpha, seed=self.seed).fit(pairs.source, pairs.target)
        self.alpha_ = start.alpha_
        self.weight_, self.bias_ = start.weight_, start.bias_  # (Ds, Dt), (Dt,)
        cosine = self.target.metric == "cosine"
        x, y = tensor32(pairs.x()), tensor32(pairs.y())
        linear = tensor32(start._map(x.numpy()))
        mean, scale = x.mean(dim=0), float(x.std(dim=0).square().mean().sqrt())
        x = (x - mean) / max(scale, TINY)  # unit rows are too small to bend a GELU
        self._inputs = mean.numpy(), max(scale, TINY)
        spread = float(y.var(dim=0).sum())
        with seeded(self.seed):
            module = nn.Sequential(
                nn.Linear(self.source.dim, self.hidden),
                nn.GELU(),
                nn.Linear(self.hidden, self.target.dim, bias=False),
            )
            with torch.no_grad():
                module[2].weight.zero_()  # type: ignore[operator]
            self._take(module)
            scores = [retrieval_score(self, held)] if held is not None else []

            def loss(rows: Tensor) -> Tensor:
                mapped = linear[rows] + module(x[rows])
                target = y[rows]
                if cosine:
                    near = 1.0 - functional.cosine_similarity(mapped, target).mean()
                else:
                    near = (mapped - target).square().sum(dim=1).mean() / spread
                if self.contrast == 0.0:
                    return near
                logits = functional.normalize(target) @ functional.normalize(mapped).T
                own = torch.arange(len(rows))
                return near + self.contrast * functional.cross_entropy(
                    logits / self.temperature, own
                )

            def judge(epoch: int) -> None:
                if held is not None:
                    self._take(module)
                    scores.append(retrieval_score(self, held))

            descend(
                module,
                loss,
                count=len(pairs),
                epochs=epochs,
                decay_over=self.epochs,
                warm_up=0,
                batch_size=min(self.batch_size, max(32, len(pairs) // 32)),
                optimiser=torch.optim.AdamW(
                    module.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
                ),
                label=f"{self.name} {'search' if held is not None else 'fit'}",
                show=self.progress,
                after_epoch=judge,
            )
            self._take(module)
        return int(np.argmax(scores)) if scores else epochs

    def _take(self, module: Any) -> None:
        first, _, last = module
        mean, scale = self._inputs
        self.hidden_weight_ = array(first.weight.T / scale)  # (Ds, H)
        self.hidden_bias_ = array(first.bias) - mean @ self.hidden_weight_  # (H,)
        self.out_weight_ = array(last.weight.T)  # (H, Dt)

    def _map(self, rows: FloatArray) -> FloatArray:
        from scipy.special import erf

        mapped: FloatArray = rows @ self.weight_ + self.bias_
        hidden = rows @ self.hidden_weight_ + self.hidden_bias_
        hidden *= 0.5 * (1.0 + erf(hidden * np.float32(0.5**0.5)))  # exact GELU, as torch's
        mapped += hidden @ self.out_weight_
        return mapped

    def _graph(self, graph: Graph, rows: str) -> str:
        hidden = graph.affine(rows, self.hidden_weight_, self.hidden_bias_)
        root = graph.constant(np.float32(0.5**0.5))
        bell = graph.op("Erf", graph.op("Mul", hidden, root))
        half = graph.constant(np.float32(0.5))
        gate = graph.op("Mul", graph.op("Add", bell, graph.constant(np.float32(1.0))), half)
        bent = graph.matmul(graph.op("Mul", hidden, gate), self.out_weight_)
        return graph.op("Add", graph.affine(rows, self.weight_, self.bias_), bent)
