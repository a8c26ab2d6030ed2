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
    """A setting that does not exist or does not fit; the message names the nearest one."""


class MissingDependency(MidspanError):
    """Raised with the extra that brings the library: `pip install "midspan[train]"`."""

    def __init__(self, library: str, *, extra: str, required_for: str) -> None:
        super().__init__(
            f"{required_for} needs {library}, which is not installed; "
            f'run: pip install "midspan[{extra}]"'
        )
        self.library = library
        self.extra = extra


class FormatError(MidspanError):
    """A file or folder is corrupt, truncated or of another kind."""


class SpaceMissing(FormatError):
    """A file of vectors that does not say which space they are in; pass `space`."""


class DataError(MidspanError):
    """Images, labels or splits that cannot be used."""


class ImageError(DataError):
    """One image that cannot be decoded, or exceeds the limits."""


class VectorError(MidspanError):
    """Wrong shape, NaN, infinite or zero vectors, duplicate ids."""


class SpaceMismatch(MidspanError):
    """Vectors of two spaces would be compared, and nothing connects the two."""


class UnknownId(MidspanError):
    """An id that does not exist."""


class EncoderError(MidspanError):
    """An encoder that cannot be built, loaded or trusted."""


class EvaluationError(MidspanError):
    """A question that these vectors and labels cannot answer."""


class LabelMismatch(EvaluationError):
    """Two sets of labels that name no class in common."""


class GalleryError(MidspanError):
    """A gallery that is missing, exists already, or does not allow the step."""


class EvidenceFailed(GalleryError):
    """The test at the end of the new encoder's training failed; `override` needs a reason."""


class ItemError(GalleryError):
    """An id, uri, payload or filter that a gallery cannot take."""


class StateChanged(GalleryError):
    """Another process changed the gallery meanwhile; read its state again."""


class StoreError(GalleryError):
    """The engine refused: disk full, read-only, busy, server gone."""


class ClusterError(MidspanError):
    """A Ray cluster that does not answer, has no capacity, or lost its workers."""


class RequestError(MidspanError):
    """An error of the service that has no class here; `kind` is the service's name for it."""

    def __init__(
        self, message: str, *, status: int | None = None, kind: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.request_id = request_id


class Unreachable(RequestError):
    """A service did not answer, after all retries."""


class RunError(MidspanError):
    """A training run in a state that does not allow the step."""


class Interrupted(RunError):
    """Stopped by Ctrl-C; the same command continues from here."""


class ProcessLost(RunError):
    """Another process of the same run is gone or does not answer."""
