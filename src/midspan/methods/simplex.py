"""Fixed class weights at the vertices of a simplex: where a class lies is agreed on beforehand."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.base import Batch, Method
from midspan.methods.direct import same_dim
from midspan.methods.old import OldArtifacts

EXACT = 1e-3  # cosines that differ by less are the same: rows are stored in single precision


class Simplex(Method):
    """The recognition loss keeps class weights that are the K vertices of a regular simplex.

    Papers: CoReS, CL²R and arXiv:2405.02581 (d-Simplex fixed classifiers). All pairs of rows have
    the cosine −1/(K − 1), the least that K rows can share. An encoder that is trained again with
    the same rows puts every class where the previous one did. It has no term.

    - Without an old encoder (`follow_old` = false): class k gets vertex k.
    - The old encoder was trained with the same simplex: classes that it knew keep their row, found
      by name; every other class gets a vertex that is still free. K must be the same, so it is
      set beforehand: `classes` = 1024, as in the code of iamcl2r.
    - Any other old encoder, or only its vectors: the whole simplex is rotated onto the old class
      centres (orthogonal Procrustes). This is as good as the centres are near a simplex.

    K vertices need K − 1 dims. With fewer, `projected` = true takes a random orthonormal projection
    of the simplex to the dims there are, with unit rows: the cosines of its pairs then scatter
    around −1/(K − 1), with a deviation of about sqrt(1/dim − 1/K) (measured for K = 1000: 0.083
    at 128 dims, 0.031 at 512).

    Defaults: `classes` = the number of training classes (the papers' 100 or 1024 must be chosen by
    who knows how many will come); seed 0, of the projection alone: it must be the same in all
    encoders of a chain, unlike the run's.
    Departs: the papers have dim = K − 1; here more dims are left unused and fewer are projected.
    Rotation onto another encoder's centres is ours.

    Args:
        classes: K, vertices of the simplex; None: as many as there are training classes.
        projected: Take a projection if the dims are too few.
        follow_old: Put classes where the old encoder has them.
        seed: Of the projection; the same in all encoders of a chain.

    Example:
        >>> import torch
        >>> from midspan.methods import Simplex
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = Simplex.for_old(old, labels, dim=8)
        >>> terms = compat(torch.randn(40, 8), labels, old=old, rows=torch.arange(40))
        >>> sorted(terms)
        []
    """

    rows: Tensor

    def __init__(
        self,
        *,
        classes: int | None = None,
        projected: bool = False,
        follow_old: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.projected = projected
        self.seed = seed
        self.uses_old = follow_old  # type: ignore[misc]  # here it follows from the settings
        self.directions: tuple[str, ...] = ("direct",) if follow_old else ()

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        count = num_classes if self.classes is None else self.classes
        if count < num_classes:
            raise ConfigError(
                f"simplex: expected classes of at least {num_classes}, the number of training "
                f"classes, got {count}"
            )
        if dim < count - 1 and not self.projected:
            raise ConfigError(
                f"simplex: {count} vertices need {count - 1} dims, the encoder has {dim}; set "
                f"[encoder] dim = {count - 1}, or projected = true for rows that are only nearly "
                "at equal angles"
            )
        vertices = simplex(count, dim, seed=self.seed)  # (K, D)
        if old is None:
            rows = vertices[:num_classes]
        else:
            old = same_dim(old, dim=dim, method="simplex")
            kept = _kept(old, vertices)
            rows = _rotated(old, vertices[:num_classes]) if kept is None else kept
        self.register_buffer("rows", rows.float())  # (C, D)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        return {}

    def fixed_rows(self) -> Tensor:
        return self.rows


def simplex(count: int, dim: int, *, seed: int) -> Tensor:
    """(K, D) unit rows, double precision: a regular simplex if D ≥ K − 1, else its projection."""
    if count == 1:
        return torch.eye(1, dim, dtype=torch.float64)
    # Rows of the centring matrix are the simplex in K dims; the Helmert basis of the K − 1 dims
    # they span is written down, so that the vertices are the same on every machine.
    place = torch.arange(1, count, dtype=torch.float64)  # k = 1 … K − 1
    size = (place * (place + 1)).sqrt()
    above = torch.arange(count).unsqueeze(1) < place  # (K, K − 1) the first k entries of column k
    corner = torch.diag_embed(-place / size, offset=-1)[:, :-1]
    basis = above / size + corner
    if dim < count - 1:
        generator = torch.Generator().manual_seed(seed)
        random = torch.randn(count - 1, dim, generator=generator, dtype=torch.float64)
        basis = basis @ torch.linalg.qr(random).Q
    return F.pad(F.normalize(basis), (0, max(0, dim - count + 1)))


def _kept(old: OldArtifacts, vertices: Tensor) -> Tensor | None:
    """Rows (C, D) that continue the old encoder's simplex; None if it had none, or another one."""
    if old.classifier is None or len(old.classifier.rows) > len(vertices):
        return None
    theirs = F.normalize(old.classifier.rows.double())  # (C_old, D)
    cos, place = (theirs @ vertices.T).max(1)
    if (cos > 1 - EXACT).all() and len(set(place.tolist())) == len(place):
        free = torch.ones(len(vertices), dtype=torch.bool).index_fill(0, place, False)
        others = vertices[free]
    elif torch.allclose(theirs @ theirs.T, _gram(vertices[: len(theirs)]), rtol=0, atol=EXACT):
        # The same simplex, rotated (the encoder before had followed another one).
        rotation = _procrustes(vertices[: len(theirs)], theirs)
        others = vertices[len(theirs) :] @ rotation
    else:
        return None
    known = old.label_map >= 0
    missing = int((~known).sum())
    if missing > len(others):
        raise ConfigError(
            f"simplex: {missing} classes are new, but only {len(others)} of {len(vertices)} "
            "vertices are free; the number of vertices cannot grow, so train the chain again with "
            "larger classes, or set follow_old = false"
        )
    rows = torch.empty(len(known), vertices.shape[1], dtype=torch.float64)
    rows[known] = theirs[old.label_map[known]]
    rows[~known] = others[:missing]
    return rows


def _rotated(old: OldArtifacts, vertices: Tensor) -> Tensor:
    """All vertices (C, D), turned so that those of classes with images are nearest the centres."""
    seen = old.counts > 0
    return vertices @ _procrustes(vertices[seen], F.normalize(old.centres[seen].double()))


def _procrustes(source: Tensor, target: Tensor) -> Tensor:
    """The orthogonal (D, D) matrix R that makes Σ‖source_i R − target_i‖² least."""
    u, _, vt = torch.linalg.svd(source.T @ target)
    rotation: Tensor = u @ vt
    return rotation


def _gram(rows: Tensor) -> Tensor:
    return rows @ rows.T
