"""Any server that speaks the OpenAI chat completions API, through the official client; many behind one model.

The client itself never retries. Here an attempt is repeated until text comes: at another endpoint at once where there
is one, else after a pause with jitter, or as long as the server asks for. A call with a deadline waits for an
overloaded server as long as it can. Once text came, an error ends the stream, unless an endpoint can continue it. An
event that is no JSON, no UTF-8 or half a character is such an error: nothing is replaced. What a server does not
understand (`response_format`, `max_tokens`, `stream_options`) is learnt from its refusal, once per endpoint and model.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
import openai
import structlog

from mosaic_queues.errors import (
    CallTimeout,
    ConfigurationError,
    ContentRefused,
    EngineError,
    EngineOverloaded,
    EngineRefused,
)
from mosaic_tasks.engines.dialects import Dialect, Seam, arguments, can_continue, simpler, unsuited
from mosaic_tasks.engines.endpoints import (
    KEY_VARIABLE,
    VARIABLE,
    AllRest,
    Endpoint,
    EndpointGroup,
    EndpointStanding,
    Timeouts,
    is_loopback,
    load_endpoints,
    note_failure,
    note_success,
    rest,
    server_of,
)
from mosaic_tasks.engines.limits import asked_pause_s, reset_pause_s, tell_limits
from mosaic_tasks.engines.prices import PriceTable, load_prices
from mosaic_tasks.engines.protocol import (
    EngineRequest,
    Events,
    Finished,
    FinishReason,
    TextDelta,
    Usage,
    approx_usage,
)
from mosaic_tasks.engines.refusals import BrokenStream, Interpreter, is_the_server_s, said

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_NO_KEY = "no-key"
_FINISHED: dict[str, FinishReason] = {"length": "length", "content_filter": "refused"}
_MOST_TOKENS = 10**9
"""A server that tells of more tokens in one call is wrong."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """Attempts before the first token, and the pause between them.

    An endpoint that failed rests for half of `base_s * 2**(failures - 1)`, at most `max_s`, or for as long as it asks.
    Calls that waited for that come back within the other half, by chance.

    Attributes:
        attempts: of one call, at least one an endpoint. A call with a deadline tries an overloaded one until then.
        longest_s: a call without a deadline does not wait for longer.
    """

    attempts: int = 4
    base_s: float = 0.5
    max_s: float = 8.0
    longest_s: float = 60.0

    def half_s(self, failures: int) -> float:
        """Half of the pause after so many failures."""
        return min(self.max_s, self.base_s * 2.0 ** min(failures - 1, 30)) / 2


class _Server(EndpointStanding, kw_only=True, eq=False):
    """An endpoint, and what is needed to talk to it.

    Attributes:
        is_alone: no other answers for its model, so what it says of its limits holds for all calls of the model.
    """

    client: openai.AsyncOpenAI
    prices: PriceTable
    interpreter: Interpreter
    is_alone: bool
    dialect: Dialect = Dialect()

    def told(self, headers: Mapping[str, str]) -> None:
        """Headers came from it."""
        if self.is_alone:
            tell_limits(headers)


class _Ended(msgspec.Struct):
    """What the chunks of a stream said about its end, and the tokens' log-probabilities so far."""

    reason: FinishReason | None = None
    usage: Usage | None = None
    refusal: str = ""
    logprobs: list[float] = []


class _Call(msgspec.Struct):
    """A request on its way.

    Attributes:
        request: with the prefix that the next attempt continues from.
        able: the endpoints that will do.
        began: when the last attempt began.
        heard: the text of that attempt.
        ended: what else it said.
        logprobs: of attempts that broke off and were continued.
        spent: by them.
        broke: how the last of them ended.
    """

    request: EngineRequest
    deadline: float
    able: Collection[_Server]
    attempt: int = 1
    began: float = 0.0
    heard: list[str] = []
    ended: _Ended = msgspec.field(default_factory=_Ended)
    logprobs: list[float] = []
    spent: Usage | None = None
    broke: EngineError | None = None


class OpenAIEngine:
    """The engine `openai:<model>`.

    Args:
        base_url: for models that `MOSAIC_ENDPOINTS` does not list; default: `OPENAI_BASE_URL`, else OpenAI's own.
        api_key: default: `OPENAI_API_KEY`; not needed for a server on this machine.
        retry: how often, and with which pauses.
        timeouts: for connection and bytes; the whole answer's is in the request.

    Raises:
        EngineRefused: no key.
        ConfigurationError: the URL is none, or the file of endpoints or the table of prices cannot be read.
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
        self._key = api_key or os.environ.get(KEY_VARIABLE) or ""
        self._retry = retry or RetryPolicy()
        self._timeouts = timeouts or Timeouts()
        self._listed = load_endpoints()
        self._clients: dict[tuple[str, str, Timeouts], openai.AsyncOpenAI] = {}
        self._groups: dict[str, EndpointGroup[_Server]] = {}
        if not server_of(self._url):
            shown = self._url.rpartition("@")[2]
            raise ConfigurationError(f"the engine's URL is no http URL: {shown!r}; correct OPENAI_BASE_URL")
        if not self._listed:
            self._key_of_url("")
        load_prices(self._url)

    @property
    def continues(self) -> bool:
        """Whether some model can go on from a prefix; a request for one that cannot is refused before it is sent."""
        plain = EngineRequest(())
        return any(can_continue(one, plain) for endpoints in self._listed.values() for one in endpoints)

    async def aclose(self) -> None:
        """Closes the connections."""
        for client in self._clients.values():
            await client.close()

    async def stream(self, request: EngineRequest) -> Events:
        """The answer as it comes: see `Engine.stream`.

        Raises:
            EngineRefused: bad key, unknown model, bad request, no money.
            ContentRefused: the model or a filter declined.
            EngineOverloaded: the server asks for patience, also after all attempts.
            ContextTooLong: the messages do not fit the model.
            EngineError: no connection, a broken stream, an error inside the server.
            CallTimeout: `request.timeout_s` passed.
        """
        group = self._group(request.model)
        deadline = math.inf if request.timeout_s is None else _now() + request.timeout_s
        call = _Call(request, deadline, _able(group, request))
        while True:
            server = await self._take(group, call)
            try:
                try:
                    async with aclosing(self._attempt(call, server)) as events:
                        async for event in events:
                            yield event
                    return
                except openai.OpenAIError as error:
                    failure = error
                except CallTimeout as late:
                    if not call.heard and len(call.able) > 1:
                        self._rest(server, call, str(late))
                    raise
                # Outside of the handler, so that no traceback shows the client's error: servers repeat keys.
                self._settle(group, call, server, failure)
            finally:
                group.free(server)  # once it is noted whether it rests, or who waits is sent there at once

    def cost_usd(self, model: str, usage: Usage) -> float | None:
        """The price of an answer that was stopped, where the model has one: the highest of its servers."""
        costs = [_cost_usd(server, usage, model) for server in self._group(model).standings]
        return max((cost for cost in costs if cost is not None), default=None)

    def server_url(self, model: str) -> str:
        """Where a model is asked; empty: at one of several servers."""
        listed = self._listed.get(model, ())
        return self._url if not listed else listed[0].url if len(listed) == 1 else ""

    # -- which server

    def _group(self, model: str) -> EndpointGroup[_Server]:
        """The servers of a model."""
        if model not in self._groups:
            listed = self._listed.get(model)
            endpoints = listed or (Endpoint(url=self._url, model=model, timeouts=self._timeouts),)
            keys = [_key_of(one) for one in endpoints] if listed else [self._key_of_url(model)]
            self._groups[model] = EndpointGroup(
                [
                    self._server(*pair, is_alone=len(endpoints) == 1)
                    for pair in zip(endpoints, keys, strict=True)
                ]
            )
        return self._groups[model]

    def _server(self, endpoint: Endpoint, key: str, *, is_alone: bool) -> _Server:
        address = (endpoint.url, key, endpoint.timeouts)
        if address not in self._clients:
            self._clients[address] = _client(*address)
        return _Server(
            endpoint,
            client=self._clients[address],
            prices=load_prices(endpoint.url),
            is_alone=is_alone,
            interpreter=Interpreter(
                endpoint.server, key, endpoint.key_env or KEY_VARIABLE, endpoint.timeouts
            ),
        )

    def _key_of_url(self, model: str) -> str:
        """The key for a model that no file lists."""
        if self._key or is_loopback(self._url):
            return self._key or _NO_KEY
        if self._listed:
            raise EngineRefused(
                f"the file of {VARIABLE} lists no model {model!r} (there are: {', '.join(self._listed)}), "
                f"and {KEY_VARIABLE} is not set for one that it does not list; correct the agent's model"
            )
        raise EngineRefused(
            f"{KEY_VARIABLE} is not set; set it, or OPENAI_BASE_URL to a server on this machine, "
            "or MOSAIC_MODEL=extractive to go without a model"
        )

    async def _take(self, group: EndpointGroup[_Server], call: _Call) -> _Server:
        """A place at the server that is asked next, once there is one.

        Raises:
            CallTimeout: there is none in time.
            EngineOverloaded: all rest for longer than a call without a deadline waits.
        """
        model, allowed_s = call.request.model, call.request.timeout_s or 0.0
        try:
            server = await group.take(
                among=call.able,
                deadline=call.deadline,
                longest_s=self._retry.longest_s if call.deadline == math.inf else math.inf,
                spread_s=self._retry.half_s(call.attempt),
            )
        except AllRest as rests:
            if call.deadline == math.inf:
                raise EngineOverloaded(
                    f"{rests.reason}; it asks to wait {rests.wait_s:.0f} s, try again then"
                ) from None
            raise CallTimeout(
                f"no time for another attempt within {allowed_s:g} s: {rests.reason}; "
                f"the next may be made in {rests.wait_s:.3g} s"
            ) from None
        except TimeoutError:
            raise CallTimeout(
                f"no endpoint of model {model!r} had room within {allowed_s:g} s; "
                "raise 'concurrency' where they could do more, or add one"
            ) from None
        call.began = _now()
        return server

    # -- one attempt

    async def _attempt(self, call: _Call, server: _Server) -> Events:
        request, ended, half = call.request, _Ended(), ""
        call.heard, call.ended = [], ended
        seam = Seam(request.prefix)
        async with aclosing(self._chunks(call, server)) as chunks:
            async for chunk in chunks:
                text, half = _whole(half + _read(chunk, ended))
                if text := seam.join(text):
                    call.heard.append(text)
                    yield TextDelta(text)
        if ended.refusal:
            said = server.interpreter.shown(ended.refusal)
            raise ContentRefused(f"the model {request.model!r} declined: {said}")
        if ended.reason is None or half:
            raise BrokenStream("ended before the answer was complete")
        yield Finished(ended.reason, _usage(call, server), (*call.logprobs, *ended.logprobs))

    async def _chunks(self, call: _Call, server: _Server) -> AsyncGenerator[Any, None]:
        asked = arguments(call.request, server.endpoint, server.dialect)
        create = server.client.chat.completions.create(**asked)
        stream = await _within(create, call)
        self._heed(server, stream.response.headers, began=call.began)
        try:
            while (chunk := await _within(_next(stream), call)) is not None:
                yield chunk
        finally:
            await stream.close()

    def _heed(self, server: _Server, headers: Any, *, began: float) -> None:
        """Takes note of an answer that begins, and rests where it says that a limit is used up."""
        note_success(server, began=began)
        server.told(headers)
        if pause_s := reset_pause_s(headers, now_s=time.time()):
            reason = f"the rate limit of the server {server.endpoint.server!r} is used up"
            rest(server, now=_now(), until=_now() + pause_s, reason=reason)

    # -- after a failure

    def _settle(
        self, group: EndpointGroup[_Server], call: _Call, server: _Server, error: openai.OpenAIError
    ) -> None:
        """Makes ready for the next attempt, or raises what `error` means."""
        if isinstance(error, openai.APIStatusError):
            server.told(error.response.headers)
        if not call.heard and _learnt(server, call.request, error):
            return
        failure = server.interpreter.meaning(error, call.request.adapter or server.endpoint.model)
        if failure.retryable:
            self._rest(server, call, str(failure), asked_s=_asked_s(error))
        elif not call.heard and is_the_server_s(error) and _passed_over(call, server, str(failure)):
            return
        if not failure.retryable or not self._may_repeat(group, call, failure):
            raise call.broke or failure
        if call.heard and not _continued(group, call, failure):
            raise failure
        call.attempt += 1

    def _rest(self, server: _Server, call: _Call, reason: str, *, asked_s: float = 0.0) -> None:
        def pause_s(failures: int) -> float:
            return max(asked_s, self._retry.half_s(failures))

        note_failure(server, now=_now(), began=call.began, reason=reason, pause_s=pause_s)

    def _may_repeat(self, group: EndpointGroup[_Server], call: _Call, failure: EngineError) -> bool:
        if isinstance(failure, EngineOverloaded) and call.deadline < math.inf:
            return True
        return call.attempt < max(self._retry.attempts, len(group.standings))


def _able(group: EndpointGroup[_Server], request: EngineRequest) -> tuple[_Server, ...]:
    """The servers of a group that can do what a request asks for."""
    reasons = [unsuited(one.endpoint, request) for one in group.standings]
    able = tuple(one for one, why in zip(group.standings, reasons, strict=True) if why is None)
    if not able:
        raise EngineRefused(f"the model {request.model!r} of engine 'openai' {reasons[0]}")
    return able


def _passed_over(call: _Call, server: _Server, reason: str) -> bool:
    """Whether the call can do without a server that refused its key, its money or its model."""
    others = tuple(one for one in call.able if one is not server)
    if not others:
        return False
    call.able = others
    if not (server.refuses or call.request.adapter):  # that it lacks an adapter says nothing of other calls
        log.warning("engine.endpoint_refused", what="Other endpoints go before this one now.", reason=reason)
        server.refuses = True
    return True


def _continued(group: EndpointGroup[_Server], call: _Call, failure: EngineError) -> bool:
    """Whether a server can continue what was heard; the next attempt asks for that."""
    request = call.request
    text = "".join(call.heard)
    further = msgspec.structs.replace(request, prefix=request.prefix + text)
    able = tuple(one for one in group.standings if unsuited(one.endpoint, further) is None)
    if not able:
        return False
    spent = approx_usage(request, text)
    call.request, call.able, call.broke = further, able, failure
    call.logprobs += call.ended.logprobs
    call.spent = spent if call.spent is None else call.spent + spent
    return True


def _learnt(server: _Server, request: EngineRequest, error: openai.OpenAIError) -> bool:
    """Whether `error` is about something that the server does not understand; it is left out then."""
    if not isinstance(error, openai.APIStatusError) or error.status_code not in (400, 422):
        return False
    complaint = f"{error.param or ''} {said(error)}"
    spoken = simpler(server.dialect, request, server.endpoint.kind, complaint)
    if spoken == server.dialect:
        return False
    server.dialect = spoken
    return True


def _asked_s(error: openai.OpenAIError) -> float:
    """The pause that a server asks for, by words or by a limit that is used up; 0 for none."""
    if not isinstance(error, openai.APIStatusError):
        return 0.0
    headers, now_s = error.response.headers, time.time()
    asked_s = asked_pause_s(headers, now_s=now_s)
    return reset_pause_s(headers, now_s=now_s) if asked_s is None else asked_s


def _usage(call: _Call, server: _Server) -> Usage:
    """The usage of a call, as the server tells it or estimated."""
    told = call.ended.usage
    if told is None:
        spent = approx_usage(call.request, "".join(call.heard))
    else:
        spent = msgspec.structs.replace(told, cost_usd=_cost_usd(server, told, call.request.model))
    return spent if call.spent is None else call.spent + spent


def _cost_usd(server: _Server, usage: Usage, model: str) -> float | None:
    """The price where the model's is known: by its name at the server, or by the one that agents use."""
    read, written = usage.input_tokens, usage.output_tokens
    costs = (
        server.prices.cost_usd(name, input_tokens=read, output_tokens=written)
        for name in (server.endpoint.model, model)
    )
    return next((cost for cost in costs if cost is not None), None)


def _key_of(endpoint: Endpoint) -> str:
    if not endpoint.key_env:
        return _NO_KEY
    if not (key := os.environ.get(endpoint.key_env)):
        raise EngineRefused(
            f"{endpoint.key_env} is not set; it is to hold the key of {endpoint.server!r} "
            f"(field 'key_env' in the file of {VARIABLE})"
        )
    return key


def _client(url: str, key: str, timeouts: Timeouts) -> openai.AsyncOpenAI:
    wait = openai.Timeout(timeouts.read_s, connect=timeouts.connect_s)
    # A proxy of the environment cannot reach this machine's own servers.
    http_client = openai.DefaultAsyncHttpxClient(timeout=wait, trust_env=not is_loopback(url))
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=wait, http_client=http_client)


async def _next(stream: openai.AsyncStream[Any]) -> Any:
    try:
        return await anext(stream, None)
    except ValueError as error:  # JSON or UTF-8 that is none
        raise BrokenStream(f"holds an event that cannot be read ({error})") from None


async def _within(work: Awaitable[_T], call: _Call) -> _T:
    """`work`, unless the deadline passes.

    To be put around each single wait: a scope around a `yield` would cancel the consumer.
    """
    try:
        async with asyncio.timeout_at(None if call.deadline == math.inf else call.deadline) as scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        request = call.request
        raise CallTimeout(f"model {request.model!r} did not answer within {request.timeout_s:g} s") from None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _read(chunk: Any, ended: _Ended) -> str:
    """The text of a chunk; what it says about the end goes to `ended`. Servers leave out what they like."""
    usage = getattr(chunk, "usage", None)
    if usage is not None:
        ended.usage = _counted(usage)
    choices = getattr(chunk, "choices", None)
    if not choices:
        return ""
    if choices[0].finish_reason:
        ended.reason = _FINISHED.get(choices[0].finish_reason, "stop")
    ended.logprobs += _logprobs(choices[0])
    delta = choices[0].delta
    ended.refusal += getattr(delta, "refusal", None) or ""
    return getattr(delta, "content", None) or ""


def _counted(usage: Any) -> Usage | None:
    """The usage that a server tells; None where that is no number of tokens, so that it is estimated."""
    read, written = _tokens(usage, "prompt_tokens"), _tokens(usage, "completion_tokens")
    if read is None or written is None:
        return None
    cached = _tokens(getattr(usage, "prompt_tokens_details", None), "cached_tokens")
    return Usage(read, written, cached_tokens=min(cached or 0, read))


def _tokens(usage: Any, name: str) -> int | None:
    told = getattr(usage, name, None)
    return told if type(told) is int and 0 <= told <= _MOST_TOKENS else None


def _logprobs(choice: Any) -> list[float]:
    tokens = getattr(getattr(choice, "logprobs", None), "content", None) or ()
    return [token.logprob for token in tokens]


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
            raise BrokenStream(f"holds half a character ({error.reason})") from None
    return text, ""
