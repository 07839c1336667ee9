"""A collector of OpenTelemetry: it takes spans by OTLP over HTTP, and decodes them as the protocol says."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Taken(NamedTuple):
    """A span, as a collector has taken it."""

    router: str
    """The `service.instance.id` of its resource."""
    span: Span
    schema: str

    @property
    def attributes(self) -> dict[str, Any]:
        """Its attributes."""
        return values(self.span.attributes)

    @property
    def trace(self) -> str:
        """Its trace-id."""
        return self.span.trace_id.hex()

    @property
    def parent(self) -> str:
        """The id of its parent."""
        return self.span.parent_span_id.hex()

    @property
    def events(self) -> list[str]:
        """The names of its events."""
        return [each.name for each in self.span.events]


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes as a map."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Collector:
    """A collector in threads of its own, from `with` to its end."""

    def __init__(self, *, status: int = 200, hangs: bool = False) -> None:
        """Args: status: of each answer. hangs: it gives none before its end."""
        self.requests = 0
        self.paths: set[str] = set()
        self.resources: list[dict[str, Any]] = []
        self._spans: list[Taken] = []
        self._over = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.requests += 1
                collector.paths.add(self.path)
                if hangs:
                    collector._over.wait()
                if status == 200:
                    collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def spans(self) -> list[Taken]:
        """All spans, in the order in which they began."""
        return sorted(self._spans, key=lambda each: each.span.start_time_unix_nano)

    def _take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            named = values(resource.resource.attributes)
            self.resources.append(named)
            for scope in resource.scope_spans:
                self._spans += [Taken(named["service.instance.id"], span, scope.schema_url) for span in scope.spans]
