"""Tells of questions to engines: how long each took, what it used, how it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from mosaic_tasks.observability import figures, names
from mosaic_tasks.observability.current import Current, current
from mosaic_tasks.observability.ids import span_of
from mosaic_tasks.observability.spans import Attribute, Span, plain

log = structlog.get_logger(__name__)

CONTENT_CHARS = 16_384
"""So much of each message is told, where content is."""


class Asked:
    """One question while it is asked.

    Args:
        question: as engines take it (`EngineRequest`, of a room that does not stand below this one).
    """

    def __init__(self, engine: str, question: Any, *, server: str) -> None:
        self.engine, self.question, self.server = engine, question, server
        self.began_ns, self.first_ns = time.time_ns(), 0
        self.answer: Any = None

    def hears(self) -> None:
        """The first piece of the answer came."""
        self.first_ns = time.time_ns()

    def is_answered(self, answer: Any) -> None:
        """It has its answer: with `usage`, `finish_reason` and `text`."""
        self.answer = answer


@contextmanager
def asking(engine: str, question: Any, *, server: str = "") -> Iterator[Asked]:
    """Within, a question is asked; outside of a call nobody is told.

    Args:
        server: URL of what answers, where it is elsewhere.
    """
    asked, call, error = Asked(engine, question, server=server), current(), ""
    try:
        yield asked
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        if call is not None:
            _try_to_tell(call, asked, error)


def _try_to_tell(call: Current, asked: Asked, error: str) -> None:
    try:
        _tell(call, asked, error)
    except Exception as unfit:  # noqa: BLE001 - a lost picture must not lose an answer
        what = "nothing is told of a question to an engine"
        log.warning("requests.lost", what=what, engine=asked.engine, error=type(unfit).__name__)


def _tell(call: Current, asked: Asked, error: str) -> None:
    end_ns, means = time.time_ns(), call.means
    call.requests += 1
    outcome = error or str(asked.answer.finish_reason)
    means.tallies.observe(figures.REQUESTS, (end_ns - asked.began_ns) / 1e9, asked.engine, outcome)
    if asked.first_ns:
        means.tallies.observe(figures.FIRST_TOKENS, (asked.first_ns - asked.began_ns) / 1e9, asked.engine)
    if means.tracer is not None:
        content = _content_of(asked) if means.tracer.tells_content else {}
        means.tracer.emit(_span_of(call, asked, error, content, end_ns=end_ns))


def _span_of(call: Current, asked: Asked, error: str, content: dict[str, Attribute], *, end_ns: int) -> Span:
    attributes = {**_of_question(call, asked), **_of_answer(asked), **content}
    model = asked.question.model or asked.engine
    return Span(
        call.trace,
        span_of(call.run_id, call.call, call.fence, "request", call.requests),
        call.span,
        f"chat {model}",
        asked.began_ns,
        end_ns,
        "client",
        attributes,
        error=error,
    )


def _of_question(call: Current, asked: Asked) -> dict[str, Attribute]:
    question = asked.question
    told: dict[str, Attribute | None] = {
        names.OPERATION: "chat",
        names.PROVIDER: asked.engine,
        names.AGENT: call.node,
        names.REQUEST_MODEL: question.model or asked.engine,
        names.REQUEST_MAX_TOKENS: question.max_tokens,
        names.REQUEST_TEMPERATURE: question.temperature,
        names.REQUEST_TOP_P: question.top_p,
        names.REQUEST_SEED: question.seed,
        names.REQUEST_STOP: list(question.stop) or None,
        names.OUTPUT_TYPE: "json" if question.output_schema is not None else "text",
        **_address(asked.server),
    }
    return {name: value for name, value in told.items() if value is not None}


def _address(server: str) -> dict[str, Attribute | None]:
    """Host and port of a URL, and nothing else of it: it may hold a password."""
    parts = urlsplit(server)
    if not parts.hostname:
        return {}
    return {names.SERVER_ADDRESS: parts.hostname, names.SERVER_PORT: parts.port}


def _of_answer(asked: Asked) -> dict[str, Attribute]:
    told: dict[str, Attribute] = {}
    if asked.first_ns:
        told[names.FIRST_CHUNK_S] = (asked.first_ns - asked.began_ns) / 1e9
    if asked.answer is None:
        return told
    usage = asked.answer.usage
    told |= {
        names.RESPONSE_FINISH_REASONS: [str(asked.answer.finish_reason)],
        names.INPUT_TOKENS: usage.input_tokens,
        names.OUTPUT_TOKENS: usage.output_tokens,
        names.CACHED_TOKENS: usage.cached_tokens,
        names.ESTIMATED: usage.estimated,
    }
    if usage.cost_usd is not None:
        told[names.COST_USD] = usage.cost_usd
    return told


def _content_of(asked: Asked) -> dict[str, Attribute]:
    """Prompt and answer, as the conventions have them: JSON of messages with parts."""
    told: dict[str, Attribute] = {
        names.INPUT_MESSAGES: _messages((each.role, each.content) for each in asked.question.messages)
    }
    if asked.answer is not None:
        told[names.OUTPUT_MESSAGES] = _messages([("assistant", asked.answer.text)])
    return told


def _messages(said: Any) -> str:
    told = ((role, {"type": "text", "content": plain(content, CONTENT_CHARS)}) for role, content in said)
    return msgspec.json.encode([{"role": role, "parts": [part]} for role, part in told]).decode()


__all__ = ["Asked", "asking"]
