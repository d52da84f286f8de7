"""One question to an agent: prompts rendered, an engine asked, the answer checked against its schema."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from mosaic_queues.errors import CallTimeout, ContentRefused, EngineError, EngineRefused, OutputInvalid
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.definition.templates import render
from mosaic_tasks.engines.protocol import (
    Completion,
    Engine,
    EngineRequest,
    FinishReason,
    Message,
    Usage,
    complete,
    continues,
)
from mosaic_tasks.engines.registry import ModelName, configured, engine_for
from mosaic_tasks.engines.schema import mismatch
from mosaic_tasks.observability.requests import asking

_FENCED = re.compile(r"```[\w-]*\s*\n(.*?)```", re.DOTALL)
_OPENS = re.compile(r"[{\[]")
_MAX_OPENS = 200
_SHOWN = 120


class AgentAnswer(msgspec.Struct, frozen=True):
    """What an agent answered.

    Attributes:
        value: the text, or the JSON value where the agent has an output schema.
        usage: of all attempts together.
        model: as `engine:name`.
        repaired: the first answer did not fit the schema, the second did.
        text: the answer as it was written.
        logprobs: of its tokens, where they were asked for and the engine has them.
        is_cut: it was enough before it ended; then the value is the text.
        finish_reason: why it ended.
    """

    value: Any
    usage: Usage
    model: str
    repaired: bool = False
    text: str = ""
    logprobs: tuple[float, ...] = ()
    is_cut: bool = False
    finish_reason: FinishReason = "stop"


class _Clock:
    """The time that is left."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._started = asyncio.get_running_loop().time()

    def left_s(self) -> float | None:
        """Seconds, or None for no end.

        Raises:
            CallTimeout: no time is left.
        """
        if self._timeout_s is None:
            return None
        left = self._started + self._timeout_s - asyncio.get_running_loop().time()
        if left <= 0:
            raise CallTimeout(f"the agent had no valid answer within {self._timeout_s:g} s")
        return left


async def run_agent(
    agent: AgentPlan,
    names: Mapping[str, Any],
    *,
    engine: Engine | None = None,
    on_delta: Callable[[str], None] | None = None,
    timeout_s: float | None = None,
    prefix: str = "",
    priority: int = 0,
    is_enough: Callable[[], bool] | None = None,
) -> AgentAnswer:
    """Asks `agent` once, and once more where the answer does not fit its schema.

    Args:
        agent: prompts, schema and sampling.
        names: what the templates may read.
        engine: default: the one that the agent's model names.
        on_delta: sees the pieces of the first answer as they come; a repair is not shown to it.
        timeout_s: for the whole, repair included.
        prefix: the beginning of the answer, from an earlier attempt: an engine that can goes on from there.
        priority: 0 is the most urgent; for engines that order their requests.
        is_enough: asked after each piece of the first answer: whether the rest of it is of no use.

    Raises:
        EngineError: no answer, or an empty one; see its kinds for what may be tried again.
        OutputInvalid: the answer does not fit the schema, also after one repair, or was cut off.
        CallTimeout: `timeout_s` passed.
    """
    asked = engine or engine_for(agent.model)
    model = _model(asked, agent.model)
    label = str(model)
    clock = _Clock(timeout_s)
    request = _request(agent, names, model=model.name, priority=priority)
    if is_enough is not None:
        first = await _ask(asked, request, clock, on_delta, is_enough)
    else:
        first = await _ask_on(asked, request, clock, on_delta, prefix)
    if agent.output_schema is None or first.is_cut:
        return _as_written(first, label)
    value, wrong = parse_answer(first.text, agent.output_schema)
    if wrong is None:
        return msgspec.structs.replace(_as_written(first, label), value=value)
    spent = first.usage
    try:
        second = await _ask(asked, _repair(request, first.text, wrong), clock, None)
        spent += second.usage
        value, still_wrong = parse_answer(second.text, agent.output_schema)
        if still_wrong is not None:
            raise OutputInvalid(
                f"model {label!r} does not fit its output schema, also after a repair: {still_wrong}"
            )
    except EngineError as error:
        error.model, error.usage = label, spent
        raise
    return AgentAnswer(value, spent, label, repaired=True, text=second.text)


def _as_written(answer: Completion, label: str) -> AgentAnswer:
    return AgentAnswer(
        answer.text,
        answer.usage,
        label,
        text=answer.text,
        logprobs=answer.logprobs,
        is_cut=answer.is_cut,
        finish_reason=answer.finish_reason,
    )


def parse_answer(text: str, schema: dict[str, Any]) -> tuple[Any, str | None]:
    """The JSON value in a model's answer, and what is wrong with it (None: nothing).

    Fences and prose around it are tolerated. Of several values the longest that fits is taken.
    """
    found = [value for _, value in sorted(_json_values(text), key=lambda pair: -pair[0])]
    if not found:
        return None, f"no JSON is in the answer {_shortened(text)!r}"
    problems = []
    for value in found:
        wrong = mismatch(value, schema)
        if wrong is None:
            return value, None
        problems.append(wrong)
    return found[0], problems[0]


def question(agent: AgentPlan, names: Mapping[str, Any]) -> tuple[Message, ...]:
    """What an agent is asked.

    Raises:
        BindingError: a prompt cannot be formed from the data.
    """
    system = render(agent.system, names) if agent.system else ""
    lead = (Message("system", system),) if system.strip() else ()
    return (*lead, Message("user", render(agent.prompt, names)))


def _request(agent: AgentPlan, names: Mapping[str, Any], *, model: str, priority: int) -> EngineRequest:
    return EngineRequest(
        messages=question(agent, names),
        model=model,
        output_schema=agent.output_schema,
        temperature=agent.temperature,
        top_p=agent.top_p,
        adapter=agent.adapter,
        priority=priority,
        max_tokens=agent.max_tokens,
        seed=agent.seed,
        stop=agent.stop,
        logprobs=agent.logprobs,
    )


async def _ask_on(
    engine: Engine,
    request: EngineRequest,
    clock: _Clock,
    on_delta: Callable[[str], None] | None,
    prefix: str,
) -> Completion:
    """The answer, continued from a prefix where the engine can; `on_delta` hears the prefix too."""
    if not (prefix and continues(engine)):
        return await _ask(engine, request, clock, on_delta)
    heard = 0

    def hear(piece: str) -> None:
        nonlocal heard
        if on_delta is not None:
            if not heard:
                on_delta(prefix)
            on_delta(piece)
        heard += 1

    try:
        answer = await _ask(engine, msgspec.structs.replace(request, prefix=prefix), clock, hear)
    except EngineRefused:
        if heard:
            raise
        return await _ask(engine, request, clock, on_delta)  # it would not have begun so
    if not heard and on_delta is not None:
        on_delta(prefix)
    return answer


async def _ask(
    engine: Engine,
    request: EngineRequest,
    clock: _Clock,
    on_delta: Callable[[str], None] | None,
    is_enough: Callable[[], bool] | None = None,
) -> Completion:
    """A whole, non-empty answer."""
    timed = msgspec.structs.replace(request, timeout_s=clock.left_s())
    server_url: Callable[[str], str] | None = getattr(engine, "server_url", None)
    with asking(engine.name, timed, server=server_url(timed.model) if server_url else "") as asked:
        answer = await complete(engine, timed, on_delta=on_delta, on_first=asked.hears, is_enough=is_enough)
        asked.is_answered(answer)
    if answer.finish_reason == "refused":
        raise ContentRefused(f"engine {engine.name!r} declined to answer: its content filter stopped it")
    if answer.finish_reason == "cancelled":
        raise EngineError(f"engine {engine.name!r} cancelled the answer")
    if answer.finish_reason == "length" and request.output_schema is not None:
        raise OutputInvalid(
            f"the answer was cut off after {answer.usage.output_tokens} tokens, so its JSON is not whole; "
            f"raise max_tokens (now {request.max_tokens!r}) or ask for less"
        )
    if not answer.text.strip():
        raise EngineError(
            f"engine {engine.name!r} gave an empty answer (finish reason {answer.finish_reason!r}); "
            + (
                "where a model thinks before it answers, raise max_tokens"
                if answer.finish_reason == "length"
                else "give the node some attempts (retry: 3), or change the prompt"
            )
        )
    return answer


def _repair(request: EngineRequest, answer: str, wrong: str) -> EngineRequest:
    """The question again, with the answer and what is wrong with it."""
    schema = msgspec.json.encode(request.output_schema).decode()
    correction = (
        f"That answer does not fit the required JSON Schema: {wrong}\n\n"
        f"The schema: {schema}\n\nAnswer again, with the corrected JSON and nothing else."
    )
    more = (Message("assistant", answer), Message("user", correction))
    return msgspec.structs.replace(request, messages=(*request.messages, *more))


def _json_values(text: str) -> Iterator[tuple[int, Any]]:
    """The JSON values in `text`, each with its length: the whole, those in fences, those amid prose."""
    for part in (text, *_FENCED.findall(text)):
        value = _decoded(part.strip())
        if value is not None:
            yield len(part), value[0]
    place = 0
    for _ in range(_MAX_OPENS):
        opening = _OPENS.search(text, place)
        if opening is None:
            return
        value = _decoded(text, opening.start())
        place = opening.start() + 1 if value is None else value[1]
        if value is not None:
            yield place - opening.start(), value[0]


def _decoded(text: str, start: int | None = None) -> tuple[Any, int] | None:
    """The value at `start` and where it ends; without `start`, the value that is the whole text."""
    try:
        return (_decoder.decode(text), len(text)) if start is None else _decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def _model(engine: Engine, model: str | None) -> ModelName:
    """The model inside `engine`; an engine given by the caller may be none of the registry's."""
    scheme, _, name = configured(model).partition(":")
    return ModelName(engine.name, name if scheme == engine.name else "")


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
