"""Spaces and embeddings: no vectors travel without the space they live in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from midspan.errors import FormatError, SpaceMismatch, UnknownId, VectorError
from midspan.evidence import Evidence
from midspan.labels import as_names

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
StrArray = npt.NDArray[np.str_]
Column = npt.NDArray[Any]
Metric = Literal["cosine", "l2", "dot"]

URI = "uri"  # the column that says where the image of each item is
RESERVED = ("vectors", "ids", "space", "midspan")  # names in the file that are not columns


def fingerprint(*parts: bytes | str) -> str:
    """Digest of everything that makes a vector what it is; order matters.

    Each part is length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Space:
    """The coordinate system of one encoder's vectors.

    `fingerprint` identifies it (weights + preprocessing + dim + normalisation); the name is for
    people. `compatible_with` holds the fingerprints of older spaces whose vectors may be compared
    with these as they are, because the encoder was trained for it; `evidence` says of each how well
    that was found to work. Files of earlier versions have none.
    With `compatible_dims`, only the first so many dims, normalised, are compared with older spaces
    (`Embeddings.prefix`).

    Args:
        name: For people: "clip-b32".
        dim: Length of a vector.
        metric: "cosine", "l2" or "dot".
        fingerprint: Identifies the encoder; without it, one is derived from name, dim and metric
            and marked as declared.
        compatible_with: Fingerprints of older spaces that may be compared with this one.

    Raises:
        VectorError: No name, no positive dim, or an unknown metric.

    Example:
        >>> import midspan as ms
        >>> old, new = ms.Space("clip-b32", 512), ms.Space("clip-l14", 768)
        >>> old.comparable_with(new)
        False
    """

    name: str
    dim: int
    metric: Metric = "cosine"
    fingerprint: str = ""
    compatible_with: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    compatible_dims: int | None = None  # None: all

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise VectorError(f"expected a name for the space, got {self.name!r}")
        if not isinstance(self.dim, int) or isinstance(self.dim, bool) or self.dim < 1:
            raise VectorError(
                f"space {self.name!r}: expected a dim of at least 1, got {self.dim!r}"
            )
        if self.metric not in get_args(Metric):
            raise VectorError(
                f"space {self.name!r}: expected a metric of {get_args(Metric)}, got {self.metric!r}"
            )
        if self.compatible_dims is not None and not 0 < self.compatible_dims < self.dim:
            raise VectorError(
                f"space {self.name!r}: expected compatible_dims between 1 and {self.dim - 1}, got "
                f"{self.compatible_dims}"
            )
        if not self.fingerprint:
            # The weights are not verified: the fingerprint says so itself.
            declared = fingerprint(self.name, str(self.dim), self.metric)
            object.__setattr__(self, "fingerprint", f"declared:{declared}")
        object.__setattr__(self, "compatible_with", tuple(self.compatible_with))
        object.__setattr__(self, "evidence", tuple(self.evidence))

    def __repr__(self) -> str:
        parts = [f"{self.name!r}, dim={self.dim}, metric={self.metric!r}"]
        parts.append(f"fingerprint='{self.fingerprint[:17]}…'")
        if self.compatible_with:
            parts.append(f"compatible with {len(self.compatible_with)}")
        return f"Space({', '.join(parts)})"

    def __str__(self) -> str:
        return f"'{self.name}' ({self.dim}-d {self.metric}, {self.fingerprint[:17]})"

    def same_as(self, other: Space) -> bool:
        """Whether two spaces are the same: fingerprint, dim and metric; names do not count.

        Args:
            other: Another space.

        Returns:
            True if vectors of the two live in one space.

        Example:
            >>> import midspan as ms
            >>> ms.Space("clip", 512).same_as(ms.Space("clip", 512))
            True
        """
        return (self.fingerprint, self.dim, self.metric) == (
            other.fingerprint,
            other.dim,
            other.metric,
        )

    def comparable_with(self, other: Space) -> bool:
        """Whether vectors of the two may be compared as they are: same space, or on record.

        Args:
            other: Another space.

        Returns:
            True if they are the same, or one of them is recorded as compatible with the other.
        """
        if self.same_as(other):
            return True
        if (self.dim, self.metric) != (other.dim, other.metric):
            return False
        return (
            other.fingerprint in self.compatible_with or self.fingerprint in other.compatible_with
        )

    def evidence_for(self, older: Space) -> Evidence | None:
        """What the test at the end of training found about an older space.

        Args:
            older: The space that this one was trained to be compatible with.

        Returns:
            Its scores and verdict, or None if nothing was measured.
        """
        return next((one for one in self.evidence if one.old == older.fingerprint), None)

    def prefix_for(self, older: Space) -> int | None:
        """How many of the first dims are comparable with an older space of so many dims.

        Args:
            older: The space that this one was trained to be compatible with.

        Returns:
            The number of dims, or None if the two are not connected by a prefix.
        """
        known = older.fingerprint in self.compatible_with and older.metric == self.metric
        return older.dim if known and older.dim == self.compatible_dims else None

    def to_json(self) -> str:
        """The space as text, as files and galleries keep it.

        Returns:
            JSON that `from_json` reads.
        """
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, *, source: str = "space") -> Space:
        """Read what `to_json` wrote; keys that are not known are left out.

        Args:
            text: JSON.
            source: What error messages call it: a file, a gallery.

        Returns:
            The space.

        Raises:
            FormatError: It is not JSON, or not a space.

        Example:
            >>> import midspan as ms
            >>> space = ms.Space("clip", 512)
            >>> ms.Space.from_json(space.to_json()) == space
            True
        """
        try:
            raw = json.loads(text)
            known = {name: raw[name] for name in cls.__dataclass_fields__ if name in raw}
            if "compatible_with" in known:
                known["compatible_with"] = tuple(known["compatible_with"])
            known["evidence"] = Evidence.each_of(known.get("evidence", ()), source=source)
            return cls(**known)
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"{source}: the space is not readable JSON ({error})") from error


def unit_prefix(vectors: FloatArray, dims: int) -> FloatArray:
    """(N, dims) the first dims of each vector, brought to length 1."""
    first = vectors[:, :dims]
    norms = np.linalg.norm(first, axis=1, keepdims=True)
    if not norms.all():
        row = int(np.flatnonzero(norms[:, 0] == 0)[0])
        raise VectorError(
            f"expected a direction in the first {dims} dims, got zeros in row {row}; remove it"
        )
    unit: FloatArray = (first / norms).astype(np.float32)
    return unit


def check_comparable(query: Space, gallery: Space, *, override: str | None = None) -> None:
    """Refuse spaces that nothing connects; `override`: the caller's argument that allows it."""
    if query.comparable_with(gallery):
        return
    anyway = "" if override is None else f", or compare them as they are with `{override}`"
    raise SpaceMismatch(
        f"query vectors are in {query}, gallery vectors in {gallery}, and no compatibility "
        "between the two is on record; train the new encoder compatibly (method = 'bct'), "
        f"or map one side with a bridge{anyway}"
    )


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Ids, vectors (N, D) float32 and their space; further columns (labels, cameras …) by name.

    The column `labels` holds the name of each item's class; whole numbers are read as names, 7 as
    '7'. `numbered`: an earlier version numbered the classes and did not keep their names.

    Args:
        ids: (N,) unique names of the items.
        vectors: (N, D) floats.
        space: The space that they are in.
        columns: Further values of each item; "labels" are the names of classes.

    Raises:
        VectorError: Shapes that do not fit, duplicate ids, NaN, infinite or zero vectors.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> cats = ms.Embeddings(
        ...     ids=np.array(["a", "b"]),
        ...     vectors=np.array([[1.0, 0.0], [0.6, 0.8]]),
        ...     space=ms.Space("tiny", 2),
        ...     columns={"labels": np.array(["cat", "cat"])},
        ... )
        >>> cats
        Embeddings(2 vectors in 'tiny' (2-d cosine, declared:c40e300a); 1 classes)
    """

    ids: StrArray
    vectors: FloatArray
    space: Space
    columns: Mapping[str, Column] = field(default_factory=dict)
    numbered: bool = False

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids)
        if ids.dtype.kind != "U":
            ids = ids.astype(np.str_)
        vectors = np.ascontiguousarray(self.vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.space.dim:
            raise VectorError(
                f"expected vectors of shape (N, {self.space.dim}) in {self.space}, got "
                f"{vectors.shape}; name the space of the encoder that made them"
            )
        if ids.ndim != 1 or len(ids) != len(vectors):
            raise VectorError(
                f"expected one id for each of {len(vectors)} vectors, got ids of shape {ids.shape}"
            )
        _check_unique(ids)
        _check_numbers(ids, vectors, cosine=self.space.metric == "cosine")
        columns = {}
        for name, column in self.columns.items():
            values = np.asarray(column)
            if name in RESERVED:
                raise VectorError(
                    f"expected a column name other than {RESERVED}, got {name!r}; rename the column"
                )
            if values.ndim == 0 or len(values) != len(vectors):
                raise VectorError(
                    f"column {name!r}: expected {len(vectors)} values, one for each vector, got "
                    f"shape {values.shape}"
                )
            columns[name] = as_names(values) if name == "labels" else values
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "vectors", vectors)
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        columns = [name for name in self.columns if name != "labels"]
        parts = [f"{len(self):,} vectors in {self.space}"]
        if self.labels is not None:
            parts.append(f"{len(np.unique(self.labels)):,} classes")
        if columns:
            parts.append(f"columns {', '.join(columns)}")
        return f"Embeddings({'; '.join(parts)})"

    def __getitem__(self, rows: slice | npt.NDArray[Any] | Sequence[int]) -> Embeddings:
        """A part of the rows: slice, mask or indices."""
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if len(rows) == 0:  # an empty list would come as float64
                rows = rows.astype(np.int64)
        return replace(
            self,
            ids=self.ids[rows],
            vectors=self.vectors[rows],
            columns={name: column[rows] for name, column in self.columns.items()},
        )

    @property
    def labels(self) -> StrArray | None:
        """(N,) the name of each item's class."""
        return self.columns.get("labels")

    def rows_of(self, ids: Sequence[str] | StrArray) -> IntArray:
        """Where these ids are.

        Args:
            ids: Ids of some of the items.

        Returns:
            (N,) the row of each.

        Raises:
            UnknownId: An id is not among these embeddings.
        """
        requested = np.asarray(ids, dtype=np.str_)
        order = np.argsort(self.ids, kind="stable")
        place = np.searchsorted(self.ids, requested, sorter=order)
        rows = order[np.minimum(place, len(order) - 1)] if len(order) else place
        missing = requested != self.ids[rows] if len(order) else np.ones(len(requested), dtype=bool)
        if missing.any():
            raise UnknownId(
                f"{int(missing.sum())} of {len(requested)} ids are not among these {len(self)} "
                f"embeddings, first {str(requested[missing][0])!r}"
            )
        return rows.astype(np.int64)

    def take(self, ids: Sequence[str] | StrArray) -> Embeddings:
        """These ids, in this order.

        Args:
            ids: Ids of some of the items.

        Returns:
            Embeddings of those items.

        Raises:
            UnknownId: An id is not among these embeddings.
        """
        return self[self.rows_of(ids)]

    def paired_with(self, other: Embeddings) -> tuple[Embeddings, Embeddings]:
        """The items that both sets have, in this one's order.

        Args:
            other: Vectors of some of the same items, in any space.

        Returns:
            (mine, theirs), row by row the same id.

        Raises:
            UnknownId: The two share no id.
        """
        _, mine, theirs = np.intersect1d(
            self.ids, other.ids, assume_unique=True, return_indices=True
        )
        if len(mine) == 0:
            raise UnknownId(
                f"expected items in both sets, but they share no id (first here "
                f"{_first(self.ids)}, first there {_first(other.ids)}); pairs are found by id"
            )
        order = np.argsort(mine, kind="stable")
        return self[mine[order]], other[theirs[order]]

    def joined_with(self, other: Embeddings) -> Embeddings:
        """One set after the other, with the columns that both have.

        Args:
            other: Embeddings in the same space, with other ids.

        Returns:
            Both in one set.

        Raises:
            SpaceMismatch: They are in two spaces.
            VectorError: They share an id.
        """
        if not self.space.same_as(other.space):
            raise SpaceMismatch(
                f"cannot join embeddings in {self.space} with embeddings in {other.space}: one set "
                "holds one space; keep two sets, or map one of them into the other's space"
            )
        shared = self.columns.keys() & other.columns.keys()
        return Embeddings(
            ids=np.concatenate([self.ids, other.ids]),
            vectors=np.concatenate([self.vectors, other.vectors]),
            space=self.space,
            columns={
                name: np.concatenate([self.columns[name], other.columns[name]])
                for name in sorted(shared)
            },
            numbered=self.numbered or other.numbered,
        )

    def with_columns(self, columns: Mapping[str, Column]) -> Embeddings:
        """The same vectors with further columns, which replace those of the same name.

        Args:
            columns: (N, …) values by name; "labels" are the names of classes, "uri" says where the
                image of each item is.

        Returns:
            New Embeddings; these stay as they are.

        Raises:
            VectorError: A column has another length, or a reserved name.

        Example:
            >>> import numpy as np
            >>> import midspan as ms
            >>> two = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("tiny", 2))
            >>> two.with_columns({"labels": np.array(["cat", "dog"])}).labels.tolist()
            ['cat', 'dog']
        """
        numbered = self.numbered and "labels" not in columns
        return replace(self, columns={**self.columns, **columns}, numbered=numbered)

    def with_labels_of(self, other: Embeddings) -> Embeddings:
        """The labels of the same items, row by row, in another set.

        Args:
            other: Embeddings of the same items; without labels, those of this set go too.

        Returns:
            New Embeddings; these stay as they are.
        """
        columns = {name: column for name, column in self.columns.items() if name != "labels"}
        if other.labels is not None:
            columns["labels"] = other.labels
        return replace(self, columns=columns, numbered=other.numbered)

    def prefix(self, dims: int) -> Embeddings:
        """The first dims as unit vectors: what is compared with older ones.

        Args:
            dims: How many.

        Returns:
            Embeddings in a space of their own, named after this one.
        """
        space = Space(
            name=f"{self.space.name}[:{dims}]",
            dim=dims,
            metric=self.space.metric,
            fingerprint=fingerprint(self.space.fingerprint, f"first {dims} dims"),
            compatible_with=self.space.compatible_with,
        )
        return replace(self, vectors=unit_prefix(self.vectors, dims), space=space)

    def normalised(self) -> Embeddings:
        """Unit vectors; only cosine spaces have the same meaning afterwards.

        Returns:
            New Embeddings; these stay as they are.

        Raises:
            VectorError: The space is not a cosine space.
        """
        if self.space.metric != "cosine":
            raise VectorError(
                f"expected a cosine space, got {self.space}; normalising would change its distances"
            )
        norms = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return replace(self, vectors=self.vectors / norms)

    def save(self, path: str | Path) -> Path:
        """Write the vectors, their space and all columns; the file appears whole or not at all.

        Args:
            path: Ends in `.npz` (no pickle) or `.parquet`; a file that is there is replaced.

        Returns:
            The path.

        Raises:
            FormatError: Another ending, or a column that the format cannot hold.
        """
        from midspan.embedding_files import save_embeddings

        return save_embeddings(self, path)

    @classmethod
    def load(cls, path: str | Path, *, space: Space | str | None = None) -> Embeddings:
        """Read `.npz`, `.parquet` or `.npy`.

        Args:
            path: A file of `save`; or anybody's `.npz` with an array `vectors` (and `ids`,
                `labels`, …), `.parquet` with a column `vectors`, or a bare `.npy`, whose ids are
                the row numbers.
            space: The space, or its name, of a file that holds none. Files that are given the same
                name and hold vectors of one dim are in one space.

        Returns:
            The embeddings, with all columns of the file.

        Raises:
            FormatError: The file cannot be read, or is of another kind.
            SpaceMissing: The file does not say which space its vectors are in.
        """
        from midspan.embedding_files import load_embeddings

        return load_embeddings(path, space=space)


def _first(ids: StrArray) -> str:
    return repr(str(ids[0])) if len(ids) else "none"


def _check_unique(ids: StrArray) -> None:
    sorted_ids = np.sort(ids)
    doubled = sorted_ids[1:][sorted_ids[1:] == sorted_ids[:-1]]
    if len(doubled):
        raise VectorError(
            f"{len(doubled)} ids stand more than once, first {str(doubled[0])!r}; "
            "ids must be unique"
        )


def _check_numbers(ids: StrArray, vectors: FloatArray, *, cosine: bool) -> None:
    """Blocks keep the temporary arrays small with a large gallery."""
    for start in range(0, len(vectors), 65536):
        block = vectors[start : start + 65536]
        squared = np.einsum("nd,nd->n", block, block, dtype=np.float64)
        bad = ~np.isfinite(squared)
        what = "NaN or infinite values"
        if cosine and not bad.any():
            bad, what = squared == 0, "length zero, which has no direction"
        if bad.any():
            row = start + int(np.flatnonzero(bad)[0])
            raise VectorError(
                f"vector of {str(ids[row])!r} (row {row}): expected finite numbers"
                f"{' and a direction' * cosine}, got {what}; remove the {int(bad.sum())} such rows "
                "of this block"
            )
