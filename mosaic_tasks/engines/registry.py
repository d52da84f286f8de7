"""Which engine answers for a model: `openai:<name>`, `extractive`.

Connection pools belong to an event loop, so there is one instance of an engine per process and loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from difflib import get_close_matches

import msgspec

from mosaic_queues.errors import EngineRefused
from mosaic_tasks.engines.extractive import ExtractiveEngine
from mosaic_tasks.engines.protocol import Engine

DEFAULT_MODEL = "extractive"


def _openai() -> Engine:
    from mosaic_tasks.engines.openai import OpenAIEngine  # half a second that only its users shall pay

    return OpenAIEngine()


_FACTORIES: dict[str, Callable[[], Engine]] = {"extractive": ExtractiveEngine, "openai": _openai}
_NEEDS_NAME = frozenset({"openai"})

_engines: dict[asyncio.AbstractEventLoop, dict[str, Engine]] = {}
_lock = threading.Lock()


class ModelName(msgspec.Struct, frozen=True):
    """A model as people write it, taken apart; `str()` gives it back."""

    engine: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.engine}:{self.name}" if self.name else self.engine


def configured(model: str | None = None) -> str:
    """`model`, or what `MOSAIC_MODEL` says, or the default."""
    return model or os.environ.get("MOSAIC_MODEL") or DEFAULT_MODEL


def model_name(model: str | None = None) -> ModelName:
    """The parts of `model`, or of `MOSAIC_MODEL`, or of the default.

    Raises:
        EngineRefused: no engine has that name.
    """
    wanted = configured(model)
    engine, _, name = wanted.partition(":")
    if engine not in _FACTORIES:
        raise EngineRefused(_unknown(wanted, engine))
    if engine in _NEEDS_NAME and not name:
        raise EngineRefused(f"model {wanted!r} names no model; write '{engine}:<name of the model>'")
    return ModelName(engine, name)


def engine_for(model: str | None = None) -> Engine:
    """The engine for `model` in the running event loop; close it by `close_engines`.

    Raises:
        EngineRefused: no engine has that name, or it lacks its key.
        RuntimeError: no event loop runs.
    """
    scheme = model_name(model).engine
    loop = asyncio.get_running_loop()
    with _lock:
        _forget_closed_loops()
        engines = _engines.setdefault(loop, {})
        if scheme not in engines:
            engines[scheme] = _FACTORIES[scheme]()
        return engines[scheme]


async def close_engines() -> None:
    """Closes the engines of the running event loop; call it before the loop ends."""
    with _lock:
        engines = _engines.pop(asyncio.get_running_loop(), {})
    for engine in engines.values():
        await engine.aclose()


def _forget_closed_loops() -> None:
    for loop in [loop for loop in _engines if loop.is_closed()]:
        del _engines[loop]


def _unknown(wanted: str, engine: str) -> str:
    known = ", ".join(
        f"'{name}:<model>'" if name in _NEEDS_NAME else repr(name) for name in sorted(_FACTORIES)
    )
    near = get_close_matches(engine, _FACTORIES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no engine is called {engine!r} (model {wanted!r}); known: {known}{hint}"
