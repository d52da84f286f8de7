"""Engines for tests: a loop that lasts as long as its engine, and specs that suit a machine without a GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from mosaic_tasks.engines.protocol import EngineRequest, Message
from mosaic_tasks.engines.vllm.spec import ModelSpec

_T = TypeVar("_T")


class _Startable(Protocol):
    async def start(self) -> None: ...

    async def aclose(self) -> None: ...


_E = TypeVar("_E", bound=_Startable)


class Hosted(Generic[_E]):
    """An engine and the loop that it lives on."""

    def __init__(self, engine: _E, runner: asyncio.Runner) -> None:
        self.engine = engine
        self._runner = runner

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs `work` on the engine's loop."""
        return self._runner.run(work)


@contextmanager
def hosted(engine: _E) -> Iterator[Hosted[_E]]:
    """Starts the engine on a loop of its own, and ends both."""
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            yield Hosted(engine, runner)
        finally:
            runner.run(engine.aclose())


def small(model: Path, **fields: Any) -> ModelSpec:
    """A spec with short prompts in mind: small blocks show prefix caching, a small cache starts at once."""
    options = {"block_size": 32, **fields.pop("options", {})}
    return ModelSpec(
        model=str(model), **{"kv_memory_gb": 1 / 16, "max_length": 1024} | fields, options=options
    )


def ask(text: str, **fields: Any) -> EngineRequest:
    """A request that gives the same answer each time."""
    return EngineRequest(messages=(Message("user", text),), **{"temperature": 0.0, "max_tokens": 24} | fields)
