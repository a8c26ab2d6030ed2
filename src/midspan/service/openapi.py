"""The OpenAPI document: bodies are read by us, so their schemas are written in by us."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from midspan import __version__, wire
from midspan.service.routes import TABLE, Route
from midspan.wire import ErrorAnswer, Job

REF = "#/components/schemas/{model}"
DESCRIPTION = (
    "Visual search over a midspan gallery, and the upgrade of its encoder. Errors have one shape: "
    '{"error": {"type", "message", "request_id"}}.'
)
TAGS = {
    "search": "Nearest items to an image, a vector, a stored item or a text.",
    "items": "What the gallery holds: read, write, count, export.",
    "gallery": "The gallery as a whole, its audit log and events.",
    "galleries": "Those of this service. Every path /v1/… is of the default one; the same below "
    "/v1/galleries/NAME/… is of the one with this name, and /v1/galleries/NAME is its /v1/gallery.",
    "upgrade": "From one encoder to the next. Long steps answer 202 with a job.",
    "jobs": "Steps that take long: progress, result, error, cancel.",
    "service": "Health, metrics, and the page.",
}
STATUSES = {
    "400": "the request cannot be read",
    "401": "no token, or not one of this service's",
    "403": "the role, host or origin does not allow it",
    "404": "there is no such thing",
    "408": "the body took too long to arrive",
    "409": "the gallery's state or the service's set-up does not allow it",
    "413": "too large",
    "415": "another content type is expected",
    "422": "a field or an image that cannot be used",
    "503": "overloaded, or the store is busy: try again after Retry-After",
}


def plain_document() -> dict[str, Any]:
    """The document without a service: for the reference on the docs site."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    add_routes(app)
    return describe(app)


def add_routes(app: FastAPI) -> None:
    """Every route of the table, with the names that the document gives it."""
    for route in TABLE:
        app.add_api_route(
            route.path,
            route.handler,
            methods=[route.method],
            response_model=None,
            name=f"{route.method} {route.path}",
            operation_id=route.name,
            tags=[route.tag],
            summary=(route.handler.__doc__ or route.handler.__name__).strip().splitlines()[0],
        )


def describe(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title="midspan",
        version=__version__,
        description=DESCRIPTION,
        routes=app.routes,
        tags=[{"name": name, "description": words} for name, words in TAGS.items()],
    )
    document["components"] = {
        "schemas": _schemas(),
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    for route in TABLE:
        path = route.path.replace(":path}", "}")
        operation = document["paths"][path][route.method.lower()]
        operation["responses"] = _responses(route, query="parameters" in operation)
        if (content := _request(route)) is not None:
            operation["requestBody"] = {"content": content, "required": route.form is not None}
        if route.role != "open":
            operation["security"] = [{"token": []}]
            operation["x-role"] = route.role
    return document


def _schemas() -> dict[str, Any]:
    """Of every body that comes or goes, by the name of its class."""
    taken = {route.takes for route in TABLE if route.takes is not None}
    given = {one for route in TABLE for one in _answers(route)} | {ErrorAnswer, Job}
    kinds: list[Any] = sorted({*taken, *given}, key=lambda kind: kind.__name__)
    inputs: Any = [
        (kind.__name__, "validation" if kind in taken else "serialization", TypeAdapter(kind))
        for kind in kinds
    ]
    _, definitions = TypeAdapter.json_schemas(inputs, ref_template=REF)
    schemas: dict[str, Any] = definitions.get("$defs", {})
    for kind in vars(wire).values():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            _rename(schemas, kind)
    return schemas


def _rename(schemas: dict[str, Any], kind: type[Any]) -> None:
    """Fields that have another name in Python than in JSON."""
    names = {
        one.name: one.metadata["wire"] for one in dataclasses.fields(kind) if "wire" in one.metadata
    }
    schema = schemas.get(kind.__name__)
    if schema is None or not names:
        return
    schema["properties"] = {names.get(one, one): it for one, it in schema["properties"].items()}
    schema["required"] = [names.get(one, one) for one in schema.get("required", ())]


def _answers(route: Route) -> list[Any]:
    gives = route.gives if isinstance(route.gives, tuple) else (route.gives,)
    return [one for one in gives if isinstance(one, type)]


def _ref(kind: Any) -> dict[str, str]:
    return {"$ref": REF.format(model=kind.__name__)}


def _request(route: Route) -> dict[str, Any] | None:
    content: dict[str, Any] = {}
    if route.takes is not None:
        content["application/json"] = {"schema": _ref(route.takes)}
    if route.form is not None:
        fields = route.form.model_json_schema()["properties"]
        file = {"type": "string", "format": "binary"}
        content["multipart/form-data"] = {
            "schema": {
                "type": "object",
                "properties": {"file": file, **fields},
                "required": ["file"],
            }
        }
    return content or None


def _responses(route: Route, *, query: bool) -> dict[str, Any]:
    if isinstance(route.gives, str):
        kinds = ["image/png", "image/jpeg"] if route.gives == "image/png" else [route.gives]
        good: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in kinds}
    elif isinstance(route.gives, tuple):
        good = {"application/json": {"schema": {"anyOf": [_ref(one) for one in route.gives]}}}
    else:
        good = {"application/json": {"schema": _ref(route.gives)}}
    error = {"application/json": {"schema": _ref(ErrorAnswer)}}
    bad = {
        status: {"description": STATUSES[status], "content": error}
        for status in _errors(route, query=query)
    }
    answers = {"200": {"description": "as asked", "content": good}, **bad}
    if route.job:
        job = {"application/json": {"schema": _ref(Job)}}
        answers["202"] = {"description": "it continues as a job", "content": job}
    return answers


def _errors(route: Route, *, query: bool) -> list[str]:
    """The statuses that this route can answer with, besides its own."""
    statuses = {"400", "403"}
    if route.role != "open":
        statuses |= {"401", "503"}
    if "{" in route.path:
        statuses.add("404")
    if query:
        statuses.add("422")
    if route.takes is not None or route.form is not None:
        statuses |= {"404", "408", "409", "413", "415", "422"}
    return sorted(statuses)
