"""What every inference engine takes and gives.

An engine is a stream: text deltas, then exactly one `Finished`. Cancelling the consuming task, or `aclose()`
of the iterator, stops the work and frees what it held (for a remote engine: closes the connection).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Literal, Protocol

import msgspec

from mosaic_queues.errors import EngineError, EngineRefused
from mosaic_routing.inventory import EngineLoad as EngineLoad  # what a hosted engine gives, too
from mosaic_tasks.engines.reasoning import Parted, ReasoningReader

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "refused", "cancelled"]

CHARS_PER_TOKEN = 4
"""The rule by which tokens are counted where no tokenizer is at hand."""

_SHOWN = 40


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: Role
    content: str


class EngineRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One question to an engine.

    Attributes:
        messages: the conversation so far; the last one is answered.
        model: name of the model inside the engine, without the engine's own name.
        output_schema: a JSON Schema that the text shall fit, or None for free text.
        max_tokens: the answer, `prefix` included, is cut there, with finish reason `length`.
        top_p: only the likeliest tokens that together have this probability are drawn from.
        logprobs: ask for the log-probability of each token of the answer; engines without them give none.
        priority: 0 is the most urgent, as in Celery; an engine that orders its requests goes by it.
        adapter: name of a LoRA adapter on the model, where the engine hosts it.
        timeout_s: for the whole answer, retries included; past it the engine raises `CallTimeout`.
        metadata: labels for logs and traces; not sent to the model. `replay` is the key of a recorded answer.
        prefix: what an earlier attempt generated of this answer; only for an engine that `continues`, which then
            streams the rest alone. It is no message: `messages` stay those of the first attempt.
    """

    messages: tuple[Message, ...]
    model: str = ""
    output_schema: dict[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_p: float | None = None
    logprobs: bool = False
    priority: int = 0
    adapter: str = ""
    timeout_s: float | None = None
    metadata: dict[str, str] = {}
    prefix: str = ""


class Usage(msgspec.Struct, frozen=True):
    """Tokens read and written, and their price.

    Attributes:
        cost_usd: None where the model's price is not known.
        cached_tokens: those of the input whose work was spared by a prefix cache.
        estimated: the tokens were counted by `approx_tokens`, since nobody told them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        """The usage of both; the cost is None where one of them is."""
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            (self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
            self.estimated or other.estimated,
            self.cached_tokens + other.cached_tokens,
        )


class TextDelta(msgspec.Struct, frozen=True):
    """The next piece of the answer."""

    text: str


class Finished(msgspec.Struct, frozen=True):
    """The last event of every stream.

    Attributes:
        logprobs: natural logarithm of each generated token's probability, where they were asked for.
    """

    reason: FinishReason
    usage: Usage
    logprobs: tuple[float, ...] = ()


class Completion(msgspec.Struct, frozen=True):
    """A whole answer; `reasoning` is what the model wrote before it, in `<think>` tags.

    Attributes:
        is_cut: it was enough, and the engine was stopped.
    """

    text: str
    usage: Usage
    finish_reason: FinishReason
    reasoning: str = ""
    logprobs: tuple[float, ...] = ()
    is_cut: bool = False


Events = AsyncGenerator[TextDelta | Finished, None]


class Engine(Protocol):
    """An inference engine; one per process and event loop.

    One that takes a `prefix` says so by an attribute or a property, `continues = True`; one that knows prices has a
    method `cost_usd(model, usage)`, one that asks a server has `server_url(model)`.
    """

    @property
    def name(self) -> str:
        """The scheme that chooses it: `openai` in `openai:gpt-x`."""

    def stream(self, request: EngineRequest) -> Events:
        """The answer as it comes.

        Raises:
            EngineError: or one of its kinds, when there is no answer.
            CallTimeout: the answer took longer than `request.timeout_s`.
        """

    async def aclose(self) -> None:
        """Frees connections and memory. The engine is of no use afterwards."""


def continues(engine: Engine) -> bool:
    """Whether `engine` can go on from the `prefix` of a request."""
    return bool(getattr(engine, "continues", False))


async def complete(
    engine: Engine,
    request: EngineRequest,
    *,
    on_delta: Callable[[str], None] | None = None,
    on_first: Callable[[], None] | None = None,
    is_enough: Callable[[], bool] | None = None,
) -> Completion:
    """The whole answer of `engine`, `request.prefix` included; `on_delta` sees each new piece as it comes.

    What a model thinks before it answers is kept apart.

    Args:
        on_first: is called once, before `on_delta` sees the first piece.
        is_enough: asked after each piece; where it says so, the engine stops, and what is there is the answer.
    """
    if request.prefix and not continues(engine):
        raise EngineRefused(f"engine {engine.name!r} cannot continue an answer; ask it without a prefix")
    answer = _Answer(request.prefix, on_first, on_delta)
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            if isinstance(event, Finished):
                answer.end()
                return Completion(
                    answer.text, event.usage, event.reason, answer.thought, logprobs=event.logprobs
                )
            answer.hear(event.text)
            if is_enough is not None and is_enough():
                used = _used_so_far(engine, request, answer.thought + answer.text)
                return Completion(answer.text, used, "stop", answer.thought, is_cut=True)
    raise EngineError(f"engine {engine.name!r} ended its stream without saying that it finished; try again")


class _Answer:
    """An answer as it is written; what the model thinks before it stands apart."""

    def __init__(
        self, prefix: str, on_first: Callable[[], None] | None, on_delta: Callable[[str], None] | None
    ) -> None:
        self._on_first, self._on_delta = on_first, on_delta
        self._pieces, self._thoughts = [prefix], [""]
        self._reader = None if prefix else ReasoningReader()

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def thought(self) -> str:
        return "".join(self._thoughts)

    def hear(self, text: str) -> None:
        """The model wrote more. Once the answer has begun, all of it is answer, and nothing is read for tags."""
        if self._reader is not None:
            text = self._parted(self._reader.feed(text))
        if text:
            self._pieces.append(text)
            if self._on_first is not None:
                self._on_first()
                self._on_first = None
            if self._on_delta is not None:
                self._on_delta(text)

    def end(self) -> None:
        """The model wrote all."""
        if self._reader is not None:
            rest, self._reader = self._reader.close(), None
            self.hear(self._parted(rest))

    def _parted(self, part: Parted) -> str:
        self._thoughts.append(part.reasoning)
        if self._reader is not None and self._reader.is_over:
            self._reader = None
        return part.answer


def _used_so_far(engine: Engine, request: EngineRequest, written: str) -> Usage:
    """The usage of an answer that was stopped, priced where the engine knows a price (`cost_usd`)."""
    used = approx_usage(request, written)
    cost_usd = getattr(engine, "cost_usd", None)
    return used if cost_usd is None else msgspec.structs.replace(used, cost_usd=cost_usd(request.model, used))


def asked(messages: Sequence[Message]) -> str:
    """The last message of the user."""
    return next((message.content for message in reversed(messages) if message.role == "user"), "")


def before_stop(text: str, stops: Iterable[str]) -> str:
    """The text up to the first of the stop strings."""
    ends = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]


def rest_of(answer: str, request: EngineRequest, *, engine: str) -> str:
    """What follows `request.prefix` in the answer of an engine that always gives the same one.

    Raises:
        EngineRefused: the answer begins otherwise.
    """
    if answer.startswith(request.prefix):
        return answer.removeprefix(request.prefix)
    pairs = enumerate(zip(answer, request.prefix, strict=False))
    place = next((place for place, (one, other) in pairs if one != other), len(answer))
    raise EngineRefused(
        f"engine {engine!r} cannot continue from the prefix: at character {place} it reads "
        f"{request.prefix[place : place + _SHOWN]!r}, the answer {answer[place : place + _SHOWN]!r}; "
        "ask again without a prefix"
    )


def approx_tokens(text: str) -> int:
    """About as many tokens as `text` has: a token for each four characters, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def approx_usage(request: EngineRequest, answer: str, *, cost_usd: float | None = None) -> Usage:
    """The usage of an answer whose engine does not count tokens; a prefix is read, not written."""
    read = sum(approx_tokens(message.content) for message in request.messages)
    return Usage(read + approx_tokens(request.prefix), approx_tokens(answer), cost_usd, estimated=True)
