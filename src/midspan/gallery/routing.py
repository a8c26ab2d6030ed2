"""How a query is answered in each mode and phase of an upgrade. No item appears twice.

A query of the new encoder:
- direct: compared with new and old vectors as it is, or with old ones by its compatible prefix;
- map-query: mapped on the old part, as it is on the new part;
- map-gallery: as it is on new and mapped vectors.
Mode both: the query comes in both spaces, and each part is searched in its own.
A query of the old encoder alone (a client that has not changed yet) meets the old vectors; in
direct mode an item without one answers with its new vector.

Where the upgrade has a sample (midspan.gallery.routing), the old and the new part are searched
separately and merged by standardised scores. Without one, scores are merged as they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from midspan.bridges import load_bridge
from midspan.bridges.files import JSON_NAME
from midspan.errors import FormatError, SpaceMismatch, UnknownId
from midspan.gallery.engines.base import prepare
from midspan.gallery.records import Record, State
from midspan.spaces import (
    Embeddings,
    FloatArray,
    Metric,
    Space,
    StrArray,
    check_comparable,
    fingerprint,
    unit_prefix,
)

if TYPE_CHECKING:
    from midspan.bridges import Bridge
    from midspan.gallery.catalogue.audit import Blobs
    from midspan.gallery.records import Record

BridgeOf = Callable[[Record], "Bridge"]
Arm = Literal["new", "old"]


class Query(NamedTuple):
    """(Q, D) queries in one space."""

    space: Space
    vectors: FloatArray


def as_queries(
    query: Embeddings | Sequence[Embeddings] | npt.NDArray[Any], space: Space | None
) -> list[Query]:
    """The same queries in each space that they came in."""
    if isinstance(query, Embeddings):
        return [Query(query.space, query.vectors)]
    if not isinstance(query, np.ndarray) and len(query) and isinstance(query[0], Embeddings):
        if any(not np.array_equal(query[0].ids, other.ids) for other in query[1:]):
            raise SpaceMismatch("the queries in several spaces differ; expected equal ids in order")
        return [Query(one.space, one.vectors) for one in query]
    if space is None:
        raise SpaceMismatch("plain numbers require space=…, the space that they live in")
    return [Query(space, np.atleast_2d(np.asarray(query, dtype=np.float32)))]


@dataclasses.dataclass(frozen=True, slots=True)
class SearchPart:
    """One search: by which preference, among which spaces, with which query."""

    live: tuple[str, ...]
    among: tuple[str, ...]
    query: int = 0  # which of the spaces that the query came in
    bridge: Bridge | None = None  # maps the query
    dims: int | None = None  # so many first dims of the query, normalised; None: all
    metric_of: str | None = None  # space whose sample standardises; None: scores as they are

    def compared(self, queries: Sequence[Query]) -> FloatArray:
        """(Q, D) the queries as this part compares them."""
        vectors = queries[self.query].vectors
        if self.bridge is not None:
            return self.bridge.apply(vectors)
        return vectors if self.dims is None else unit_prefix(vectors, self.dims)


def parts(
    state: State, spaces: Sequence[Space], *, bridge_of: BridgeOf, arm: Arm = "new"
) -> list[SearchPart]:
    """The searches that answer a query that came in these spaces; the old part first.

    That order matters: an item that gets its new vector in between is found by both searches,
    and never by none.
    """
    record = None if state.upgrade is None else Record.of(state)
    if record is None or record.phase not in ("running", "paused"):
        return [_plain(state, spaces, record)]
    old, new = state.spaces[record.old], state.spaces[record.new]
    came_old = _place(spaces, (record.old,))
    came_new = _place(spaces, (record.new, record.mapped))  # a mapped vector stands for a new one
    if len(spaces) > 1:
        _refuse_strangers(spaces, old, new, record)
    dims = new.prefix_for(old) if record.mode == "direct" and new.dim != old.dim else None
    if came_old is not None and (came_new is None or arm == "old"):
        comparable = record.mode == "direct" and dims is None
        live = (record.old, record.new) if comparable else (record.old,)
        return [SearchPart(live, live, came_old)]
    if record.mode == "both" and came_old is None:
        raise SpaceMismatch(
            f"this gallery is between {old} and {new} in mode both and got queries in "
            f"{_listed(spaces)} only; embed each query with both encoders and pass both, "
            f"or ask in {old} as before"
        )
    if came_new is None:
        came_new = _comparable(spaces, old, new, record)
    stale = record.old if record.mapped is None else record.mapped
    apart = record.sample is not None or dims is not None or record.mode in ("both", "map-query")
    if not apart:
        return [SearchPart(state.live, (record.new, stale), came_new)]
    scaled = record.sample is not None
    return [
        SearchPart(
            state.live,
            (stale,),
            came_new if record.mode != "both" or came_old is None else came_old,
            bridge=bridge_of(record) if record.mode == "map-query" else None,
            dims=dims,
            metric_of=stale if scaled else None,
        ),
        SearchPart(state.live, (record.new,), came_new, metric_of=record.new if scaled else None),
    ]


def arm_of(key: bytes, share: float) -> Arm:
    """By which way this query is answered: the same for the same key, and stable as shares grow."""
    place = int.from_bytes(hashlib.blake2b(key, digest_size=6).digest()) / 256**6
    return "new" if place < share else "old"


def query_key(vector: FloatArray) -> bytes:
    """What stands for a query whose client has no name."""
    return vector.tobytes()


def with_mapped(
    state: State, vectors: Sequence[Embeddings], *, bridge_of: BridgeOf
) -> Sequence[Embeddings]:
    """In mode map-gallery, mapped vectors too for items that bring an old one and no new one.

    Without them no query of the new encoder would find such an item before the backfill does.
    """
    record = None if state.upgrade is None else Record.of(state)
    if record is None or record.mapped is None or record.phase not in ("running", "paused"):
        return vectors
    by_space = {part.space.fingerprint: part for part in vectors}
    if (old := by_space.get(record.old)) is None:
        return vectors
    there = {
        id
        for space in (record.new, record.mapped)
        if space in by_space
        for id in by_space[space].ids.tolist()
    }
    lacking = old[[row for row, id in enumerate(old.ids.tolist()) if id not in there]]
    if not len(lacking):
        return vectors
    mapped = bridge_of(record).transform(lacking).vectors
    return [*vectors, Embeddings(lacking.ids, mapped, state.spaces[record.mapped])]


def _place(spaces: Sequence[Space], fingerprints: tuple[str | None, ...]) -> int | None:
    places = (place for place, space in enumerate(spaces) if space.fingerprint in fingerprints)
    return next(places, None)


def _refuse_strangers(spaces: Sequence[Space], old: Space, new: Space, record: Record) -> None:
    """A vector of a third encoder beside one of the two ends is a mix-up, not a further query."""
    for space in spaces:
        if space.fingerprint not in (record.old, record.new, record.mapped):
            raise SpaceMismatch(
                f"queries in several spaces came in {_listed(spaces)}; this gallery is between "
                f"{old} and {new}, and {space} is neither: leave it out"
            )


def _comparable(spaces: Sequence[Space], old: Space, new: Space, record: Record) -> int:
    """A space that is neither of the two, and in direct mode may be compatible with both."""
    if record.mode != "direct" or len(spaces) != 1:
        raise SpaceMismatch(
            f"query vectors are in {_listed(spaces)}; this gallery is between {old} and {new} and "
            "answers queries of these two"
        )
    for known in (new, old):
        check_comparable(spaces[0], known)
    return 0


def _plain(state: State, spaces: Sequence[Space], record: Record | None) -> SearchPart:
    """No upgrade, or one that still maps or already drops: the live vectors as they are."""
    mine = _place(spaces, state.live[:1]) or 0
    if record is not None and record.phase == "mapping" and spaces[mine].fingerprint == record.new:
        raise SpaceMismatch(
            f"query vectors are in {spaces[mine]}, and the gallery is still being mapped to it; "
            f"until that is done it answers queries of {state.spaces[record.old]}"
        )
    for name in state.live:
        check_comparable(spaces[mine], state.spaces[name])
    return SearchPart(state.live, state.live, mine)


def _listed(spaces: Sequence[Space]) -> str:
    return ", ".join(str(space) for space in spaces)


# ---- merging hits of two spaces: each query's scores are standardised over one sample of items ---
# Cosines of two encoders are on different scales, and the scale differs from query to query. So a
# score becomes z = (score − mean) / deviation, where mean and deviation are those of the query's
# scores with a fixed random sample of the gallery's items. The deviation is that of the scores
# above the mean: only the upper tail is ever ranked, and in a well trained space it is much longer
# than the lower one. The sample has vectors in both spaces: the same items say what is usual in
# either. (Moments within each part of a half refreshed gallery hold only as long as the parts are
# random; a backfill that takes the uncertain items first breaks them.) Nothing is fitted and no
# labels are needed.
#
# z is a rising function of the score within a part, so where only one part has items the order is
# that of the scores: a gallery with no new vector ranks as before the upgrade, one with all of them
# as after it.

SAMPLE = 300  # items; of precision@10, 100 lose up to 1 point and 900 gain up to 0.3 (CUB, flowers)
FEWEST = 20  # items; with fewer the moments say little and scores are merged as they are

Float64 = npt.NDArray[np.float64]


class Moments(NamedTuple):
    """(Q,) of each query's scores with the sample."""

    mean: Float64
    deviation: Float64  # root mean square distance from the mean of the scores above it


@dataclass(frozen=True, slots=True)
class PairedSample:
    """Random items of a gallery with a vector in the old and in the new space, row by row."""

    ids: StrArray
    old: FloatArray  # (S, D)
    new: FloatArray  # (S, E)

    @classmethod
    def of(cls, old: Embeddings, new: Embeddings) -> Self:
        """Of the items that both have."""
        old, new = old.paired_with(new)
        return cls(old.ids, old.vectors, new.vectors)

    def __len__(self) -> int:
        return len(self.ids)

    def to_bytes(self) -> bytes:
        packed = io.BytesIO()
        np.savez(packed, ids=self.ids, old=self.old, new=self.new)
        return packed.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as kept:
                return cls(kept["ids"], kept["old"], kept["new"])
        except (ValueError, KeyError, OSError) as error:
            raise FormatError(f"the upgrade's sample is not readable ({error})") from error


def sample_kind(old: str) -> str:
    """The kind of the blobs that hold vectors of this space (fingerprint), to drop with it."""
    return f"sample of {fingerprint(old)[:24]}"


def store_sample(blobs: Blobs, sample: PairedSample, *, old: str, new: str) -> str:
    """Keep it instead of an earlier one of the same spaces; returns its digest."""
    data, pair = sample.to_bytes(), _pair_name(old, new)
    name = f"{pair}{hashlib.sha256(data).hexdigest()[:32]}"
    digest = blobs.put(data, kind=sample_kind(old), digest=name)
    for other in blobs.of_kind(sample_kind(old)):
        if other != digest and other.startswith(pair):
            blobs.delete(other)
    return digest


def find_sample(blobs: Blobs, *, old: str, new: str) -> tuple[str, PairedSample] | None:
    """The sample of these two spaces that an earlier plan or start has embedded."""
    pair = _pair_name(old, new)
    for digest in blobs.of_kind(sample_kind(old)):
        if digest.startswith(pair):
            return digest, PairedSample.from_bytes(blobs.get(digest))
    return None


def _pair_name(old: str, new: str) -> str:
    """What the digests of samples of these two spaces begin with."""
    return f"{fingerprint(old, new)[:24]}-"


def sample_scores(
    queries: FloatArray, prepared: FloatArray | Float64, *, metric: Metric
) -> Float64:
    """(Q, S) as the gallery scores: cosine, inner product, minus squared distance.

    prepared: the sample's vectors in this space (`gallery.scores.prepare`).
    """
    prepared_queries = prepare(queries, metric=metric).astype(np.float64)
    rows = np.asarray(prepared, dtype=np.float64)
    scores: Float64 = prepared_queries @ rows.T
    if metric == "l2":
        lengths = np.einsum("qd,qd->q", prepared_queries, prepared_queries)[:, None] + np.einsum(
            "sd,sd->s", rows, rows
        )
        scores = 2 * scores - lengths
    return scores


def moments(scores: npt.NDArray[np.floating]) -> Moments:
    """Of (Q, S) scores with the sample; the nearest item is left out.

    The query itself may be in the sample, and its score with itself says nothing about others.
    """
    scores = np.asarray(scores, dtype=np.float64)
    nearest = scores.max(axis=1)
    # Rounded, so that a query has the same moments alone and in a batch.
    mean = np.round((scores.sum(axis=1) - nearest) / (scores.shape[1] - 1), 8)
    above = np.maximum(scores - mean[:, None], 0)
    highest = np.maximum(nearest - mean, 0)
    count = np.count_nonzero(above, axis=1) - (highest > 0)
    square = ((above * above).sum(axis=1) - highest * highest) / np.maximum(count, 1)
    deviation = np.round(np.sqrt(np.maximum(square, 0)), 8)
    return Moments(mean, np.where(deviation > 1e-7, deviation, 1.0))


def standardise(scores: npt.NDArray[np.floating], of: Moments) -> Float64:
    """(Q, N) scores of these queries, in deviations from each query's mean."""
    standardised: Float64 = (scores - of.mean[:, None]) / of.deviation[:, None]
    return standardised


# ---- the bridge of an upgrade: a blob, so that every host that searches has it -------------------

KIND = "bridge"


def bridge_digest(folder: str | Path) -> str:
    """bridge.json holds the digest of the arrays, so its own digest stands for all."""
    try:
        return hashlib.sha256((Path(folder) / JSON_NAME).read_bytes()).hexdigest()[:32]
    except OSError as error:
        raise FormatError(f"{folder}: no bridge can be read there ({error})") from error


def store_bridge(blobs: Blobs, folder: str | Path) -> str:
    """Keep the bridge of this folder in the catalogue; returns its digest."""
    load_bridge(folder)  # what cannot be read later is refused now
    digest, packed = bridge_digest(folder), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(Path(folder).iterdir()):
            if path.name == JSON_NAME or path.suffix == ".safetensors":
                archive.write(path, path.name)
    return blobs.put(packed.getvalue(), kind=KIND, digest=digest)


def load_bridge_blob(blobs: Blobs, record: Record) -> Bridge:
    """From the catalogue; an upgrade of an earlier version has its bridge in a folder only."""
    assert record.digest is not None
    try:
        packed = blobs.get(record.digest)
    except UnknownId:
        if record.bridge is None or bridge_digest(record.bridge) != record.digest:
            raise FormatError(
                f"{record.bridge}: this is not the bridge that the upgrade was started with "
                f"({record.digest[:12]}); put the old one back, or roll back and start again"
            ) from None
        return load_bridge(record.bridge)
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            for name in archive.namelist():
                (Path(folder) / Path(name).name).write_bytes(archive.read(name))
        return load_bridge(folder)
