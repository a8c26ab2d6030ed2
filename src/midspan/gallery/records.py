"""The values that cross the border of a gallery: items, state, counts, work, audit log.

They are checked on creation, so that nothing behind the border sees a bad one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import math
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from midspan.errors import FormatError, ItemError
from midspan.spaces import Space

WriteMode = Literal["add", "replace", "put"]  # ids must be new, must be there, may be either


@dataclass(frozen=True, slots=True)
class State:
    """The one row that decides which vectors answer.

    `live` is a preference list: an item's live vector is that of the first space in it that the
    item has a vector in. (old,) before an upgrade, (new, old) during one, (new,) after it; back to
    (old,) is a rollback. Every item shall get a vector in `target`; those that have none are the
    gallery's work. `upgrade` is the upgrade's own record, JSON that the gallery only keeps.

    To change it: `gallery.change(dataclasses.replace(state, live=…), event=…)`.
    """

    version: int  # grows with each change; a change of an older version is refused
    spaces: Mapping[str, Space]  # by fingerprint; a vector of any other space is refused
    live: tuple[str, ...]
    target: str | None = None
    upgrade: Mapping[str, Any] | None = None
    _parsed: list[Record] = field(default_factory=list, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        names = [self.spaces[one].name if one in self.spaces else one for one in self.live]
        parts = [f"version {self.version}", f"live {' before '.join(names)}"]
        if self.target is not None and self.target in self.spaces:
            parts.append(f"target {self.spaces[self.target].name}")
        if self.upgrade is not None:
            parts.append(f"upgrade {self.upgrade.get('phase')}")
        return f"State({', '.join(parts)})"

    def writable(self) -> tuple[str, ...]:
        """Fingerprints of the spaces that vectors may be added in."""
        if self.target is None or self.target in self.live:
            return self.live
        return (*self.live, self.target)


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One line of the audit log."""

    who: str
    what: str  # "create", "upgrade start", …
    details: Mapping[str, Any] = field(default_factory=dict)
    when: float = 0.0  # seconds since 1970; set when it is written


@dataclass(frozen=True, slots=True)
class Counts:
    """items = sum of `live` + without; a target: items = done + pending + failed."""

    items: int
    stored: Mapping[str, int]  # vectors by space
    live: Mapping[str, int]  # items by the space of their live vector
    without: int  # items with no live vector
    pending: int  # items that still lack a vector in the target
    failed: int  # items that failed for the target

    @property
    def done(self) -> int:
        """Items with a vector in the target; all of them if there is no target."""
        return self.items - self.pending - self.failed


@dataclass(frozen=True, slots=True)
class Task:
    """An item that a worker has claimed; `attempts` failed before."""

    item: Item
    attempts: int
    row: int = field(default=0, compare=False)  # the catalogue's number of this revision


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker's report: this revision of the item could not be embedded.

    Args:
        id: Of the item.
        revision: That was tried; one that was replaced meanwhile is not marked.
        reason: For people.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.gallery import Failed
        >>> old = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("old", 2))
        >>> with ms.Gallery.create("memory:", old.space) as gallery:
        ...     _ = gallery.add(old)
        ...     _ = ms.Upgrade.start(gallery, to=ms.Space("new", 4), mode="both")
        ...     task = gallery.work.claim(worker="me", limit=1, seconds=60.0)[0]
        ...     report = Failed(task.item.id, task.item.revision, "the file is broken")
        ...     gallery.work.fail([report], retry_after=None)  # None: it is not tried again
        ...     print(gallery.count().failed)
        1
    """

    id: str
    revision: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An item that failed for the target and is not tried again."""

    id: str
    uri: str | None
    reason: str
    attempts: int
    when: float


def whoever() -> str:
    """Who acts, for the audit log, if nobody says so."""
    with contextlib.suppress(KeyError, OSError):  # a container without a user name
        return f"{getpass.getuser()}@{socket.gethostname()}"[:200]
    return "unknown"


# ---- the open upgrade: JSON in the state row, so that every process reads the same ---------------

Mode = Literal["direct", "map-query", "map-gallery", "both"]
Phase = Literal["mapping", "running", "paused", "finished", "forgetting"]
PROMISING: tuple[str, ...] = ("mapping", "running", "paused")  # phases that a rollback undoes whole

MODES: tuple[str, ...] = get_args(Mode)


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """`old`, `new` and `mapped` are fingerprints; `mapped` only in the mode map-gallery.

    mapping: the stored vectors are being mapped, the old service still answers.
    running, paused: the new encoder answers; the backfill may continue, or may not.
    finished: the new vectors alone answer; the old ones are kept, so there is a way back.
    forgetting: the old vectors are being dropped, there is no way back.
    """

    mode: Mode
    old: str
    new: str
    phase: Phase
    started: float  # seconds since 1970
    rollback: bool = True  # promised: new items are to bring an old vector too
    order: str | None = None  # once its priorities are written
    mapped: str | None = None
    bridge: str | None = None  # folder that it came from; the bytes are in the catalogue
    digest: str | None = None  # of the bridge: the name of its blob
    sample: str | None = None  # blob of the PairedSample that scores are standardised over
    traffic: float = 1.0  # share of the queries that the new way answers; 0: shadow
    reason: str | None = None  # why it is paused
    gate: str | None = None  # the last verdict
    evidence: Mapping[str, Any] | None = None  # of it: metric, queries, share, before, after, at
    source: str | None = None  # where the last run had its vectors from
    override: Mapping[str, Any] | None = None  # who continued despite the gate, when, why
    keep_until: float | None = None  # finished: when the old vectors may go; None: when asked

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, state: State) -> Record | None:
        """The open upgrade, if there is one."""
        if state.upgrade is None:
            return None
        if state._parsed:
            return state._parsed[0]
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in state.upgrade.items() if name in known}
        if values.get("phase") == "finishing":  # as earlier versions called it
            values["phase"] = "forgetting"
        try:
            record = cls(**values)
        except TypeError as error:
            raise FormatError(
                f"the gallery's upgrade record is not readable ({error}); was it written by "
                "another version of midspan?"
            ) from error
        if record.mode not in MODES or record.phase not in get_args(Phase):
            raise FormatError(
                f"the gallery's upgrade record has mode {record.mode!r} and phase "
                f"{record.phase!r}; this version knows {MODES} and {get_args(Phase)}"
            )
        state._parsed.append(record)
        return record


# ---- items: what is stored apart from vectors, and what is refused -------------------------------


Payload = Mapping[str, Any]  # a JSON object

ID_BYTES = 512
URI_BYTES = 4096
PAYLOAD_BYTES = 2**20
PAYLOAD_DEPTH = 32
INTEGERS = 2**63  # what every engine can compare without rounding

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Draft:
    """An item as a writer gives it: checked on creation, so that no engine sees a bad one.

    Args:
        id: Unique in the gallery, up to 512 bytes.
        uri: Where its image is.
        payload: A JSON object, up to 1 MiB.
        created: Seconds since 1970, for copies of another gallery; None means now.
        changed: Likewise.

    Example:
        >>> from midspan.gallery import Draft
        >>> Draft("chair-7", uri="photos/chair-7.jpg", payload={"brand": "acme"}).json
        '{"brand":"acme"}'
        >>> Draft("chair-7", payload={"weight": float("nan")})
        Traceback (most recent call last):
        midspan.errors.ItemError: the payload of 'chair-7' holds nan, which JSON does not know
    """

    id: str
    uri: str | None = None
    payload: Payload = field(default_factory=dict)
    created: float | None = None
    changed: float | None = None
    json: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", check_id(self.id))
        if self.uri is not None:
            check_text(self.uri, what=f"the uri of {self.id!r}", limit=URI_BYTES)
        object.__setattr__(self, "json", payload_json(self.payload, of=self.id))


@dataclass(frozen=True, slots=True)
class Item:
    """What is stored. `spaces` are the fingerprints of the spaces that it has a vector in."""

    id: str
    uri: str | None
    payload: dict[str, Any]
    revision: int  # 1, then one more with each replacement
    created: float
    changed: float
    spaces: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"Item({self.id!r:.80}, uri={self.uri!r:.80}, payload={self.payload!r:.80}, revision="
            f"{self.revision}, vectors in {len(self.spaces)} spaces)"
        )


class Hit(NamedTuple):  # made by the million: a tuple takes a quarter of the time
    """One found item; a larger score is better. Hits come by falling `rank_score`.

    score: of the two vectors that were compared, as the metric of `space` says: cosine, inner
    product, minus squared distance. rank_score: the same number, except while an upgrade merges
    two spaces: then the score in deviations from what is usual for this query in that space.
    """

    id: str
    score: float
    space: Space  # of the vector that was compared
    uri: str | None
    payload: dict[str, Any]
    rank_score: float

    def __repr__(self) -> str:
        uri = "" if self.uri is None else f", uri={self.uri!r:.80}"
        payload = f", payload={self.payload!r:.80}" if self.payload else ""
        return (
            f"Hit({self.id!r:.80}, score={self.score:.4f}, space={self.space.name!r}{uri}{payload})"
        )


def check_id(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ItemError(f"an item id is a text of 1 to {ID_BYTES} bytes, got {value!r:.80}")
    return check_text(value, what="item id", limit=ID_BYTES)


def check_text(value: object, *, what: str, limit: int) -> str:
    if not isinstance(value, str):
        raise ItemError(f"{what} is {type(value).__name__}; expected text")
    if value.isascii() and value.isprintable() and len(value) <= limit:  # most are
        return str(value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ItemError(f"{what} {value!r:.80} is not valid Unicode ({error.reason})") from error
    if size > limit:
        raise ItemError(f"{what} {value!r:.40} has {size} bytes; at most {limit} are kept")
    if _CONTROL.search(value):
        raise ItemError(f"{what} {value!r:.80} holds control characters; remove them")
    return str(value)


# json.dumps would make one at each call
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def payload_json(payload: object, *, of: str) -> str:
    """The payload as the one JSON text that all engines keep."""
    if not isinstance(payload, Mapping):
        raise ItemError(
            f"the payload of {of!r} is {type(payload).__name__}; expected a JSON object"
        )
    if not payload:
        return "{}"
    _check_value(payload, of=of, depth=0)
    try:
        text = _ENCODER.encode(payload)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise ItemError(f"the payload of {of!r} is not JSON ({error})") from error
    if size > PAYLOAD_BYTES:
        raise ItemError(
            f"the payload of {of!r} has {size:,} bytes; at most {PAYLOAD_BYTES:,} are kept: "
            "store the large part elsewhere and its address here"
        )
    return text


def _check_value(value: object, *, of: str, depth: int) -> None:
    if depth > PAYLOAD_DEPTH:
        raise ItemError(f"the payload of {of!r} is nested deeper than {PAYLOAD_DEPTH}")
    if isinstance(value, str):
        if "\0" in value:
            raise ItemError(f"the payload of {of!r} holds a NUL character; remove it")
    elif isinstance(value, bool) or value is None:
        pass
    elif isinstance(value, int):
        if not -INTEGERS <= value < INTEGERS:
            raise ItemError(f"the payload of {of!r} holds {value}, beyond 64 bits; give it as text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ItemError(f"the payload of {of!r} holds {value}, which JSON does not know")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ItemError(f"the payload of {of!r} has the key {key!r:.80}; keys are text")
            _check_value(key, of=of, depth=depth)
            _check_value(part, of=of, depth=depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_value(part, of=of, depth=depth + 1)
    else:
        raise ItemError(
            f"the payload of {of!r} holds a {type(value).__name__}; "
            "JSON knows text, numbers, true, false, null, lists and objects"
        )
