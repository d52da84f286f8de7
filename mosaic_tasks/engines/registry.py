"""Which engine answers for a model: `openai:<name>`, `replay:<file>`, `vllm:<alias>`, `simulated:<alias>`,
`extractive`.

Connection pools belong to an event loop, so there is one instance of an engine per process and loop. Those of `vllm`
and `simulated` are not made here: a worker starts them and says that it hosts them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from difflib import get_close_matches

import msgspec
from rapidfuzz import process
from rapidfuzz.distance import DamerauLevenshtein

from mosaic_queues.errors import ConfigurationError, EngineRefused
from mosaic_routing.queues import HOSTED_ENGINES, queue_for
from mosaic_routing.serving import worker_commands
from mosaic_tasks.engines.extractive import ExtractiveEngine
from mosaic_tasks.engines.protocol import Engine
from mosaic_tasks.engines.replay import ReplayEngine

DEFAULT_MODEL = "extractive"


def _openai() -> Engine:
    from mosaic_tasks.engines.openai import OpenAIEngine  # half a second that only its users shall pay

    return OpenAIEngine()


_FACTORIES: dict[str, Callable[[], Engine]] = {
    "extractive": ExtractiveEngine,
    "openai": _openai,
    "replay": ReplayEngine,
}
_NEEDED = {"openai": "model", "replay": "file", **dict.fromkeys(sorted(HOSTED_ENGINES), "model")}
"""What has to be named after the colon."""
_KNOWN = HOSTED_ENGINES | _FACTORIES.keys()
_TYPOS = 2
"""So many letters too many, too few, wrong or exchanged are a misspelling."""

_engines: dict[asyncio.AbstractEventLoop, dict[str, Engine]] = {}
"""By the name of an engine, or by the whole model's where it is hosted."""
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
    if engine not in _KNOWN:
        raise EngineRefused(_unknown(wanted, engine))
    if (needed := _NEEDED.get(engine)) and not name:
        raise EngineRefused(f"model {wanted!r} names no {needed}; write '{engine}:<name of the {needed}>'")
    return ModelName(engine, name)


def engine_for(model: str | None = None) -> Engine:
    """The engine for `model` in the running event loop; close it by `close_engines`.

    Raises:
        EngineRefused: no engine has that name, it lacks its key, or this worker does not host it.
        ConfigurationError: a setting of that engine has no usable value.
        RuntimeError: no event loop runs.
    """
    wanted = model_name(model)
    scheme = str(wanted) if wanted.engine in HOSTED_ENGINES else wanted.engine
    loop = asyncio.get_running_loop()
    with _lock:
        _forget_closed_loops()
        engines = _engines.setdefault(loop, {})
        if scheme not in engines:
            if wanted.engine in HOSTED_ENGINES:
                raise EngineRefused(_not_hosted(wanted))
            engines[scheme] = _FACTORIES[scheme]()
        return engines[scheme]


def host(engine: Engine, alias: str) -> None:
    """Makes `engine` answer for `NAME:ALIAS` on the running event loop, by its name; `close_engines` closes it too.

    Raises:
        ConfigurationError: another engine does already.
        RuntimeError: no event loop runs.
    """
    loop = asyncio.get_running_loop()
    with _lock:
        _forget_closed_loops()
        hosted = _engines.setdefault(loop, {})
        if hosted.setdefault(str(ModelName(engine.name, alias)), engine) is not engine:
            raise ConfigurationError(
                f"two models are called {alias!r}; give one of them another alias in its spec"
            )


def meant_engine(model: str) -> str | None:
    """The engine whose name was perhaps misspelt in `model`; None where it is right, or like none."""
    engine = model.partition(":")[0]
    near = process.extractOne(engine, sorted(_KNOWN), scorer=DamerauLevenshtein.distance, score_cutoff=_TYPOS)
    if engine in _KNOWN or near is None:
        return None
    from mosaic_tasks.engines.endpoints import load_endpoints  # what only a misspelling shall pay

    return None if engine in load_endpoints() else near[0]


async def close_engines() -> None:
    """Closes the engines of the running event loop; call it before the loop ends."""
    with _lock:
        engines = _engines.pop(asyncio.get_running_loop(), {})
    for engine in engines.values():
        await engine.aclose()


def _forget_closed_loops() -> None:
    for loop in [loop for loop in _engines if loop.is_closed()]:
        del _engines[loop]


def _not_hosted(wanted: ModelName) -> str:
    command = worker_commands([queue_for("agent", str(wanted))])
    return f"this worker does not host the model {str(wanted)!r}; start one that does with: {command}"


def _unknown(wanted: str, engine: str) -> str:
    known = ", ".join(
        f"'{name}:<{_NEEDED[name]}>'" if name in _NEEDED else repr(name) for name in sorted(_KNOWN)
    )
    near = get_close_matches(engine, _KNOWN, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no engine is called {engine!r} (model {wanted!r}); known: {known}{hint}"
