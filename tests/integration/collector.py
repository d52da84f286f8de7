"""A real collector of OpenTelemetry: takes traces over HTTP as protobuf, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 30.0


class Seen(NamedTuple):
    """A span as it came."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    events: list[tuple[str, dict[str, Any]]]
    is_error: bool
    status: str
    service: str
    pid: int


class Collector:
    """What came so far."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.raw = b""
        self.url = ""
        self._came = threading.Condition()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        with self._came:
            self.raw += body
            for resource in request.resource_spans:
                told = _values(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += [_seen(span, told) for span in scope.spans]
            self._came.notify_all()

    def await_that(self, holds: Callable[[list[Seen]], object]) -> list[Seen]:
        """All spans, once something holds of them."""
        with self._came:
            if not self._came.wait_for(lambda: holds(self.spans), WAIT_S):
                told = [(span.name, span.attributes) for span in self.spans]
                pytest.fail(f"it did not come; these did: {told}", pytrace=False)
            return list(self.spans)

    def await_run(self, run_id: str, *, calls: int = 0) -> list[Seen]:
        """The spans of a run, once its root is there and as many calls."""
        trace = run_id.replace("-", "")

        def whole(spans: list[Seen]) -> bool:
            own = [span for span in spans if span.trace == trace]
            ended = any(not span.parent for span in own)
            return ended and sum(span.name.startswith("call ") for span in own) >= calls

        return [span for span in self.await_that(whole) if span.trace == trace]


def _seen(span: Any, resource: dict[str, Any]) -> Seen:
    return Seen(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        [(event.name, _values(event.attributes)) for event in span.events],
        span.status.code == 2,
        span.status.message,
        resource["service.name"],
        resource["process.pid"],
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a port of its own, until the end."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
