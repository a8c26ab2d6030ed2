"""Every error that midspan raises on purpose, on one page.

MidspanError
├── ConfigError          a run file or a setting that does not exist or does not fit
├── MissingDependency    an optional library is not installed
├── FormatError          a file or folder is corrupt, truncated or of another kind
│   └── SpaceMissing     a file of vectors that does not say which space they are in
├── DataError            images, labels or splits that cannot be used
│   └── ImageError       one image that cannot be decoded, or may not be
├── VectorError          wrong shape, NaN, infinite or zero vectors, duplicate ids
├── SpaceMismatch        vectors of two spaces would be compared
├── UnknownId            an id that does not exist
├── EncoderError         an encoder that cannot be built, loaded or trusted
├── EvaluationError      a question that these vectors and labels cannot answer
│   └── LabelMismatch    two sets of labels that name no class in common
├── GalleryError         a gallery that is missing, exists already, or does not allow the step
│   ├── EvidenceFailed   the encoder's own test is FAIL, and no reason to override it was given
│   ├── ItemError        an id, uri, payload or filter that a gallery cannot take
│   ├── StateChanged     another process changed the gallery meanwhile: read its state again
│   └── StoreError       the engine below refused: disk full, read-only, busy, server gone
├── ClusterError         a Ray cluster that does not answer, has no capacity, or lost its workers
├── RequestError         a service refused a request; has its status, kind and request_id
│   └── Unreachable      a service did not answer, after all tries
└── RunError             a training run in a state that does not allow the step
    ├── Interrupted      stopped by Ctrl-C; the same command continues from here
    └── ProcessLost      another process of the same run is gone or does not answer

Each message says what was expected, what came instead, and what to do.
"""

from __future__ import annotations

__all__ = [
    "ClusterError",
    "ConfigError",
    "DataError",
    "EncoderError",
    "EvaluationError",
    "EvidenceFailed",
    "FormatError",
    "GalleryError",
    "ImageError",
    "Interrupted",
    "ItemError",
    "LabelMismatch",
    "MidspanError",
    "MissingDependency",
    "ProcessLost",
    "RequestError",
    "RunError",
    "SpaceMismatch",
    "SpaceMissing",
    "StateChanged",
    "StoreError",
    "UnknownId",
    "Unreachable",
    "VectorError",
]


class MidspanError(Exception):
    """Base of all errors that a caller can fix; the CLI prints it as one line, exit code 2.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     ms.Space("clip", dim=0)
        ... except ms.MidspanError as error:
        ...     print(type(error).__name__)
        VectorError
    """


class ConfigError(MidspanError):
    """A setting that does not exist or does not fit; the message names the nearest one.

    Example:
        >>> import midspan as ms
        >>> emb = ms.Embeddings(["a", "b"], [[1, 0], [0, 1]], ms.Space("clip", 2))
        >>> try:
        ...     ms.fit_bridge(emb, emb, method="rigde")
        ... except ms.ConfigError as error:
        ...     print(error)
        no bridge is called 'rigde'; did you mean 'ridge'?
    """


class MissingDependency(MidspanError):
    """Raised with the extra that brings the library: `pip install "midspan[train]"`.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     raise ms.MissingDependency("torch", extra="train", required_for="training")
        ... except ms.MissingDependency as error:
        ...     print(error)
        training needs torch, which is not installed; run: pip install "midspan[train]"
    """

    def __init__(self, library: str, *, extra: str, required_for: str) -> None:
        super().__init__(
            f"{required_for} needs {library}, which is not installed; "
            f'run: pip install "midspan[{extra}]"'
        )
        self.library = library
        self.extra = extra


class FormatError(MidspanError):
    """A file or folder is corrupt, truncated or of another kind.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     ms.load_bridge("nowhere")
        ... except ms.FormatError as error:
        ...     print(type(error).__name__)
        FormatError
    """


class SpaceMissing(FormatError):
    """A file of vectors that does not say which space they are in; pass `space`.

    Example:
        >>> import midspan as ms
        >>> import tempfile
        >>> import numpy as np
        >>> try:
        ...     with tempfile.TemporaryDirectory() as folder:
        ...         np.save(f"{folder}/v.npy", np.eye(2, dtype=np.float32))
        ...         ms.Embeddings.load(f"{folder}/v.npy")  # pass space="clip"
        ... except ms.SpaceMissing as error:
        ...     print("which space?")
        which space?
    """


class DataError(MidspanError):
    """Images, labels or splits that cannot be used.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     ms.data.folder("nowhere")
        ... except ms.DataError as error:
        ...     print(error)
        nowhere: no such folder; expected a folder of images or of class folders
    """


class ImageError(DataError):
    """One image that cannot be decoded, or exceeds the limits.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     raise ms.ImageError("cat.jpg: cannot be decoded")
        ... except ms.DataError as error:
        ...     print(error)
        cat.jpg: cannot be decoded
    """


class VectorError(MidspanError):
    """Wrong shape, NaN, infinite or zero vectors, duplicate ids.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     ms.Embeddings(["a", "a"], [[1, 0], [0, 1]], ms.Space("clip", 2))
        ... except ms.VectorError as error:
        ...     print(error)
        1 ids stand more than once, first 'a'; ids must be unique
    """


class SpaceMismatch(MidspanError):
    """Vectors of two spaces would be compared, and nothing connects the two.

    Example:
        >>> import midspan as ms
        >>> emb = ms.Embeddings(["a", "b"], [[1, 0], [0, 1]], ms.Space("clip", 2))
        >>> gallery = ms.Gallery.create("memory:", ms.Space("dino", 2))
        >>> try:
        ...     gallery.search(emb)
        ... except ms.SpaceMismatch as error:
        ...     print("connect the two with a bridge")
        connect the two with a bridge
    """


class UnknownId(MidspanError):
    """An id that does not exist.

    Example:
        >>> import midspan as ms
        >>> gallery = ms.Gallery.create("memory:", ms.Space("clip", 2))
        >>> try:
        ...     gallery.get("c")
        ... except ms.UnknownId as error:
        ...     print(error)
        'c' is not in memory:
    """


class EncoderError(MidspanError):
    """An encoder that cannot be built, loaded or trusted.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     ms.load_encoder("nowhere")
        ... except ms.EncoderError as error:
        ...     print(str(error)[:23])
        no encoder at 'nowhere'
    """


class EvaluationError(MidspanError):
    """A question that these vectors and labels cannot answer.

    Example:
        >>> import midspan as ms
        >>> emb = ms.Embeddings(["a", "b"], [[1, 0], [0, 1]], ms.Space("clip", 2))
        >>> try:
        ...     ms.evaluate(emb)
        ... except ms.EvaluationError as error:
        ...     print(error)
        the query has no labels (no columns); add a 'labels' column, it says what is relevant
    """


class LabelMismatch(EvaluationError):
    """Two sets of labels that name no class in common.

    Example:
        >>> import midspan as ms
        >>> emb = ms.Embeddings(["a", "b"], [[1, 0], [0, 1]], ms.Space("clip", 2))
        >>> cats = emb.with_columns({"labels": ["cat", "cat"]})
        >>> try:
        ...     ms.evaluate(cats, emb.with_columns({"labels": ["dog", "dog"]}))
        ... except ms.LabelMismatch as error:
        ...     print(str(error)[:43])
        query and gallery have no label in common:
    """


class GalleryError(MidspanError):
    """A gallery that is missing, exists already, or does not allow the step.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     ms.Gallery.open("nowhere.midspan")
        ... except ms.GalleryError as error:
        ...     print(str(error)[:39])
        there is no gallery at nowhere.midspan;
    """


class EvidenceFailed(GalleryError):
    """The test at the end of the new encoder's training failed; `override` needs a reason.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     raise ms.EvidenceFailed("cross is below old self")
        ... except ms.EvidenceFailed as error:
        ...     print(error, "- start with override='why', or train again")
        cross is below old self - start with override='why', or train again
    """


class ItemError(GalleryError):
    """An id, uri, payload or filter that a gallery cannot take.

    Example:
        >>> import midspan as ms
        >>> emb = ms.Embeddings(["a", "b"], [[1, 0], [0, 1]], ms.Space("clip", 2))
        >>> gallery = ms.Gallery.create("memory:", ms.Space("clip", 2))
        >>> try:
        ...     gallery.search(emb, filter={"price": {"$about": 3}})
        ... except ms.ItemError as error:
        ...     print(str(error)[:17])
        filter on 'price'
    """


class StateChanged(GalleryError):
    """Another process changed the gallery meanwhile; read its state again.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     raise ms.StateChanged("another process started an upgrade")
        ... except ms.StateChanged as error:
        ...     print(error)
        another process started an upgrade
    """


class StoreError(GalleryError):
    """The engine refused: disk full, read-only, busy, server gone.

    Example:
        >>> import midspan as ms
        >>> gallery = ms.Gallery.create("memory:", ms.Space("clip", 2))
        >>> gallery.close()
        >>> try:
        ...     gallery.get("a")
        ... except ms.StoreError as error:
        ...     print(error)
        memory:: this gallery is closed
    """


class ClusterError(MidspanError):
    """A Ray cluster that does not answer, has no capacity, or lost its workers.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     raise ms.ClusterError("ray://head:10001 does not answer")
        ... except ms.ClusterError as error:
        ...     print(error)
        ray://head:10001 does not answer
    """


class RequestError(MidspanError):
    """An error of the service that has no class here; `kind` is the service's name for it.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     raise ms.RequestError("too many uploads", status=429, kind="Busy", request_id="7f")
        ... except ms.RequestError as error:
        ...     print(error.status, error.kind, error.request_id)
        429 Busy 7f
    """

    def __init__(
        self, message: str, *, status: int | None = None, kind: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.request_id = request_id


class Unreachable(RequestError):
    """A service did not answer, after all retries.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     ms.Client("http://127.0.0.1:9", retries=0).info()
        ... except ms.Unreachable as error:
        ...     print(str(error)[:33])
        http://127.0.0.1:9 did not answer
    """


class RunError(MidspanError):
    """A training run in a state that does not allow the step.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     raise ms.RunError("runs/new is in use by process 41")
        ... except ms.RunError as error:
        ...     print(error)
        runs/new is in use by process 41
    """


class Interrupted(RunError):
    """Stopped by Ctrl-C; the same command continues from here.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     raise ms.Interrupted("stopped after epoch 3")
        ... except ms.Interrupted as error:
        ...     print(error)
        stopped after epoch 3
    """


class ProcessLost(RunError):
    """Another process of the same run is gone or does not answer.

    Example:
        >>> import midspan as ms
        >>> try:
        ...     raise ms.ProcessLost("process 1 of 2 does not answer")
        ... except ms.ProcessLost as error:
        ...     print(error)
        process 1 of 2 does not answer
    """
