"""What comes in over HTTP, version 1: bodies of requests. Unknown fields are errors.

What goes out is in midspan.wire. Fields may be added there; none is renamed or removed within /v1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)

from midspan.gallery import Filter, parse_filter

LARGEST_K = 1000
LARGEST_BATCH = 256  # query vectors in one request
LARGEST_WRITE = 2000  # items in one request: one transaction of a gallery
LARGEST_PAGE = 1000
LARGEST_DIM = 65_536
LARGEST_TEXT = 4096  # characters

Id = Annotated[str, Field(min_length=1, max_length=512)]
K = Annotated[int, Field(ge=1, le=LARGEST_K)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]  # no text, no true or false
Vector = Annotated[list[Number], Field(min_length=1, max_length=LARGEST_DIM)]


def _filter(value: object) -> Filter | None:
    """Parsed here and nowhere after; an empty one is none."""
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise ValueError("expected a filter as a JSON object")
    return parse_filter(value)


Where = Annotated[
    Filter | None,
    PlainValidator(_filter, json_schema_input_type=dict[str, Any] | None),
]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)


class SearchOptions(Body):
    """`limit` and `score_threshold` are other names of `k` and `threshold`."""

    k: K = 10
    limit: K | None = None
    filter: Where = None
    threshold: Finite | None = None
    score_threshold: Finite | None = None
    exact: bool = False
    with_payload: bool = True
    with_vectors: bool = False

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        for one, other in (("k", "limit"), ("threshold", "score_threshold")):
            if one in self.model_fields_set and getattr(self, other) is not None:
                raise ValueError(f"give either {one} or {other}: they are the same")
        return self

    @property
    def most(self) -> int:
        return self.limit or self.k

    @property
    def least(self) -> float | None:
        return self.threshold if self.score_threshold is None else self.score_threshold


class ItemSearch(SearchOptions):
    id: Id


class AlsoVectors(Body):
    """The same queries in another space."""

    space: str
    vectors: Annotated[list[Vector], Field(min_length=1, max_length=LARGEST_BATCH)]


class VectorSearch(SearchOptions):
    """One `vector`, or several `vectors`; `space` is a fingerprint or a name, default the live.

    also: the same queries in the other space of an upgrade in mode both.
    """

    vector: Vector | None = None
    vectors: Annotated[list[Vector], Field(min_length=1, max_length=LARGEST_BATCH)] | None = None
    space: str | None = None
    also: list[AlsoVectors] = Field(default_factory=list, max_length=1)

    @model_validator(mode="after")
    def _one_of_both(self) -> VectorSearch:
        if (self.vector is None) == (self.vectors is None):
            raise ValueError("give either vector or vectors")
        asked = 1 if self.vectors is None else len(self.vectors)
        if any(len(one.vectors) != asked for one in self.also):
            raise ValueError(f"also has other queries; expected vectors of the same {asked}")
        return self


class AnySearch(SearchOptions):
    """One of `image` (base64), `vector`, `id` and `text`; a file comes as a form.

    text: where the service's encoder has a text tower.
    """

    image: Base64Bytes | None = Field(default=None, max_length=2**28)
    vector: Vector | None = None
    id: Id | None = None
    text: Annotated[str, Field(min_length=1, max_length=LARGEST_TEXT)] | None = None
    space: str | None = None  # of the vector

    @model_validator(mode="after")
    def _one_query(self) -> Self:
        kinds = ("image", "vector", "id", "text")
        given = [one for one in kinds if getattr(self, one) is not None]
        if len(given) != 1:
            raise ValueError(
                f"expected one of image, vector, id and text, got {len(given)} of them"
            )
        if self.space is not None and self.vector is None:
            raise ValueError("space is that of a vector; the service knows it of the rest")
        return self


class FacetsSearch(Body):
    fields: list[Annotated[str, Field(max_length=512)]] = Field(default_factory=list, max_length=16)
    filter: Where = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 20  # values of each field


class DuplicatesSearch(Body):
    threshold: Finite = 0.98  # score that two items must have
    filter: Where = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100  # groups


class ItemWrite(Body):
    """An item with a vector that was made elsewhere; without one: another payload in its place."""

    vector: Vector | None = None
    space: str | None = None  # fingerprint or name; default the space that new items come in
    also: dict[str, Vector] = Field(default_factory=dict)  # vectors in further spaces, by its name
    payload: dict[str, Any] = Field(default_factory=dict)
    uri: str | None = Field(default=None, max_length=4096)


class NewItem(Body):
    id: Id
    vector: Vector
    also: dict[str, Vector] = Field(default_factory=dict)  # vectors in further spaces, by its name
    payload: dict[str, Any] = Field(default_factory=dict)
    uri: str | None = Field(default=None, max_length=4096)


class ItemsWrite(Body):
    """Whole or not at all."""

    items: Annotated[list[NewItem], Field(min_length=1, max_length=LARGEST_WRITE)]
    space: str | None = None
    mode: Literal["add", "replace", "put"] = "put"


class PayloadWrite(Body):
    payload: dict[str, Any]
