"""Has engines read the static beginning of a prompt while what it waits for is still written.

The call that follows then finds the beginning in the prefix cache, so that its first token comes sooner. It is done at
the lowest priority, and only where a hosted engine can: elsewhere it would cost tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

import structlog

from mosaic_queues.errors import MosaicError
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.definition.templates import lead
from mosaic_tasks.engines.protocol import Message
from mosaic_tasks.engines.registry import engine_for
from mosaic_tasks.execution.prepared import PreparedPlan

log = structlog.get_logger(__name__)

WORTH_CHARS = 400
"""A shorter beginning is read in no time."""
KEPT_S = 60.0
"""What was warmed so recently is taken to be warm."""
KEPT = 1024


class Warms(Protocol):
    """An engine with a prefix cache."""

    async def warm(self, messages: Sequence[Message]) -> None:
        """Reads a beginning into the cache."""


def beginning(agent: AgentPlan) -> tuple[Message, ...]:
    """What every question to an agent begins with; none where that is too short to matter."""
    system = lead(agent.system)
    prompt = lead(agent.prompt) if system == agent.system else ""  # else they differ before the prompt begins
    if len(system) + len(prompt) < WORTH_CHARS:
        return ()
    messages = (Message("system", system), Message("user", prompt))
    return tuple(message for message in messages if message.content.strip())


class Warmer:
    """Warms each beginning once in a while. Lives on one event loop.

    Args:
        start: runs a coroutine beside everything else.
    """

    def __init__(self, start: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._start = start
        self._warmed: dict[tuple[str | None, tuple[Message, ...]], float] = {}

    def while_running(self, plan: PreparedPlan, number: int) -> None:
        """A node begins: what reads it will follow."""
        for agent in plan.agents_after(number):
            messages = beginning(agent)
            if messages and self._is_due(agent.model, messages):
                for engine in _warming(agent.model):
                    self._start(self._warm(engine, messages))

    def _is_due(self, model: str | None, messages: tuple[Message, ...]) -> bool:
        now, key = time.monotonic(), (model, messages)
        if now - self._warmed.get(key, -KEPT_S) < KEPT_S:
            return False
        if len(self._warmed) >= KEPT:
            self._warmed.clear()
        self._warmed[key] = now
        return True

    async def _warm(self, engine: Warms, messages: Sequence[Message]) -> None:
        try:
            await engine.warm(messages)
        except MosaicError as error:
            log.info("warming.failed", what="a prompt's beginning was not warmed", error=str(error))


def _warming(model: str | None) -> Iterator[Warms]:
    """The engine of a model, where this process hosts one that can."""
    if model is None or not model.startswith("vllm:"):
        return
    try:
        engine: Any = engine_for(model)
    except MosaicError:
        return  # another worker hosts it
    if hasattr(engine, "warm"):
        yield engine
