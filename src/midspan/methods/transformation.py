"""Maps between the new and the old space that are learnt together with the new encoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.old import OldArtifacts


class Transformation(nn.Module):
    """x → z = A·x + a, then `depth` times z ← z + Σ_p path_p(z); depth 0 is linear only.

    A path is Linear-PReLU, Linear-PReLU, Linear: d→hidden→hidden→d (LCE's residual bottleneck, in
    its code 4 blocks of 4 paths with hidden 16). The last layer of a path starts at 0, so training
    starts at the linear map. Goes from unit vectors to vectors whose direction alone counts.

    Departs: a linear step in front, so that dims may differ. No batch norm: class weights in one
    term and image vectors in another would leave statistics that fit neither, and a map without
    statistics is the same function in training, in evaluation and as a saved bridge. No PReLU
    after the last layer of a path: one product then sums all paths, in half the time.
    """

    def __init__(self, weight: Tensor, *, depth: int, paths: int = 4, hidden: int = 16) -> None:
        super().__init__()
        outputs = weight.shape[1]
        self.depth, self.paths, self.hidden = depth, paths, hidden
        self.weight = nn.Parameter(weight.clone())  # (inputs, outputs)
        self.bias = nn.Parameter(torch.zeros(outputs))
        if depth == 0:
            return
        self.down_weight = _drawn(depth, paths, outputs, hidden)
        self.middle_weight = _drawn(depth, paths, hidden, hidden)
        self.up_weight = nn.Parameter(torch.zeros(depth, paths, hidden, outputs))
        self.down_bias = nn.Parameter(torch.zeros(depth, paths, hidden))
        self.middle_bias = nn.Parameter(torch.zeros(depth, paths, hidden))
        self.up_bias = nn.Parameter(torch.zeros(depth, outputs))  # one for the sum of the paths
        self.down_slope = nn.Parameter(torch.full((depth, paths), 0.25))
        self.middle_slope = nn.Parameter(torch.full((depth, paths), 0.25))

    def forward(self, vectors: Tensor) -> Tensor:  # (B, inputs) → (B, outputs)
        z = F.normalize(vectors) @ self.weight + self.bias
        for block in range(self.depth):
            z = z + self._paths(z, block)
        return z

    def _paths(self, z: Tensor, block: int) -> Tensor:
        """The sum of all paths of a block, (B, d) → (B, d); paths lie side by side in columns."""
        down = self.down_weight[block].transpose(0, 1).flatten(1)  # (d, paths·hidden)
        middle = torch.block_diag(*self.middle_weight[block])  # type: ignore[no-untyped-call]
        t = F.prelu(
            torch.addmm(self.down_bias[block].flatten(), z, down),
            self.down_slope[block].repeat_interleave(self.hidden),
        )
        t = F.prelu(
            torch.addmm(self.middle_bias[block].flatten(), t, middle),
            self.middle_slope[block].repeat_interleave(self.hidden),
        )
        return torch.addmm(self.up_bias[block], t, self.up_weight[block].flatten(0, 1))


class Maps(nn.Module):
    """Both directions between the new and the old space.

    They start as the two directions of one (half-)orthogonal matrix, the identity for equal dims.
    """

    def __init__(
        self, old: OldArtifacts, *, dim: int, depth: int, paths: int = 4, hidden: int = 16
    ) -> None:
        super().__init__()
        if depth < 0:
            raise ConfigError(
                f"a transformation: expected depth >= 0 (0: linear only), got {depth}"
            )
        if old.space.metric != "cosine":
            raise ConfigError(
                f"maps are learnt between directions, but the old space {old.space} also counts "
                "lengths; store its vectors with metric 'cosine', or fit a bridge after training"
            )
        if old.space.dim == dim:
            start = torch.eye(dim)
        else:
            start = nn.init.orthogonal_(torch.empty(dim, old.space.dim))
        self.to_old = Transformation(start, depth=depth, paths=paths, hidden=hidden)
        self.to_new = Transformation(start.T, depth=depth, paths=paths, hidden=hidden)

    def by_direction(self) -> dict[str, nn.Module]:
        return {"backward": self.to_old, "forward": self.to_new}


def _drawn(depth: int, paths: int, inputs: int, outputs: int) -> nn.Parameter:
    """Uniform as in a linear layer; (depth, paths, inputs, outputs)."""
    bound = 1.0 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(depth, paths, inputs, outputs).uniform_(-bound, bound))
