"""Keeps one engine alive: hears of its death, notices when it hangs, starts it again, and knows when to stop.

An engine that takes requests and does nothing for them is not healthy, whatever its process looks like. So when it gave
no token and read no prompt for a while although there are requests, it is asked for one token; if that does not come
either, and nothing else does, it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import structlog

from mosaic_queues.errors import EngineGone, MosaicError
from mosaic_routing.inventory import EngineState
from mosaic_tasks.engines.protocol import EngineLoad, EngineRequest, Events, Message
from mosaic_tasks.engines.vllm.engine import START_S, VLLMEngine
from mosaic_tasks.engines.vllm.spec import ModelSpec

log = structlog.get_logger(__name__)


class Supervision(msgspec.Struct, frozen=True):
    """How an engine is watched.

    Attributes:
        start_s: a start may take so long.
        probe_s: no token and no part of a prompt read for so long, though there are requests: it is asked for a token,
            and has as long again.
        look_s: how often that is looked at.
        deaths: after so many within `window_s` it is not started again.
        base_s: pause before the first restart; it doubles with each further death, up to `max_s`.
    """

    start_s: float = START_S
    probe_s: float = 30.0
    look_s: float = 1.0
    deaths: int = 4
    window_s: float = 900.0
    base_s: float = 1.0
    max_s: float = 60.0


def pause_s(deaths: int, policy: Supervision, *, share: float) -> float:
    """The pause before a restart, after so many deaths within the window.

    Args:
        deaths: 1 or more.
        policy: base and maximum.
        share: 0 to 1, drawn by chance, so that workers do not all start at once; half of the pause hangs on it.
    """
    longest = min(policy.max_s, policy.base_s * 2.0 ** (deaths - 1))
    return longest * (1 + share) / 2


class Supervisor:
    """The engine `vllm:<alias>` as workers host it.

    Args:
        spec: which model, and how.
        policy: how it is watched.
        on_give_up: is called once, with the reason, when the engine is not started again.

    Attributes:
        phase: how far its last start came.
    """

    name = "vllm"
    continues = True

    def __init__(
        self,
        spec: ModelSpec,
        *,
        policy: Supervision | None = None,
        on_give_up: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.spec = spec
        self._policy = policy or Supervision()
        self._on_give_up = on_give_up
        self.phase = ""
        self._engine: VLLMEngine | None = None
        self._absent = "it has not started yet"
        self._deaths: deque[float] = deque()
        self._watching: asyncio.Task[None] | None = None

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Starts the engine; it is watched from then on. A start that fails is not tried again.

        Raises:
            ConfigurationError: the spec, the folder or an adapter is of no use.
            EngineError: it cannot start.
        """
        self._engine = await self._started(progress)
        self._watching = asyncio.create_task(self._watch(self._engine), name=f"watch {self.spec.alias}")

    async def aclose(self) -> None:
        """Ends the engine and all its processes."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
        self._absent = "it was closed"
        if self._engine is not None:
            await self._engine.aclose()
            self._engine = None

    def stream(self, request: EngineRequest) -> Events:
        """See `Engine.stream`; overloaded while the engine restarts."""
        return self._absence() if self._engine is None else self._engine.stream(request)

    async def warm(self, messages: Sequence[Message]) -> None:
        """See `VLLMEngine.warm`; nothing while the engine restarts."""
        if self._engine is not None:
            await self._engine.warm(messages)

    def load(self) -> EngineLoad:
        """See `VLLMEngine.load`; no slots while the engine restarts."""
        return EngineLoad() if self._engine is None else self._engine.load()

    def pids(self) -> list[int]:
        """The processes of the engine."""
        return [] if self._engine is None else self._engine.pids()

    @property
    def ready(self) -> bool:
        """Whether the engine takes requests."""
        return self._engine is not None and not self._engine.dead.is_set()

    @property
    def state(self) -> EngineState:
        """As the inventory tells it."""
        if self.ready:
            return "ready"
        return "restarting" if self._deaths or self._engine is not None else "loading"

    async def _absence(self) -> Events:
        raise EngineGone(f"engine {self.spec.alias!r} takes no requests: {self._absent}")
        yield  # this is a generator, as `Engine.stream` has to be

    async def _started(self, progress: Callable[[str], None]) -> VLLMEngine:
        engine = VLLMEngine(self.spec)
        engine.after_death = "it restarts"

        def reach(phase: str) -> None:
            self.phase = phase
            progress(phase)

        await engine.start(reach, timeout_s=self._policy.start_s)
        return engine

    async def _watch(self, engine: VLLMEngine) -> None:
        current: VLLMEngine | None = engine
        try:
            while current is not None:
                await self._until_dead(current)
                current = await self._replaced(current)
        except Exception as error:
            log.exception("engine.unwatched", what="watching an engine failed", model=self.spec.alias)
            if self._engine is not None:
                await self._engine.aclose()
            self._give_up(
                f"engine {self.spec.alias!r} is not watched any more: {type(error).__name__}: {error}"
            )

    async def _replaced(self, dead: VLLMEngine) -> VLLMEngine | None:
        """The engine in the place of a dead one; None when there will be none."""
        self._engine, self._absent = None, f"it died: {dead.cause}; it restarts"
        self._deaths.append(time.monotonic())
        log.error(
            "engine.died",
            what="an engine died; its calls go to other attempts",
            model=self.spec.alias,
            cause=dead.cause,
            streams=dead.cut_off,
        )
        self.phase = dead.cause
        await dead.aclose()
        self._engine = await self._restarted(dead.cause)
        return self._engine

    async def _until_dead(self, engine: VLLMEngine) -> None:
        while not engine.dead.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(engine.dead.wait(), self._policy.look_s)
            quiet_s = engine.quiet_s
            if not engine.dead.is_set() and quiet_s > self._policy.probe_s:
                await self._probe(engine, quiet_s)

    async def _probe(self, engine: VLLMEngine, quiet_s: float) -> None:
        before = engine.meter.worked_at
        try:
            await engine.probe(self._policy.probe_s)
        except MosaicError as error:
            if engine.meter.worked_at > before:
                return  # it is full, and works on the others
            running = engine.load().running
            engine.kill(f"it hung: no token for {quiet_s:.0f} s with {running} requests, then {error}")

    async def _restarted(self, cause: str) -> VLLMEngine | None:
        """Another engine, as soon as one starts; None when that is given up."""
        while True:
            recent = self._recent_deaths()
            if recent >= self._policy.deaths:
                self._give_up(
                    f"engine {self.spec.alias!r} died {recent} times within {self._policy.window_s:g} s, "
                    f"the last time: {cause}; it is not started again"
                )
                return None
            wait_s = pause_s(recent, self._policy, share=random.random())  # noqa: S311
            log.info(
                "engine.restarts",
                what="an engine starts again",
                model=self.spec.alias,
                wait_s=round(wait_s, 1),
            )
            await asyncio.sleep(wait_s)
            try:
                engine = await self._started(lambda _: None)
            except (MosaicError, OSError) as error:
                self._deaths.append(time.monotonic())
                cause = str(error)
                log.error(
                    "engine.restart_failed",
                    what="an engine did not start",
                    model=self.spec.alias,
                    cause=cause,
                )
                continue
            log.info("engine.restarted", what="an engine answers again", model=self.spec.alias)
            return engine

    def _recent_deaths(self) -> int:
        while self._deaths and self._deaths[0] < time.monotonic() - self._policy.window_s:
            self._deaths.popleft()
        return len(self._deaths)

    def _give_up(self, reason: str) -> None:
        self._engine, self._absent = None, reason
        log.error(
            "engine.given_up", what="an engine is not started again", model=self.spec.alias, reason=reason
        )
        self._on_give_up(reason)
