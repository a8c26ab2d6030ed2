from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midspan.service.app import create_app
from midspan.service.auth import Tokens
from midspan.service.tracing import Tracing
from tests.service.shop import LOCAL, Shop, make_gallery, name, open_service

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_each_request_is_a_span_with_its_id_and_its_callers_trace(
    shop: Shop, tmp_path: Path
) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider: Any = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    service = open_service(shop, make_gallery(shop, tmp_path / "shop.midspan"))
    app = create_app(service, tokens=Tokens({}), tracing=Tracing(provider.get_tracer("test")))
    with TestClient(app, base_url=LOCAL) as client:
        headers = {"traceparent": PARENT, "X-Request-ID": "abc"}
        assert client.get(f"/v1/items/{name(3)}", headers=headers).status_code == 200
        assert client.post("/v1/search/item", json={"id": "no such"}).status_code == 404
    first, second = list[Any](kept.get_finished_spans())
    assert first.name == "GET /v1/items/{id:path}"
    assert first.attributes["midspan.request_id"] == "abc"
    assert first.attributes["http.response.status_code"] == 200
    assert f"{first.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{first.parent.span_id:016x}" == PARENT.split("-")[2]
    assert (second.name, second.attributes["http.response.status_code"]) == (
        "POST /v1/search/item",
        404,
    )
    assert second.parent is None


def test_without_an_endpoint_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Tracing.from_environment({}) is None
    made = Tracing.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    assert made is not None
    made.close()
