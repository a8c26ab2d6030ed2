"""OpenTelemetry: a span for each request, where the extra `otel` has an endpoint.

The environment variables are OpenTelemetry's own: OTEL_EXPORTER_OTLP_ENDPOINT says where spans go,
OTEL_SERVICE_NAME how the service is called (default midspan).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from midspan import __version__
from midspan.errors import MissingDependency

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Tracing:
    """Spans of requests; their parent is the caller's, by the header `traceparent`."""

    def __init__(self, tracer: Tracer, close: Callable[[], None] = lambda: None) -> None:
        self._tracer, self.close = tracer, close

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Tracing | None:
        """None: nobody asked for spans."""
        if not any(environment.get(name) for name in ENDPOINTS):
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingDependency(
                "opentelemetry-sdk", extra="otel", required_for=f"traces ({ENDPOINTS[0]} is set)"
            ) from error
        name = environment.get("OTEL_SERVICE_NAME", "midspan")
        resource = Resource.create({"service.name": name, "service.version": __version__})
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider.get_tracer("midspan.service", __version__), provider.shutdown)

    def begin(self, name: str, headers: Mapping[str, str]) -> Span:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(name, context=extract(headers), kind=SpanKind.SERVER)

    def end(self, span: Span, *, status: int, **attributes: Any) -> None:
        from opentelemetry.trace import Status, StatusCode

        for name, value in attributes.items():
            span.set_attribute(name.replace("__", "."), value)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()
