"""Ids of traces and spans, what spans tell of errors, and whether a process traces at all."""

from __future__ import annotations

import sys

import pytest

from mosaic_queues.errors import ConfigurationError
from mosaic_tasks.observability.ids import is_in_ratio, read_traceparent, span_of, trace_of, traceparent
from mosaic_tasks.observability.origin import origin, requested
from mosaic_tasks.observability.spans import error_type
from mosaic_tasks.observability.tracing import open_tracer, ratio_of
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
