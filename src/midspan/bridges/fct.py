"""Forward-compatible transformation: old vector and side information → new space, with doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from midspan.bridges.base import BLOCK, Bridge, Pairs, unit
from midspan.bridges.descent import array, descend, need_torch, seeded, tensor32
from midspan.errors import DataError, VectorError
from midspan.spaces import Embeddings, FloatArray

if TYPE_CHECKING:
    from torch import Tensor, nn

    from midspan.bridges.onnx_export import Graph

CLASS_SCALE = 16.0  # of the cosine logits; ours


class FCT(Bridge):
    """An MLP h(old, side) ≈ new, FCT (CVPR 2022), with FastFill's log σ² output (ICLR 2023).

    Layers from the FCT code: old d→2d→2·d_new, side likewise, concatenated → `width` → `width` →
    d_new, Linear-BN-ReLU but the last; Adam 5e-4, weight decay 2⁻¹⁵, batch 1024, 80 epochs, 5 of
    them warm-up, cosine, batch norm frozen for the second half. `side` names a column (N, K) of
    the source embeddings: what was stored with the vector when the item was indexed.
    With `uncertainty` the loss is FastFill's, mean(½e^{-s}ℓ + μs), s = log σ², μ = ½, and ℓ the
    squared error plus, where labels are given, the cross-entropy (smoothing 0.1).

    Departs: ℓ sums over dims in a cosine space (a mean over 1280 dims of unit vectors would drown
    next to the cross-entropy); the frozen new classifier is the class means of the new vectors;
    without side information there is one branch, not the old vector twice; an epoch has at least
    eight batches; s starts at its optimum for the first error.

    Args:
        side: Column of the source with what was stored with each vector; None: the vector alone.
        width: Of the two joint layers.
        uncertainty: Learn log σ² of each mapped vector too.
        uncertainty_weight: μ in the loss.
        classification: Weight of the cross-entropy, where labels are given.
        epochs: Passes over the pairs.
        batch_size: Pairs in a step.
        learning_rate: Of Adam.
        weight_decay: Of Adam.
        seed: Of weights and batches.
        progress: A progress bar.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.FCT(epochs=1, width=16).fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "fct"
    last_weight_: FloatArray  # (width, Dt), or one column more for log σ²
    last_bias_: FloatArray

    def __init__(
        self,
        *,
        side: str | None = None,
        width: int = 2048,
        uncertainty: bool = True,
        uncertainty_weight: float = 0.5,
        classification: float = 1.0,
        epochs: int = 80,
        batch_size: int = 1024,
        learning_rate: float = 5e-4,
        weight_decay: float = 2.0**-15,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        self.side = side
        self.width = width
        self.uncertainty = uncertainty
        self.uncertainty_weight = uncertainty_weight
        self.classification = classification
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.seed = seed
        self.progress = progress

    def pairs_needed(self, source_dim: int, target_dim: int) -> int:
        return 32

    # ---- apply ----------------------------------------------------------------------------------

    def log_variance(self, embeddings: Embeddings) -> FloatArray:
        """(N,) predicted log σ² of each item's mapped vector; high = doubtful = backfill first."""
        if not self.uncertainty:
            raise DataError("this fct bridge was fitted with uncertainty=False; fit it again")
        self.check_source(embeddings.space)
        result = np.empty(len(embeddings), dtype=np.float32)
        for start in range(0, len(embeddings), BLOCK):
            rows = slice(start, start + BLOCK)
            result[rows] = self._outputs(*self._inputs(embeddings, rows))[:, -1]
        return result

    def _apply_rows(self, embeddings: Embeddings, rows: slice) -> FloatArray:
        mapped = self._outputs(*self._inputs(embeddings, rows))[:, : self.target.dim]
        return unit(mapped) if self.target.metric == "cosine" else mapped

    def probe(self) -> FloatArray:
        rows = np.full((1, self.source.dim), 1.0 / self.source.dim, dtype=np.float32)
        side = np.zeros((1, self.side_dim_), dtype=np.float32) if self.side else None
        return self._outputs(rows, side)[:, : self.target.dim]

    def _inputs(self, embeddings: Embeddings, rows: slice) -> tuple[FloatArray, FloatArray | None]:
        vectors = embeddings.vectors[rows]
        old = unit(vectors) if embeddings.space.metric == "cosine" else vectors
        if self.side is None:
            return old, None
        side = _side_column(embeddings, self.side)[rows]
        if side.shape[1] != self.side_dim_:
            raise VectorError(
                f"column {self.side!r} has {side.shape[1]} dims; this bridge was fitted with "
                f"{self.side_dim_}"
            )
        return old, side

    def _map(self, rows: FloatArray) -> FloatArray:
        if self.side is not None:
            raise VectorError(
                f"this fct bridge also needs the column {self.side!r} of each item; "
                "use transform(embeddings) instead of apply(vectors)"
            )
        mapped: FloatArray = self._outputs(rows, None)[..., : self.target.dim]
        return mapped

    def _outputs(self, old: FloatArray, side: FloatArray | None) -> FloatArray:
        """(N, Dt), or (N, Dt + 1) with log σ² last."""
        branches = [self._layers("old", old)]
        if side is not None:
            branches.append(self._layers("side", side))
        joined = np.concatenate(branches, axis=-1)
        mapped: FloatArray = self._layers("trunk", joined) @ self.last_weight_ + self.last_bias_
        return mapped

    def _layers(self, branch: str, rows: FloatArray) -> FloatArray:
        for place in (1, 2):
            weight, bias = (
                getattr(self, f"{branch}{place}_{part}_") for part in ("weight", "bias")
            )
            rows = np.maximum(rows @ weight + bias, 0)
        return rows

    def _graph(self, graph: Graph, rows: str) -> str:
        if self.side is not None:
            raise DataError("fct with side information maps a gallery; it has no query side")
        for branch in ("old", "trunk"):
            for place in (1, 2):
                weight = getattr(self, f"{branch}{place}_weight_")
                bias = getattr(self, f"{branch}{place}_bias_")
                rows = graph.op("Relu", graph.affine(rows, weight, bias))
        dim = self.target.dim
        return graph.affine(rows, self.last_weight_[:, :dim], self.last_bias_[:dim])

    # ---- fit ------------------------------------------------------------------------------------

    def _fit(self, pairs: Pairs) -> None:
        need_torch(self.name)
        import torch

        x, y = tensor32(pairs.x()), tensor32(pairs.y())
        side = None
        if self.side is not None:
            side = tensor32(_side_column(pairs.source, self.side))
            self.side_dim_ = side.shape[1]
        centres, classes = _class_means(pairs) if self.classification > 0 else (None, None)
        outputs = self.target.dim + int(self.uncertainty)
        with seeded(self.seed):
            network = _network(
                x.shape[1],
                None if side is None else side.shape[1],
                self.target.dim,
                self.width,
                outputs,
            )

            def errors(mapped: Tensor, rows: Tensor) -> Tensor:
                squared = (mapped - y[rows]).square()
                error = squared.sum(1) if self.target.metric == "cosine" else squared.mean(1)
                if centres is None or classes is None:
                    return error
                cosines = torch.nn.functional.normalize(mapped) @ centres.T
                return error + self.classification * torch.nn.functional.cross_entropy(
                    CLASS_SCALE * cosines, classes[rows], label_smoothing=0.1, reduction="none"
                )

            def loss(rows: Tensor) -> Tensor:
                mapped = network(x[rows], None if side is None else side[rows])
                if not self.uncertainty:
                    return errors(mapped, rows).mean()
                return fastfill_loss(
                    errors(mapped[:, :-1], rows), mapped[:, -1], weight=self.uncertainty_weight
                )

            if self.uncertainty:
                _start_at_the_first_error(network, x, side, errors, self.uncertainty_weight)

            def freeze(epoch: int) -> None:
                network.frozen = epoch >= self.epochs / 2  # type: ignore[assignment]

            descend(
                network,
                loss,
                count=len(pairs),
                epochs=self.epochs,
                decay_over=self.epochs,
                warm_up=min(5, self.epochs // 4),
                batch_size=min(self.batch_size, max(8, len(pairs) // 8)),
                optimiser=torch.optim.Adam(
                    network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
                ),
                label=self.name,
                show=self.progress,
                after_epoch=freeze,
            )
        vars(self).update(_folded(network))


def fastfill_loss(errors: Tensor, log_variance: Tensor, *, weight: float = 0.5) -> Tensor:
    """mean(½e^{-s}ℓ + μs); for a fixed ℓ it is least at s = log(ℓ/2μ)."""
    return (0.5 * (-log_variance).exp() * errors + weight * log_variance).mean()


def _side_column(embeddings: Embeddings, name: str) -> FloatArray:
    column = embeddings.columns.get(name)
    if column is None:
        raise DataError(
            f"no column {name!r} in these embeddings (there are {sorted(embeddings.columns)}); "
            "side information must be stored with each item"
        )
    side = np.asarray(column, dtype=np.float32)
    side = side[:, None] if side.ndim == 1 else side
    if side.ndim != 2 or not np.isfinite(side).all():
        raise VectorError(f"column {name!r}: expected finite (N, K) numbers, got {side.shape}")
    return side


def _class_means(pairs: Pairs) -> tuple[Tensor, Tensor] | tuple[None, None]:
    import torch

    if pairs.labels is None:
        return None, None
    y = pairs.y()
    classes, places = np.unique(pairs.labels, return_inverse=True)
    means = np.stack([y[places == k].mean(axis=0) for k in range(len(classes))])
    return torch.nn.functional.normalize(tensor32(means)), torch.from_numpy(places)


def _network(old: int, side: int | None, new: int, width: int, outputs: int) -> nn.Module:
    from torch import nn

    def stack(inputs: int, middle: int, out: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(inputs, middle),
            nn.BatchNorm1d(middle),
            nn.ReLU(),
            nn.Linear(middle, out),
            nn.BatchNorm1d(out),
            nn.ReLU(),
        )

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = False  # batch norm keeps its statistics from now on
            self.old = stack(old, 2 * old, 2 * new)
            self.side = None if side is None else stack(side, 2 * side, 2 * new)
            self.trunk = stack(2 * new if side is None else 4 * new, width, width)
            self.last = nn.Linear(width, outputs)

        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            if self.frozen:
                for layer in self.modules():
                    if isinstance(layer, nn.BatchNorm1d):
                        layer.eval()
            return self

        def forward(self, rows: Tensor, side: Tensor | None) -> Tensor:
            import torch

            joined = self.old(rows)
            if self.side is not None and side is not None:
                joined = torch.cat([joined, self.side(side)], dim=1)
            mapped: Tensor = self.last(self.trunk(joined))
            return mapped

    return Network()


def _start_at_the_first_error(
    network: Any, x: Tensor, side: Tensor | None, errors: Any, weight: float
) -> None:
    """Bias of s = log(ℓ/2μ) for the mean first error; from 0 it would take epochs to get there."""
    import torch

    rows = torch.arange(min(len(x), 256))
    with torch.no_grad():
        mapped = network(x[rows], None if side is None else side[rows])
        error = errors(mapped[:, :-1], rows).mean()
        network.last.weight[-1].zero_()
        network.last.bias[-1] = torch.log(error / (2.0 * weight))


def _folded(network: Any) -> dict[str, FloatArray]:
    arrays = {
        "last_weight_": array(network.last.weight.T),
        "last_bias_": array(network.last.bias),
    }
    for branch in ("old", "side", "trunk"):
        stack = getattr(network, branch)
        for place in (1, 2) if stack is not None else ():
            linear, norm, _ = stack[3 * place - 3 : 3 * place]
            gain = norm.weight / (norm.running_var + norm.eps).sqrt()
            arrays[f"{branch}{place}_weight_"] = array(linear.weight.T * gain)
            arrays[f"{branch}{place}_bias_"] = array(
                (linear.bias - norm.running_mean) * gain + norm.bias
            )
    return arrays
