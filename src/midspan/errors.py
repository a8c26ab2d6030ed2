"""Every error that midspan raises on purpose, on one page.

MidspanError
├── ConfigError          a run file or a setting that does not exist or does not fit
├── MissingDependency    an optional library is not installed
├── FormatError          a file or folder is corrupt, truncated or of another kind
├── DataError            images, labels or splits that cannot be used
│   └── ImageError       one image that cannot be decoded, or may not be
├── VectorError          wrong shape, NaN, infinite or zero vectors, doubled ids
├── SpaceMismatch        vectors of two spaces would be compared
├── UnknownId            an id that is not there
├── EncoderError         an encoder that cannot be built, loaded or trusted
├── EvaluationError      a question that these vectors and labels cannot answer
├── GalleryError         a gallery that is not there, is there already, or does not allow the step
│   ├── ItemError        an id, uri, payload or filter that a gallery cannot take
│   ├── StateChanged     somebody else changed the gallery's state in between: read it again
│   └── StoreError       the engine below refused: disk full, read-only, busy, server gone
├── ClusterError         a Ray cluster that does not answer, has no room, or lost its workers
├── RequestError         a service refused a request; has its status, kind and request_id
│   └── Unreachable      a service did not answer, after all tries
└── RunError             a training run in a state that does not allow the step
    ├── Interrupted      stopped by Ctrl-C at a point from which the same command goes on
    └── ProcessLost      another process of the same run is gone or does not answer

Each message says what came, what was wanted, and what to do.
"""

from __future__ import annotations


class MidspanError(Exception):
    """Base of all errors that a caller can mend; the CLI prints it as one line, exit code 1."""


class ConfigError(MidspanError): ...


class MissingDependency(MidspanError):
    """Raised with the extra that brings the library: `pip install "midspan[train]"`."""

    def __init__(self, library: str, *, extra: str, wanted_for: str) -> None:
        super().__init__(
            f"{wanted_for} needs {library}, which is not installed; "
            f'run: pip install "midspan[{extra}]"'
        )
        self.library = library
        self.extra = extra


class FormatError(MidspanError): ...


class DataError(MidspanError): ...


class ImageError(DataError): ...


class VectorError(MidspanError): ...


class SpaceMismatch(MidspanError): ...


class UnknownId(MidspanError): ...


class EncoderError(MidspanError): ...


class EvaluationError(MidspanError): ...


class GalleryError(MidspanError): ...


class ItemError(GalleryError): ...


class StateChanged(GalleryError): ...


class StoreError(GalleryError): ...


class ClusterError(MidspanError): ...


class RequestError(MidspanError):
    """What a client is told and has no class of its own here; `kind` is the service's word."""

    def __init__(
        self, message: str, *, status: int | None = None, kind: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.request_id = request_id


class Unreachable(RequestError): ...


class RunError(MidspanError): ...


class Interrupted(RunError): ...


class ProcessLost(RunError): ...
