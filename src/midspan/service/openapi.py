"""The OpenAPI document: bodies are read by us, so their schemas are written in by us."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from midspan import __version__
from midspan.service.models import ErrorAnswer
from midspan.service.routes import TABLE, Route

REF = "#/components/schemas/{model}"
DESCRIPTION = (
    "Visual search over a midspan gallery, and the upgrade of its encoder. Errors have one shape: "
    '{"error": {"type", "message", "request_id"}}.'
)
STATUSES = {
    "400": "the request cannot be read",
    "401": "no token, or not one of this service's",
    "403": "another role, host or origin is wanted",
    "404": "there is no such thing",
    "409": "the gallery's state or the service's set-up does not allow it",
    "413": "too large",
    "415": "another content type is wanted",
    "422": "a field or an image that cannot be used",
    "503": "overloaded, or the store is busy: try again after Retry-After",
}


def describe(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title="midspan", version=__version__, description=DESCRIPTION, routes=app.routes
    )
    models = {model for route in TABLE for model in _models(route)} | {ErrorAnswer}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, found = models_json_schema([(model, _mode(model)) for model in ordered], ref_template=REF)
    document["components"] = {
        "schemas": found.get("$defs", {}),
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    for route in TABLE:
        path = route.path.replace(":path}", "}")
        operation = document["paths"][path][route.method.lower()]
        operation["responses"] = _responses(route)
        if (content := _request(route)) is not None:
            operation["requestBody"] = {"content": content, "required": route.form is not None}
        if route.role != "open":
            operation["security"] = [{"token": []}]
            operation["x-role"] = route.role
    return document


def _models(route: Route) -> list[type[BaseModel]]:
    gives = route.gives if isinstance(route.gives, tuple) else (route.gives,)
    return [model for model in (*gives, route.takes) if isinstance(model, type)]


def _mode(model: type[BaseModel]) -> Any:
    taken = {route.takes for route in TABLE}
    return "validation" if model in taken else "serialization"


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.__name__)}


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


def _responses(route: Route) -> dict[str, Any]:
    if isinstance(route.gives, str):
        kinds = ["image/png", "image/jpeg"] if route.gives == "image/png" else [route.gives]
        good: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in kinds}
    elif isinstance(route.gives, tuple):
        good = {"application/json": {"schema": {"anyOf": [_ref(model) for model in route.gives]}}}
    else:
        good = {"application/json": {"schema": _ref(route.gives)}}
    bad = {
        status: {
            "description": words,
            "content": {"application/json": {"schema": _ref(ErrorAnswer)}},
        }
        for status, words in STATUSES.items()
    }
    answers = {"200": {"description": "as asked", "content": good}, **bad}
    if route.path.startswith("/v1/upgrade/") and route.method == "POST":
        answers["202"] = {"description": "it goes on in the background", "content": good}
    return answers
