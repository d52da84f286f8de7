"""Any server that speaks the OpenAI chat completions API, through the official client.

The client itself never retries. Here an attempt is repeated, after a pause with full jitter or as long as the
server asks for, until text comes; once text came, an error ends the stream. An event that is no JSON, no UTF-8 or half
a character is such an error: nothing is replaced. What a server does not understand (`response_format`,
`max_tokens`, `stream_options`) is learnt from its refusal, once per model.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
import openai

from mosaic_queues.errors import (
    CallTimeout,
    ConfigurationError,
    ContextTooLong,
    EngineError,
    EngineOverloaded,
    EngineRefused,
)
from mosaic_tasks.engines.prices import load_prices
from mosaic_tasks.engines.protocol import (
    EngineRequest,
    Events,
    Finished,
    FinishReason,
    TextDelta,
    Usage,
    approx_usage,
)

_T = TypeVar("_T")

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_NO_KEY = "no-key"

_OVERLOADED = frozenset({429, 503, 529})
_PASSING = frozenset({408, 409, 425})
_OUT_OF_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_TOO_LONG = re.compile(
    r"context[ _](length|window)|(prompt|input) is too long|too many (input )?tokens", re.IGNORECASE
)
_KEYS = re.compile(r"\b[sp]k-[\w*.-]{6,}|(?<=Bearer )\S+", re.IGNORECASE)
_SHOWN = 300

_FINISHED: dict[str, FinishReason] = {"length": "length", "content_filter": "refused"}

_NOT_STRICT = {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"} | {
    "patternProperties",
    "propertyNames",
    "prefixItems",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "default",
}


class RetryPolicy(msgspec.Struct, frozen=True):
    """Attempts before the first token, and the pause between them.

    The pause is drawn from 0 to `base_s * 2**(attempt - 1)`, at most `max_s` ("full jitter"). A server that
    asks for a pause gets that on top; one that asks for more than `longest_s` gets no other attempt.
    """

    attempts: int = 4
    base_s: float = 0.5
    max_s: float = 8.0
    longest_s: float = 60.0


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds to wait for a connection, and for the next byte on it."""

    connect_s: float = 5.0
    read_s: float = 120.0


class _Dialect(msgspec.Struct, frozen=True):
    """What a server understands."""

    output: Literal["json_schema", "json_object", "prompt"] = "json_schema"
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    tells_usage: bool = True


class _Ended(msgspec.Struct):
    """What the chunks of a stream said about its end."""

    reason: FinishReason | None = None
    usage: tuple[int, int] | None = None
    refusal: str = ""


class OpenAIEngine:
    """The engine `openai:<model>`.

    Args:
        base_url: default: `OPENAI_BASE_URL`, else OpenAI's own.
        api_key: default: `OPENAI_API_KEY`; not needed for a server on this machine.
        retry: how often, and with which pauses.
        timeouts: for connection and bytes; the whole answer's is in the request.

    Raises:
        EngineRefused: no key.
        ConfigurationError: the URL is none, or the table of prices cannot be read.
    """

    name = "openai"

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._url = base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
        self._server = _server(self._url)
        self._retry = retry or RetryPolicy()
        self._timeouts = timeouts or Timeouts()
        self._key = api_key or os.environ.get("OPENAI_API_KEY") or _key_for(self._url)
        self._prices = load_prices(self._url)
        self._client = _client(self._url, self._key, self._timeouts)
        self._dialects: dict[str, _Dialect] = {}

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def stream(self, request: EngineRequest) -> Events:
        """The answer as it comes: see `Engine.stream`.

        Raises:
            EngineRefused: bad key, unknown model, bad request, no money, or the model declined.
            EngineOverloaded: the server asks for patience, also after all attempts.
            ContextTooLong: the messages do not fit the model.
            EngineError: no connection, a broken stream, an error inside the server.
            CallTimeout: `request.timeout_s` passed.
        """
        deadline = math.inf if request.timeout_s is None else _now() + request.timeout_s
        attempt = 1
        while True:
            started = False
            try:
                async with aclosing(self._attempt(request, deadline)) as events:
                    async for event in events:
                        started = True
                        yield event
                return
            except openai.OpenAIError as error:
                failure = error
            # Outside of the handler, so that no traceback shows the client's error: servers repeat keys.
            if not started and self._learnt(request, failure):
                continue
            await self._pause(failure, attempt, request, deadline=deadline, started=started)
            attempt += 1

    async def _attempt(self, request: EngineRequest, deadline: float) -> Events:
        ended = _Ended()
        pieces: list[str] = []
        half = ""
        async with aclosing(self._chunks(request, deadline)) as chunks:
            async for chunk in chunks:
                text, half = _whole(half + _read(chunk, ended))
                if text:
                    pieces.append(text)
                    yield TextDelta(text)
        if ended.refusal:
            raise EngineRefused(f"the model {request.model!r} declined: {self._shown(ended.refusal)}")
        if ended.reason is None or half:
            raise _BrokenStream("ended before the answer was complete")
        yield Finished(ended.reason, self._usage(request, ended, "".join(pieces)))

    async def _chunks(self, request: EngineRequest, deadline: float) -> AsyncGenerator[Any, None]:
        create = self._client.chat.completions.create(**_arguments(request, self._dialect(request)))
        stream = await _within(create, deadline, request)
        try:
            while (chunk := await _within(_next(stream), deadline, request)) is not None:
                yield chunk
        finally:
            await stream.close()

    def _usage(self, request: EngineRequest, ended: _Ended, answer: str) -> Usage:
        if ended.usage is None:
            return approx_usage(request, answer)
        read, written = ended.usage
        cost = self._prices.cost_usd(request.model, input_tokens=read, output_tokens=written)
        return Usage(read, written, cost)

    def _dialect(self, request: EngineRequest) -> _Dialect:
        return self._dialects.get(request.model, _Dialect())

    def _learnt(self, request: EngineRequest, error: openai.OpenAIError) -> bool:
        """Whether `error` is about something that the server does not understand; it is left out then."""
        if not isinstance(error, openai.APIStatusError) or error.status_code not in (400, 422):
            return False
        spoken = self._dialect(request)
        simpler = _simpler(spoken, request, f"{error.param or ''} {_said(error)}")
        if simpler == spoken:
            return False
        self._dialects[request.model] = simpler
        return True

    async def _pause(
        self,
        error: openai.OpenAIError,
        attempt: int,
        request: EngineRequest,
        *,
        deadline: float,
        started: bool,
    ) -> None:
        """Waits for the next attempt, or raises what `error` means."""
        failure = self._meaning(error, request)
        if started or not failure.retryable or attempt >= self._retry.attempts:
            raise failure
        asked_s = _retry_after_s(error)
        if asked_s is not None and asked_s > self._retry.longest_s:
            raise type(failure)(f"{failure}; it asks to wait {asked_s:.0f} s, try again then")
        pause_s = _jittered_s(self._retry, attempt, asked_s)
        if _now() + pause_s >= deadline:
            raise CallTimeout(f"no time for another attempt within {request.timeout_s:g} s: {failure}")
        await asyncio.sleep(pause_s)

    def _meaning(self, error: openai.OpenAIError, request: EngineRequest) -> EngineError:
        """The project's error for the client's."""
        where = f"the server {self._server!r}"
        match error:
            case openai.APIStatusError():
                return self._refusal(error, request)
            case openai.APITimeoutError():
                return EngineError(
                    f"{where} sent nothing within {self._timeouts.read_s:g} s "
                    f"(or no connection within {self._timeouts.connect_s:g} s)"
                )
            case openai.APIConnectionError():
                cause = self._shown(str(error.__cause__ or error))
                return EngineError(f"the connection to {where} failed: {cause}; is it running?")
            case _BrokenStream():
                return EngineError(f"the stream of {where} {error}; is it an OpenAI-compatible API?")
            case openai.APIError():
                return self._error_event(error, request)
        return EngineError(f"{where} could not be used: {self._shown(str(error))}")

    def _refusal(self, error: openai.APIStatusError, request: EngineRequest) -> EngineError:
        said = self._shown(_said(error))
        told = f"the server {self._server!r} answered {error.status_code} for model {request.model!r}: {said}"
        status = error.status_code
        if error.code in _OUT_OF_MONEY:
            return EngineRefused(f"{told}; the account has no money left")
        if status in _OVERLOADED:
            return EngineOverloaded(told)
        if status >= 500 or status in _PASSING:
            return EngineError(told)
        if error.code == "context_length_exceeded" or _TOO_LONG.search(_said(error)):
            return ContextTooLong(f"{told}; shorten the prompt or choose a model with a larger context")
        if status in (401, 403):
            return EngineRefused(f"{told}; check OPENAI_API_KEY")
        return EngineRefused(told)

    def _error_event(self, error: openai.APIError, request: EngineRequest) -> EngineError:
        """The meaning of an error that came inside a stream."""
        told = f"the server {self._server!r} broke off, model {request.model!r}: {self._shown(_said(error))}"
        if error.code == "context_length_exceeded" or _TOO_LONG.search(_said(error)):
            return ContextTooLong(told)
        if error.code in _OUT_OF_MONEY or error.code == "content_filter":
            return EngineRefused(told)
        overloaded = error.code in ("rate_limit_exceeded", "429", "503")
        return EngineOverloaded(told) if overloaded else EngineError(told)

    def _shown(self, text: str) -> str:
        """`text` without keys, of a readable length."""
        clean = _KEYS.sub("***", text.replace(self._key, "***"))
        return clean if len(clean) <= _SHOWN else f"{clean[:_SHOWN]}..."


class _BrokenStream(openai.OpenAIError):
    """The bytes of a stream are not a whole answer."""


def _server(url: str) -> str:
    """Host and port of `url`; what stands before an `@` is secret."""
    parts = urlsplit(url)
    server = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https") or not server:
        shown = url.rpartition("@")[2]
        raise ConfigurationError(f"the engine's URL is no http URL: {shown!r}; correct OPENAI_BASE_URL")
    return server


def _client(url: str, key: str, timeouts: Timeouts) -> openai.AsyncOpenAI:
    wait = openai.Timeout(timeouts.read_s, connect=timeouts.connect_s)
    # A proxy of the environment cannot reach this machine's own servers.
    http_client = openai.DefaultAsyncHttpxClient(timeout=wait, trust_env=not _is_loopback(url))
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=wait, http_client=http_client)


def _key_for(url: str) -> str:
    if not _is_loopback(url):
        raise EngineRefused(
            "OPENAI_API_KEY is not set; set it, or OPENAI_BASE_URL to a server on this machine, "
            "or MOSAIC_MODEL=extractive to go without a model"
        )
    return _NO_KEY


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


async def _next(stream: openai.AsyncStream[Any]) -> Any:
    try:
        return await anext(stream, None)
    except ValueError as error:  # JSON or UTF-8 that is none
        raise _BrokenStream(f"holds an event that cannot be read ({error})") from None


async def _within(work: Awaitable[_T], deadline: float, request: EngineRequest) -> _T:
    """`work`, unless the deadline passes.

    To be put around each single wait: a scope around a `yield` would cancel the consumer.
    """
    try:
        async with asyncio.timeout_at(None if deadline == math.inf else deadline) as scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        raise CallTimeout(f"model {request.model!r} did not answer within {request.timeout_s:g} s") from None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _read(chunk: Any, ended: _Ended) -> str:
    """The text of a chunk; what it says about the end goes to `ended`. Servers leave out what they like."""
    usage = getattr(chunk, "usage", None)
    if usage is not None:
        ended.usage = (usage.prompt_tokens or 0, usage.completion_tokens or 0)
    choices = getattr(chunk, "choices", None)
    if not choices:
        return ""
    if choices[0].finish_reason:
        ended.reason = _FINISHED.get(choices[0].finish_reason, "stop")
    delta = choices[0].delta
    ended.refusal += getattr(delta, "refusal", None) or ""
    return getattr(delta, "content", None) or ""


def _whole(text: str) -> tuple[str, str]:
    """The text, and apart from it half a character at its end: servers that count in UTF-16 may cut there."""
    try:
        text.encode()
    except UnicodeEncodeError:
        half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        halves = text.removesuffix(half).encode("utf-16-le", "surrogatepass")
        try:
            return halves.decode("utf-16-le"), half
        except UnicodeDecodeError as error:
            raise _BrokenStream(f"holds half a character ({error.reason})") from None
    return text, ""


def _said(error: openai.APIError) -> str:
    """What the server said, out of the forms that servers give it."""
    body = error.body
    if isinstance(body, dict):
        return str(body.get("message") or body.get("detail") or body)
    return str(body or error.message)


def _retry_after_s(error: openai.OpenAIError) -> float | None:
    """The pause that the server asks for: `retry-after-ms`, or `Retry-After` as seconds or as a date."""
    if not isinstance(error, openai.APIStatusError):
        return None
    headers = error.response.headers
    seconds = _number(headers.get("retry-after-ms"), 1000) or _number(headers.get("retry-after"), 1)
    if seconds is None:
        seconds = _until(headers.get("retry-after", ""))
    return seconds


def _number(value: str | None, divisor: int) -> float | None:
    try:
        number = float(value or "") / divisor
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _until(date: str) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())
    except ValueError:
        return None


def _jittered_s(retry: RetryPolicy, attempt: int, asked_s: float | None) -> float:
    longest = min(retry.max_s, retry.base_s * 2 ** (attempt - 1))
    # At least what the server asked for, and not all clients at once.
    return (asked_s or 0.0) + random.uniform(0, longest)  # noqa: S311


def _arguments(request: EngineRequest, dialect: _Dialect) -> dict[str, Any]:
    """The keyword arguments of `chat.completions.create`."""
    chosen = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        dialect.limit: request.max_tokens,
        "seed": request.seed,
        "stop": list(request.stop) or None,
        "response_format": _response_format(request, dialect),
        "stream_options": {"include_usage": True} if dialect.tells_usage else None,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    return {"model": request.model, "messages": _messages(request, dialect), "stream": True, **given}


def _messages(request: EngineRequest, dialect: _Dialect) -> list[dict[str, str]]:
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    if request.output_schema is None or dialect.output == "json_schema":
        return messages
    schema = msgspec.json.encode(request.output_schema).decode()
    rule = f"Answer with JSON that fits this JSON Schema, and with nothing else:\n{schema}"
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{rule}"}, *messages[1:]]
    return [{"role": "system", "content": rule}, *messages]


def _response_format(request: EngineRequest, dialect: _Dialect) -> dict[str, Any] | None:
    schema = request.output_schema
    if schema is None or dialect.output == "prompt":
        return None
    if dialect.output == "json_object":
        return {"type": "json_object"}
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", str(schema.get("title", "")))[:64] or "output"
    described = {"name": name, "schema": schema, "strict": _can_be_strict(schema, root=True)}
    return {"type": "json_schema", "json_schema": described}


def _can_be_strict(schema: Any, *, root: bool = False) -> bool:
    """Whether OpenAI's strict mode takes it: each object closed, each property required, few keywords."""
    if not isinstance(schema, dict) or _NOT_STRICT & schema.keys():
        return False
    if root and schema.get("type") != "object":
        return False
    properties: dict[str, Any] = schema.get("properties", {})
    if "object" in str(schema.get("type")) and not (
        schema.get("additionalProperties") is False and set(schema.get("required", ())) == properties.keys()
    ):
        return False
    inner = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    if "items" in schema:
        inner.append(schema["items"])
    return all(_can_be_strict(part) for part in inner)


def _simpler(spoken: _Dialect, request: EngineRequest, complaint: str) -> _Dialect:
    """The dialect without what the server complains of; the same one when it complains of something else."""
    if "max_completion_tokens" in complaint and request.max_tokens is not None:
        return msgspec.structs.replace(spoken, limit="max_completion_tokens")
    if "stream_options" in complaint or "include_usage" in complaint:
        return msgspec.structs.replace(spoken, tells_usage=False)
    if request.output_schema is not None and re.search("response_format|json_schema|json_object", complaint):
        is_object = request.output_schema.get("type") == "object"
        simpler = "json_object" if spoken.output == "json_schema" and is_object else "prompt"
        return msgspec.structs.replace(spoken, output=simpler)
    return spoken
