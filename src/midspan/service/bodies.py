"""Reading requests: JSON checked against a model, or a form with one image."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from midspan.service.bounded_executor import BoundedExecutor
from midspan.service.errors import InvalidRequest, TooLarge, UnsupportedType

M = TypeVar("M", bound=BaseModel)

INLINE = 65536  # bytes that are parsed on the event loop; more goes to a thread


async def read_json(request: Request, model: type[M], *, executor: BoundedExecutor) -> M:
    """An empty body is an empty object."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise UnsupportedType(f"expected content type application/json, got {kind!r:.80}")
    raw = await request.body() or b"{}"
    if len(raw) <= INLINE:
        return checked(model, raw)
    return await executor.run(checked, model, raw)


def checked(model: type[M], raw: bytes | str) -> M:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise InvalidRequest(words(error)) from None


def words(error: ValidationError) -> str:
    """Where and what, without what came: it may be large, or somebody's picture."""
    lines = []
    for one in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        place = ".".join(str(part) for part in one["loc"])
        message = str(one["msg"]).removeprefix("Value error, ")
        lines.append(f"{place}: {message}" if place else message)
    return "; ".join(lines)[:1000]


@dataclass(frozen=True, slots=True)
class Form:
    image: bytes | None
    fields: dict[str, str]


class _InMemory(MultiPartParser):
    """The guard caps a body, so that no file on disk is needed for it."""

    spool_max_size = 2**30


async def read_form(request: Request, *, image_bytes: int) -> Form:
    """A form with the image as `file`; everything else is text."""
    parser = _InMemory(
        request.headers, request.stream(), max_files=1, max_fields=16, max_part_size=2**20
    )
    try:
        return await _fields(await parser.parse(), image_bytes=image_bytes)
    except MultiPartException as error:
        raise InvalidRequest(f"the form is not readable ({error.message})") from error
    except (LookupError, ValueError, AssertionError) as error:
        raise InvalidRequest("the form is not readable") from error
    finally:
        for file in parser._files_to_close_on_error:  # also of parts that were never finished
            file.close()


async def _fields(form: FormData, *, image_bytes: int) -> Form:
    image: bytes | None = None
    fields: dict[str, str] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name != "file":
                raise InvalidRequest(f"expected one file called 'file', got {name!r:.80}")
            image = await value.read(image_bytes + 1)
        elif name in fields:
            raise InvalidRequest(f"the field {name!r:.80} is duplicated; give it once")
        else:
            fields[name] = value
    if image is not None and len(image) > image_bytes:
        raise TooLarge(f"the image has more than {image_bytes:,} bytes")
    return Form(image, fields)


def is_form(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "multipart/form-data"


def from_fields(model: type[M], fields: dict[str, str]) -> M:
    """Form fields are text: `filter` and `payload` hold JSON, the rest is converted."""
    values: dict[str, object] = dict(fields)
    for name in ("filter", "payload"):
        if fields.get(name):
            try:
                values[name] = json.loads(fields[name])
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(f"{name} is not JSON") from error
        else:
            values.pop(name, None)
    values = {name: value for name, value in values.items() if value != ""}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InvalidRequest(words(error)) from None
