"""Whether this process traces, and where its spans go: to a collector, in batches, from a thread of their own.

What OpenTelemetry has variables for is set by them: endpoint, headers, certificates, batches, the service's name and
the sampler. The library is loaded only where it is on.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from mosaic_queues.errors import ConfigurationError
from mosaic_tasks.observability.ids import is_in_ratio
from mosaic_tasks.observability.spans import Attribute, Span, plain

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from requests import Response, Session

log = structlog.get_logger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SAMPLER, SAMPLER_ARG = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The variable by which prompts and answers are told, too."""
_PROVIDERS = tuple(f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{kind}CREDENTIAL_PROVIDER" for kind in ("", "TRACES_"))
"""The variables that name what knows a password for the collector."""
QUEUE_SIZE = "OTEL_BSP_MAX_QUEUE_SIZE"
_QUEUED = 2048
"""So many spans wait at most to be sent, unless that variable says another number."""
_MOST_CHARS = 100_000
_MOST_INT = (1 << 63) - 1
LAST_S = 2.0
"""A process that ends waits so long for its last spans to be sent."""
_ELSEWHERE = (
    f"the collector sends spans elsewhere, so they are lost; name where it leads to in {ENDPOINTS[0]}"
)
_SCOPE = "mosaic_tasks"
_INSTALL = "pip install 'mosaic-tasks[tracing]'"


class Tracer:
    """Sends the spans of this process. Nothing that is called here waits for the collector; what does not fit into the
    queue of its batches is dropped, logged and counted, as is what the collector does not take.

    Args:
        ratio: this part of all runs is traced.
        tells_content: prompts and answers are told, too.
    """

    def __init__(self, *, ratio: float = 1.0, tells_content: bool = False) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._ratio, self.tells_content = ratio, tells_content
        service = os.environ.get("OTEL_SERVICE_NAME") or _SCOPE
        self._resource = Resource.create({"service.name": service, "process.pid": os.getpid()})
        self._scope = InstrumentationScope(_SCOPE)
        self._sending = _Sending(OTLPSpanExporter(session=_session()), most=_queue_size())
        exporter: Any = self._sending  # it has what is needed of one
        self._batches = BatchSpanProcessor(exporter, max_queue_size=self._sending.most)
        atexit.register(self.close)

    def is_kept(self, trace: int) -> bool:
        """Whether spans of this trace are sent."""
        return is_in_ratio(trace, self._ratio)

    def emit(self, span: Span) -> None:
        """Sends a span, with others, soon."""
        if not self.is_kept(span.trace):
            return
        try:
            readable = self._readable(span)
            self._sending.comes()
            self._batches.on_end(readable)
        except Exception as error:  # noqa: BLE001 - a lost picture must not lose a result
            log.warning("tracing.lost", what="a span is lost", span=span.name, error=type(error).__name__)

    def take_lost(self) -> int:
        """How many spans were lost since the last time."""
        return self._sending.take_lost()

    def close(self) -> None:
        """Sends what is left, unless that takes long: then it is left behind."""
        atexit.unregister(self.close)
        thread = threading.Thread(target=self._batches.shutdown, name="otel-last", daemon=True)
        thread.start()
        thread.join(LAST_S)

    def _readable(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

        from mosaic_tasks.observability import names

        def context(trace: int, identity: int) -> SpanContext:
            return SpanContext(trace, identity, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        attributes = {name: _sendable(value) for name, value in span.attributes.items()}
        raised = list[Event]()
        status = Status(StatusCode.UNSET)
        if span.error:
            attributes[names.ERROR_TYPE] = span.error
            raised = [Event("exception", {names.EXCEPTION_TYPE: span.error}, span.end_ns)]
            status = Status(StatusCode.ERROR, span.error)
        return ReadableSpan(
            plain(span.name, _MOST_CHARS),
            context(span.trace, span.id),
            context(span.trace, span.parent) if span.parent is not None else None,
            self._resource,
            attributes,
            raised,
            [Link(context(*link)) for link in span.links],
            SpanKind[span.kind.upper()],
            status=status,
            start_time=span.start_ns,
            end_time=max(span.end_ns, span.start_ns),
            instrumentation_scope=self._scope,
        )


def _session() -> Session | None:
    """One that takes no redirect for an answer: OpenTelemetry goes nowhere else, and counts what it sent as taken."""
    from requests import RequestException, Session

    if any(os.environ.get(name) for name in _PROVIDERS):
        return None  # it brings its own
    told = False

    def refuse(answer: Response, **_options: Any) -> None:
        nonlocal told
        if not 300 <= answer.status_code < 400:
            return
        answer.close()
        if not told:
            log.warning("tracing.redirected", what=_ELSEWHERE, status=answer.status_code)
        told = True
        raise RequestException(f"redirected with status {answer.status_code}")

    session = Session()
    session.hooks["response"].append(refuse)
    return session


class _Sending:
    """An exporter, which counts what is lost: what it fails to send, and what does not fit into the queue before it.

    Args:
        most: spans in the queue.
    """

    def __init__(self, exporter: Any, *, most: int) -> None:
        self._exporter, self.most = exporter, most
        self._waiting = self._lost = 0
        self._lock = threading.Lock()

    def comes(self) -> None:
        """A span is added to the queue; the oldest goes where that is full."""
        with self._lock:
            is_full = self._waiting >= self.most
            self._waiting += not is_full
            self._lost += is_full

    def export(self, spans: Sequence[ReadableSpan]) -> Any:
        """Sends these, which were in the queue."""
        result = None
        with self._lock:
            self._waiting -= len(spans)
        try:
            result = self._exporter.export(spans)
        finally:
            if result is None or result.name != "SUCCESS":
                with self._lock:
                    self._lost += len(spans)
        return result

    def shutdown(self) -> None:
        """Sends nothing more."""
        self._exporter.shutdown()

    def take_lost(self) -> int:
        """How many since the last time."""
        with self._lock:
            lost, self._lost = self._lost, 0
        return lost


def _queue_size() -> int:
    given = os.environ.get(QUEUE_SIZE, "")
    return int(given) if given.isdecimal() and int(given) else _QUEUED


def _sendable(value: Attribute) -> Attribute:
    """A value as the protocol can hold it: one that it cannot would take the whole batch with it."""
    if isinstance(value, str):
        return plain(value, _MOST_CHARS)
    if isinstance(value, Sequence):
        return [plain(part, _MOST_CHARS) for part in value]
    return value if abs(value) <= _MOST_INT else str(value)


def open_tracer(wanted: bool | None, environ: Mapping[str, str] = os.environ) -> Tracer | None:
    """The tracer of this process; None: it does not trace.

    Args:
        wanted: whether it is to; None: where OpenTelemetry's variables name an endpoint.

    Raises:
        ConfigurationError: it is wanted, and OpenTelemetry is not installed; or the sampler is none that is known.
    """
    is_named = any(environ.get(name) for name in ENDPOINTS)
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not (is_named if wanted is None else wanted):
        return None
    try:
        return Tracer(ratio=ratio_of(environ), tells_content=environ.get(CONTENT, "").lower() == "true")
    except ImportError as error:
        if wanted:
            raise ConfigurationError(
                f"MOSAIC_TRACING is set and OpenTelemetry is not installed: {_INSTALL}"
            ) from error
        log.warning("tracing.missing", what=f"an endpoint for traces is named, install first: {_INSTALL}")
        return None


def ratio_of(environ: Mapping[str, str]) -> float:
    """Which part of all traces is kept, as OpenTelemetry's variables say.

    Raises:
        ConfigurationError: they say nothing that is known.
    """
    sampler = environ.get(SAMPLER, "").removeprefix("parentbased_")
    if sampler in ("", "always_on"):
        return 1.0
    if sampler == "always_off":
        return 0.0
    given = environ.get(SAMPLER_ARG, "1")
    if sampler != "traceidratio":
        raise ConfigurationError(f"{SAMPLER}={environ[SAMPLER]!r} is unknown; use always_on or traceidratio")
    try:
        ratio = float(given)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigurationError(f"{SAMPLER_ARG}={given!r} is no ratio; use a number from 0 to 1")
    return ratio


__all__ = ["CONTENT", "Tracer", "open_tracer", "ratio_of"]
