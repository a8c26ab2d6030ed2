"""Residual bottleneck transformation: narrow residual paths, trained with up to three losses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from midspan.bridges.base import Bridge, Pairs
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
from midspan.errors import DataError
from midspan.spaces import FloatArray, Space, fingerprint

if TYPE_CHECKING:
    from torch import Tensor, nn

    from midspan.bridges.onnx_export import Graph

ANCHORS = 1024  # target vectors that stand in for class rows where there are no labels


class RBT(Bridge):
    """z ← z + Σ_p path_p(z), `depth` times; a path is three times Linear-BN-PReLU, d→16→16→d.

    Wang et al., arXiv:2008.04821; block layout (4 blocks, 4 paths, width 16) from the public
    re-implementation in the LCE repository; loss forms and 1:1:1 weights are ours, as the text
    is not public:
      similarity       ‖n(z_g) - n(z_q)‖²
      kl               KL(softmax(h(z_q)/τ) ‖ softmax(h(z_g)/τ)); symmetrised in unified mode
      classification   CosFace on both, with one shared head h
    All three look at directions only: in other than cosine spaces the length is ridge's.
    h starts at the class means of the target and learns along, so that the classification of the
    query side has a gradient in m2m mode too. Without labels h holds a sample of target vectors,
    and the classification term falls away. `mode`:
      m2m      source → target space; the query side stays as it is.
      unified  source and target → a third space; needs labels. `.target` is that new space, and
               `.other` the bridge of the target side into it, for the queries.
    Departs: the first step is the ridge map (fixed), so that dims may differ and training starts
    at the linear solution (last BN scale 0); plain shuffled batches; AdamW 1e-3 with cosine decay,
    and the number of epochs by held-out retrieval, at least `min_epochs` (default 0: ridge may
    win).

    Args:
        mode: "m2m" or "unified".
        hidden: Width inside a path.
        paths: In each block.
        depth: Number of blocks.
        similarity: Weight of that term.
        kl: Weight of that term.
        classification: Weight of that term.
        temperature: τ of the KL term.
        scale: Of CosFace.
        margin: Of CosFace.
        epochs: At most so many.
        min_epochs: At least so many.
        batch_size: Pairs in a step.
        learning_rate: Of AdamW.
        held_out: Share of the pairs that chooses the number of epochs.
        seed: Of weights, batches and held-out pairs.
        progress: A progress bar.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.RBT(epochs=1).fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "rbt"

    def __init__(
        self,
        *,
        mode: Literal["m2m", "unified"] = "m2m",
        hidden: int = 16,
        paths: int = 4,
        depth: int = 4,
        similarity: float = 1.0,
        kl: float = 1.0,
        classification: float = 1.0,
        temperature: float = 4.0,
        scale: float = 64.0,
        margin: float = 0.35,
        epochs: int = 20,
        min_epochs: int = 0,
        batch_size: int = 512,
        learning_rate: float = 1e-3,
        held_out: float = 0.15,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        if not 0 <= min_epochs <= epochs:
            raise DataError(f"rbt: expected 0 <= min_epochs <= epochs = {epochs}, got {min_epochs}")
        self.mode = mode
        self.hidden = hidden
        self.paths = paths
        self.depth = depth
        self.similarity = similarity
        self.kl = kl
        self.classification = classification
        self.temperature = temperature
        self.scale = scale
        self.margin = margin
        self.epochs = epochs
        self.min_epochs = min_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.held_out = held_out
        self.seed = seed
        self.progress = progress

    @property
    def other(self) -> RBT:
        """Unified mode: target space → the third space."""
        if self.mode != "unified":
            raise DataError("only a bridge of mode 'unified' maps the target side too")
        return self.other_

    def pairs_needed(self, source_dim: int, target_dim: int) -> int:
        return 32

    def _fit(self, pairs: Pairs) -> None:
        need_torch(self.name)
        if self.mode == "unified" and pairs.labels is None:
            raise DataError(
                "rbt in unified mode needs a 'labels' column: without classes both sides would "
                "agree best by mapping everything to one point; add labels or use mode='m2m'"
            )
        if self.mode == "unified":
            self.other_ = RBT(**self.settings())
            self.other_._source = pairs.target.space
            self.other_._target = self._target
        self.epochs_ = 0
        if self.epochs > 0:
            fit_rows, held_rows = held_out_split(pairs, share=self.held_out, seed=self.seed)
            self.epochs_ = self._train(
                pairs.part(fit_rows), epochs=self.epochs, held=pairs.part(held_rows)
            )
        self._train(pairs, epochs=self.epochs_, held=None)
        if self.mode == "unified":
            self.other_.n_pairs_ = len(pairs)
            joint = _joint_space(pairs, self, self.other_)
            self._target = self.other_._target = joint

    def _train(self, pairs: Pairs, *, epochs: int, held: Pairs | None) -> int:
        import torch
        from torch.nn import functional

        start = Ridge(seed=self.seed).fit(pairs.source, pairs.target)
        self.weight_, self.bias_ = start.weight_, start.bias_  # (Ds, Dt), (Dt,)
        x, y = tensor32(start._map(pairs.x().astype(np.float32))), tensor32(pairs.y())
        head, classes = _head(pairs, seed=self.seed)
        unified = self.mode == "unified"
        with seeded(self.seed):
            gallery = _network(self.target.dim, self.hidden, self.paths, self.depth)
            sides = torch.nn.ModuleList([gallery])
            learns_head = unified or classes is not None  # anchors stay where they are
            if learns_head:
                head = torch.nn.Parameter(head)
            if unified:
                query = _network(self.target.dim, self.hidden, self.paths, self.depth)
                sides.append(query)
                self.other_.weight_ = np.eye(self.target.dim, dtype=np.float32)
                self.other_.bias_ = np.zeros(self.target.dim, dtype=np.float32)

            def take() -> None:
                vars(self).update(_folded(gallery))
                if unified:
                    vars(self.other_).update(_folded(query))

            def score() -> float:
                assert held is not None
                queries = self.other_.apply(held.target.vectors) if unified else None
                return retrieval_score(self, held, queries=queries)

            def loss(rows: Tensor) -> Tensor:
                z_gallery = gallery(x[rows])
                z_query = query(y[rows]) if unified else y[rows]
                return self._loss(
                    functional.normalize(z_gallery),
                    functional.normalize(z_query),
                    functional.normalize(head),
                    None if classes is None else classes[rows],
                )

            def judge(epoch: int) -> None:
                if held is not None:
                    take()
                    scores.append(score())

            take()
            scores = [score()] if held is not None else []
            learnt = [*sides.parameters(), *([head] if learns_head else [])]
            descend(
                sides,
                loss,
                count=len(pairs),
                epochs=epochs,
                decay_over=self.epochs,
                warm_up=0,
                batch_size=min(self.batch_size, max(8, len(pairs) // 4)),
                optimiser=torch.optim.AdamW(learnt, lr=self.learning_rate),
                label=f"{self.name} {'search' if held is not None else 'fit'}",
                show=self.progress,
                after_epoch=judge,
            )
            take()
        if not scores:
            return epochs
        return self.min_epochs + int(np.argmax(scores[self.min_epochs :]))

    def _loss(self, gallery: Tensor, query: Tensor, head: Tensor, classes: Tensor | None) -> Tensor:
        """The weighted sum of the three; all rows have unit length."""
        from torch.nn import functional

        total = self.similarity * (gallery - query).square().sum(dim=1).mean()
        cos_gallery, cos_query = gallery @ head.T, query @ head.T  # (B, C)
        log_gallery = (cos_gallery * (self.scale / self.temperature)).log_softmax(dim=1)
        log_query = (cos_query * (self.scale / self.temperature)).log_softmax(dim=1)
        if self.mode == "unified":
            both = _divergence(log_query, log_gallery) + _divergence(log_gallery, log_query)
            total = total + self.kl * 0.5 * both
        else:
            total = total + self.kl * _divergence(log_query.detach(), log_gallery)
        if classes is None:
            return total
        margin = self.margin * functional.one_hot(classes, len(head))
        for cosines in (cos_gallery, cos_query):
            logits = self.scale * (cosines - margin)
            total = total + self.classification * functional.cross_entropy(logits, classes)
        return total

    def _map(self, rows: FloatArray) -> FloatArray:
        z: FloatArray = rows @ self.weight_ + self.bias_
        for block in range(self.depth):
            step = np.zeros_like(z)
            for path in range(self.paths):
                t = z
                for layer in ("down", "middle", "up"):
                    weight, bias, slope = self._layer(layer, block, path)
                    t = t @ weight + bias
                    t = np.maximum(t, 0) + slope * np.minimum(t, 0)
                step += t
            z = z + step
        return z

    def _layer(self, layer: str, block: int, path: int) -> tuple[FloatArray, FloatArray, Any]:
        return tuple(getattr(self, f"{layer}_{part}_")[block, path] for part in PARTS)

    def _graph(self, graph: Graph, rows: str) -> str:
        z = graph.affine(rows, self.weight_, self.bias_)
        for block in range(self.depth):
            steps = [z]
            for path in range(self.paths):
                t = z
                for layer in ("down", "middle", "up"):
                    weight, bias, slope = self._layer(layer, block, path)
                    t = graph.op("PRelu", graph.affine(t, weight, bias), graph.constant(slope))
                steps.append(t)
            z = graph.op("Sum", *steps)
        return z


PARTS = ("weight", "bias", "slope")  # a layer, batch norm folded in: x·weight + bias, PReLU slope


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q), mean over rows."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()


def _head(pairs: Pairs, *, seed: int) -> tuple[Tensor, Tensor | None]:
    """Rows of the shared classifier, and each pair's row; anchors and None without labels."""
    import torch

    y = pairs.y()
    if pairs.labels is None:
        rows = np.random.default_rng(seed).permutation(len(y))[:ANCHORS]
        return tensor32(y[rows]), None
    classes, places = np.unique(pairs.labels, return_inverse=True)
    means = np.zeros((len(classes), y.shape[1]))
    np.add.at(means, places, y)
    return tensor32(means / np.bincount(places)[:, None]), torch.from_numpy(places)


def _network(dim: int, hidden: int, paths: int, depth: int) -> nn.Module:
    import torch
    from torch import nn

    def path() -> nn.Sequential:
        layers: list[nn.Module] = []
        for inputs, outputs in ((dim, hidden), (hidden, hidden), (hidden, dim)):
            layers += [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.PReLU()]
        with torch.no_grad():
            layers[-2].weight.zero_()  # type: ignore[operator]
        return nn.Sequential(*layers)

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.ModuleList(path() for _ in range(paths)) for _ in range(depth)
            )

        def forward(self, z: Tensor) -> Tensor:
            for block in self.blocks:
                z = z + sum(one(z) for one in block)  # type: ignore[attr-defined]
            return z

    return Blocks()


def _folded(network: Any) -> dict[str, FloatArray]:
    """The network in evaluation mode as plain arrays, (depth, paths, …) each."""
    arrays: dict[str, list[list[FloatArray]]] = {}
    for block in network.blocks:
        rows: dict[str, list[FloatArray]] = {}
        for path in block:
            for place, layer in enumerate(("down", "middle", "up")):
                linear, norm, bend = path[3 * place : 3 * place + 3]
                gain = norm.weight / (norm.running_var + norm.eps).sqrt()  # (out,)
                rows.setdefault(f"{layer}_weight_", []).append(array(linear.weight.T * gain))
                rows.setdefault(f"{layer}_bias_", []).append(
                    array(norm.bias - norm.running_mean * gain)
                )
                rows.setdefault(f"{layer}_slope_", []).append(array(bend.weight))
        for name, values in rows.items():
            arrays.setdefault(name, []).append(values)
    return {name: np.array(values, dtype=np.float32) for name, values in arrays.items()}


def _joint_space(pairs: Pairs, *bridges: RBT) -> Space:
    """A new space with its own fingerprint: these weights made it."""
    parts = [part.fingerprint for part in (pairs.source.space, pairs.target.space)]
    weights = [
        value.tobytes()
        for bridge in bridges
        for value in bridge.fitted().values()
        if isinstance(value, np.ndarray)
    ]
    return replace(
        pairs.target.space,
        name=f"{pairs.source.space.name}+{pairs.target.space.name}",
        fingerprint=fingerprint(*parts, *weights),
        compatible_with=(),
    )
