"""schemathesis over the OpenAPI document: requests of allowed and other shapes, never a 5xx."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
import schemathesis
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from midspan.service.app import create_app
from midspan.service.auth import Tokens
from midspan.service.openapi import plain_document
from midspan.service.routes import TABLE
from midspan.service.settings import ServerSettings
from tests.service.shop import QUICK, Shop, close, make_gallery, open_service

EXAMPLES = int(
    os.environ.get("SCHEMA_EXAMPLES", "4")
)  # of each operation, each of the right and of a wrong shape
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]  # what the document promises of the answer
BOUNDED = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(scope="module")
def api(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    place = make_gallery(shop, tmp_path_factory.mktemp("schema") / "shop.midspan", count=12)
    service = open_service(shop, place, limits=replace(QUICK, waiting=1000))
    app = create_app(service, tokens=Tokens({}), server=ServerSettings(hosts=("testserver",)))
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
    close(service)


def test_openapi_document_is_valid() -> None:
    document = plain_document()
    validate(document)
    ids = [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
    ]
    assert len(set(ids)) == len(ids) == len(TABLE)


@pytest.mark.slow
def test_generated_requests_cause_no_server_error(api: Any) -> None:
    answered: dict[str, int] = {}
    for result in api.get_all_operations():
        operation = result.ok()
        if operation.path == "/v1/events":  # it never ends
            continue
        strategy = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
        if operation.method.lower() != "get" or operation.query:
            strategy |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

        @BOUNDED
        @hypothesis.given(case=strategy)
        def ask(case: Any) -> None:
            answer = case.call()
            label = f"{case.method} {case.path}"
            assert answer.status_code < 500, (label, case.body, answer.text)
            case.validate_response(answer, checks=CHECKS)
            answered[label] = answered.get(label, 0) + 1

        ask()
    assert len(answered) == len(TABLE) - 1  # without the events
    assert min(answered.values()) >= 1
    assert sum(answered.values()) > 60
