"""Ids of traces and spans, what spans tell of errors, and whether a process traces at all."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from made_observers import observer
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export import SpanExportResult
from structlog.testing import capture_logs

from mosaic_queues.errors import ConfigurationError
from mosaic_tasks.engines.protocol import Completion, EngineRequest, Message, Usage
from mosaic_tasks.observability.current import Current, working_on
from mosaic_tasks.observability.ids import is_in_ratio, read_traceparent, span_of, trace_of, traceparent
from mosaic_tasks.observability.origin import origin, requested
from mosaic_tasks.observability.requests import CONTENT_CHARS, asking
from mosaic_tasks.observability.spans import Span, error_type
from mosaic_tasks.observability.tracing import Tracer, open_tracer, ratio_of
from mosaic_tasks.submission import new_run_id

RUN = "01890a5d-ac96-774b-bcce-b302099a8057"


def test_a_trace_is_its_run_and_spans_are_told_apart_by_call_and_claim() -> None:
    assert f"{trace_of(RUN):032x}" == RUN.replace("-", "")
    spans = [
        span_of(RUN),
        span_of(RUN, "0", 1),
        span_of(RUN, "0", 2),
        span_of(RUN, "01"),
        span_of("r", "0", 1),
    ]
    assert len(set(spans)) == len(spans)
    assert span_of(RUN, "0", 1) == span_of(RUN, "0", 1)
    assert all(0 < span < 1 << 64 for span in spans)


def test_a_part_of_the_runs_is_kept_and_all_processes_agree_on_it() -> None:
    traces = [trace_of(new_run_id()) for _ in range(2000)]
    kept = [trace for trace in traces if is_in_ratio(trace, 0.3)]
    assert 0.2 < len(kept) / len(traces) < 0.4
    assert all(is_in_ratio(trace, 0.6) for trace in kept)
    assert all(is_in_ratio(trace, 1.0) for trace in traces)
    assert not any(is_in_ratio(trace, 0.0) for trace in traces)


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("node 'a': ToolError: ValueError: no key 'sk-1' (in f, line 3 of /t.py)", "ValueError"),
        ("node 'a', item 3: ToolError: shop.errors.Sold: it's: gone", "shop.errors.Sold"),
        ("node 'a': CallTimeout: it ran longer than its timeout of 1 s", "CallTimeout"),
        ("node 'a': EngineRefused: the server 'x' answered 401: Bad: key", "EngineRefused"),
        ("it was said so", "error"),
        ("", "error"),
    ],
)
def test_an_error_is_told_by_its_kind_alone(told: str, kind: str) -> None:
    assert error_type(told) == kind


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-0-0-01",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"00-{'X' * 32}-{'1' * 16}-01",
        f"ff-{'1' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01\r\nx: y",
        "0" * 1_000_000,
    ],
)
def test_what_is_no_traceparent_is_no_origin(header: str) -> None:
    assert read_traceparent(header) is None
    token = requested.set(header)
    try:
        assert origin() == ""
    finally:
        requested.reset(token)


def test_a_traceparent_is_read_as_it_is_written() -> None:
    assert read_traceparent(traceparent(7, 9, 1)) == (7, 9, 1)


@pytest.mark.parametrize(
    ("wanted", "environ"),
    [
        (None, {}),
        (False, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}),
        (True, {"OTEL_SDK_DISABLED": "true"}),
    ],
)
def test_a_process_does_not_trace_unless_it_is_to(wanted: bool | None, environ: dict[str, str]) -> None:
    assert open_tracer(wanted, environ) is None


def test_what_is_missing_is_told_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'mosaic-tasks\[tracing\]'"):
        open_tracer(True, {})
    assert open_tracer(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}) is None


@pytest.mark.parametrize(
    ("sampler", "argument", "ratio"),
    [
        ("", "", 1.0),
        ("always_off", "", 0.0),
        ("parentbased_traceidratio", "0.25", 0.25),
        ("parentbased_always_on", "", 1),
    ],
)
def test_the_standard_s_sampler_says_which_part_is_kept(sampler: str, argument: str, ratio: float) -> None:
    environ = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert ratio_of(environ) == ratio


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_SAMPLER": "jaeger_remote"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "much"},
    ],
)
def test_a_sampler_that_is_unknown_is_told(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="OTEL_TRACES_SAMPLER"):
        ratio_of(environ)


def test_the_kind_of_an_error_of_any_length_is_found_at_once() -> None:
    assert error_type("Error: " * 1_000_000) == "Error"


# -- what a collector is sent ------------------------------------------------------------------------------------------


class Collector:
    """In the place of an exporter: takes spans once it is let, as the protocol would."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.fails, self.may, self.asked = False, threading.Event(), threading.Event()
        self.may.set()

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        self.asked.set()
        self.may.wait()
        encode_spans(spans)
        self.spans += spans
        return SpanExportResult.FAILURE if self.fails else SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is open."""


QUESTION = EngineRequest((Message("user", "?"),), "m")


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> Iterator[Tracer]:
    """One with a short queue, that sends to the collector."""
    monkeypatch.setattr(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter.OTLPSpanExporter", lambda **_: collector
    )
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    made = Tracer()
    yield made
    collector.may.set()
    made.close()


def span(number: int = 1, **attributes: Any) -> Span:
    return Span(trace_of(RUN), number, None, "asks", 1, 2, attributes=attributes)


def test_a_value_that_the_protocol_cannot_hold_loses_no_other_span(
    tracer: Tracer, collector: Collector
) -> None:
    hostile = {"text": "a\udc80", "many": ["b\udc80"], "seed": 1 << 70, "long": "x" * 10_000_000}
    tracer.emit(span(1, **hostile))
    tracer.emit(span(2, plain="y"))
    tracer.close()
    first, second = sorted(collector.spans, key=lambda each: each.context.span_id)
    assert (first.attributes["text"], first.attributes["seed"]) == ("a?", str(1 << 70))
    assert len(first.attributes["long"]) == 100_000
    assert second.attributes["plain"] == "y"
    assert tracer.take_lost() == 0


def test_what_does_not_fit_into_the_queue_is_counted_and_keeps_nobody_waiting(
    tracer: Tracer, collector: Collector
) -> None:
    collector.may.clear()
    for number in range(2):
        tracer.emit(span(number + 1))
    collector.asked.wait(30)  # it holds two spans
    for number in range(20):
        tracer.emit(span(number + 3))
    assert tracer.take_lost() == 12
    collector.may.set()
    tracer.close()
    assert len(collector.spans) == 10


def test_what_the_collector_refuses_is_counted(tracer: Tracer, collector: Collector) -> None:
    collector.fails = True
    tracer.emit(span())
    tracer.close()
    assert (tracer.take_lost(), tracer.take_lost()) == (1, 0)


class _Elsewhere(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(307)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_words: Any) -> None: ...


def test_spans_that_a_collector_sends_elsewhere_are_lost_counted_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server, capture_logs() as lines:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        tracer = Tracer()
        for number in range(3):
            tracer.emit(span(number + 1))
        tracer.close()
        server.shutdown()
        thread.join()
    assert _Elsewhere.asked == ["/v1/traces"] * 3
    assert tracer.take_lost() == 3
    (told,) = [line for line in lines if line["event"] == "tracing.redirected"]
    assert (told["status"], told["log_level"]) == (307, "warning")


@pytest.mark.parametrize("server", ["http://[::1", "http://host:99999/v1", "http://host:x/"])
def test_a_question_is_answered_though_it_cannot_be_told(server: str, tracer: Tracer) -> None:
    call = Current(observer(tracer=tracer).means, RUN, node="a", call="0", fence=1, number=1)
    with (
        working_on(call),
        asking("openai", QUESTION, server=server) as asked,
    ):
        asked.is_answered(Completion("Yes.", Usage(1, 1), "stop"))


def test_messages_are_told_shortened_and_as_utf_8(tracer: Tracer, collector: Collector) -> None:
    tracer.tells_content = True
    call = Current(observer(tracer=tracer).means, RUN, node="a", call="0", fence=1, number=1)
    question = EngineRequest((Message("user", "q" * 1_000_000),), "m")
    with working_on(call), asking("openai", question) as asked:
        asked.is_answered(Completion("Yes \ud83d.", Usage(1, 1), "stop"))
    tracer.close()
    (told,) = collector.spans
    (message,) = json.loads(told.attributes["gen_ai.input.messages"])
    assert len(message["parts"][0]["content"]) == CONTENT_CHARS
    assert "Yes ?." in told.attributes["gen_ai.output.messages"]
