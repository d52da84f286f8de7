"""A simulated GPU, `simulated:<alias>`: it answers from recordings, at the pace of a machine that is not there.

For benchmarks of routing and for tests of what happens when machines fail. Nothing is computed, and whatever tells of
it says "simulated". What it does is simple enough to be reckoned by hand:

- *Slots*: so many requests run side by side. More wait inside, in the order in which they came.
- *Prefill*: a request's prompt is read before its answer is written; one prompt at a time, each at the whole speed, as
  a GPU does whose arithmetic one long prompt fills. Answers of others go on meanwhile (chunked prefill).
- *Decode*: each answer is written at one speed, however many run beside it: reading the weights takes the time, and one
  reading serves all.
- *Prefix cache*: blocks of the prompts that were read; what leads a prompt and is there is not read again. The least
  recently used goes first, a prompt's end before its beginning.

`docs/replay.md` tells how to write a spec and recordings.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import structlog
from pydantic import BaseModel, ConfigDict, Field

from mosaic_queues.errors import CallTimeout, ConfigurationError, EngineGone, EngineRefused
from mosaic_routing.affinity import fingerprints
from mosaic_routing.inventory import EngineState
from mosaic_tasks.engines.protocol import (
    CHARS_PER_TOKEN,
    EngineLoad,
    EngineRequest,
    Events,
    Finished,
    TextDelta,
)
from mosaic_tasks.engines.recordings import count_recordings, find
from mosaic_tasks.engines.replay import Timed, performance

log = structlog.get_logger(__name__)

WINDOW_S = 5.0
"""Rates and means are told of the requests that ended within so long."""

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Faults(_Part):
    """How a simulated GPU fails.

    Attributes:
        dies_after: it dies at the request of this number, and with it all that it has; counted anew from each start.
        hangs_after: from the request of this number on nothing goes on, until it is killed.
        hang_s: one that hangs is killed after so long.
        restart_s: it starts again after so long, with an empty cache, and fails again the same way: it flaps. Default:
            it is not started again, and its worker ends.
    """

    dies_after: Count | None = None
    hangs_after: Count | None = None
    hang_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    restart_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class SimulatedSpec(_Part):
    """A simulated GPU, as a worker hosts it.

    Attributes:
        simulated: says what it is.
        alias: what agents call it: `simulated:ALIAS`.
        recordings: file or directory of what it answers.
        slots: requests at once.
        prefill_tokens_s: tokens of prompts that it reads in a second.
        decode_tokens_s: tokens that it writes in a second for each request.
        first_token_s: between a prompt's last token and the answer's first.
        cache_blocks: of the prefix cache; 0: none.
        block_tokens: tokens in a block of it.
        chars_per_token: of prompts; below 1 each character stands for several tokens, so that long prompts are small.
        faults: how it fails.
    """

    simulated: Literal[True]
    alias: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    recordings: Path
    slots: Count = 8
    prefill_tokens_s: Rate = 10_000.0
    decode_tokens_s: Rate = 50.0
    first_token_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    cache_blocks: int = Field(default=0, ge=0)
    block_tokens: Count = 16
    chars_per_token: Rate = float(CHARS_PER_TOKEN)
    faults: Faults = Faults()


class PrefixCache:
    """The blocks of prompts that were read, each of the prompt up to its end; the least recently used go first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def known(self, blocks: Sequence[int]) -> int:
        """How many blocks lead a prompt and are there."""
        return next((place for place, block in enumerate(blocks) if block not in self._blocks), len(blocks))

    def keep(self, blocks: Sequence[int]) -> None:
        """A prompt was read."""
        for block in reversed(blocks):  # what begins a prompt is the newest, and goes last
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)


class _Prompt(NamedTuple):
    tokens: int
    blocks: tuple[int, ...]


class _Ended(NamedTuple):
    at_s: float
    first_s: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int


class _Life:
    """A simulated GPU from its start to its death."""

    def __init__(self, spec: SimulatedSpec) -> None:
        self.over, self.cause, self.is_hung = asyncio.Event(), "", False
        self.slots, self.reading = asyncio.Semaphore(spec.slots), asyncio.Lock()
        self.cache = PrefixCache(spec.cache_blocks)
        self.read_until_s = -math.inf
        self.requests = self.taken = 0


class SimulatedGpu:
    """The engine `simulated:<alias>` as workers host it.

    Args:
        spec: what is simulated.
        on_give_up: is called once, with the reason, when it is not started again.

    Attributes:
        phase: why it takes no requests.
    """

    name = "simulated"
    continues = True

    def __init__(self, spec: SimulatedSpec, *, on_give_up: Callable[[str], None] = lambda _: None) -> None:
        self.spec = spec
        self.phase = "it has not started yet"
        self._on_give_up = on_give_up
        self._life: _Life | None = None
        self._ended: deque[_Ended] = deque()
        self._later: asyncio.Task[None] | None = None
        self._lives = 0

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Returns at once.

        Raises:
            ConfigurationError: its recordings cannot be read.
        """
        try:
            count = await asyncio.to_thread(count_recordings, str(self.spec.recordings))
        except EngineRefused as error:
            raise ConfigurationError(f"simulated GPU {self.spec.alias!r}: {error}") from None
        progress(f"simulated, with {count} recordings")
        self._begin()

    async def aclose(self) -> None:
        """What it still has ends as with a machine that is switched off."""
        if self._later is not None:
            self._later.cancel()
        if self._life is not None:
            self._end(self._life, "it was closed")

    async def stream(self, request: EngineRequest) -> Events:
        """The recorded answer, piece by piece, each when the simulated GPU would have written it.

        Raises:
            EngineRefused: no recording answers.
            EngineGone: it died, or has not started again.
            CallTimeout: the answer takes longer than `request.timeout_s`.
        """
        asked_s, (pieces, finished) = _now_s(), self._performance(request)
        deadline_s = asked_s + (math.inf if request.timeout_s is None else request.timeout_s)
        async with self._slot(deadline_s) as life:
            prompt = self._prompt(request)
            cached, read_s = await self._read(life, prompt, deadline_s)
            begun_s = read_s + self.spec.first_token_s
            for at_s, text in pieces:
                await self._until(life, begun_s + at_s, deadline_s)
                if text:
                    yield TextDelta(text)
            written = finished.usage.output_tokens
            await self._until(life, begun_s + written / self.spec.decode_tokens_s, deadline_s)
            self._ended.append(_Ended(_now_s(), begun_s - asked_s, prompt.tokens, cached, written))
        used = msgspec.structs.replace(finished.usage, input_tokens=prompt.tokens, cached_tokens=cached)
        yield msgspec.structs.replace(finished, usage=used)

    def load(self) -> EngineLoad:
        """What it does, and how fast it is; no slots while it is dead."""
        if (life := self._life) is None:
            return EngineLoad()
        spec, running, recent = self.spec, min(life.taken, self.spec.slots), self._recent()
        read = sum(one.input_tokens for one in recent)
        return EngineLoad(
            running=running,
            waiting=life.taken - running,
            slots=spec.slots - running,
            kv_use=running / spec.slots,
            prompt_tokens_s=read / WINDOW_S,
            generated_tokens_s=sum(one.output_tokens for one in recent) / WINDOW_S,
            ttft_s=sum(one.first_s for one in recent) / max(len(recent), 1),
            inter_token_s=1.0 / spec.decode_tokens_s,
            prefix_hits=sum(one.cached_tokens for one in recent) / max(read, 1),
            prefill_tokens_s=spec.prefill_tokens_s,
        )

    @property
    def ready(self) -> bool:
        """Whether it takes requests; one that hangs does, as nobody knows yet."""
        return self._life is not None

    @property
    def state(self) -> EngineState:
        """As the inventory tells it."""
        if self.ready:
            return "ready"
        return "restarting" if self._lives else "loading"

    # -- requests ------------------------------------------------------------------------------------------------------

    def _performance(self, request: EngineRequest) -> tuple[Timed, Finished]:
        """What is written when, from the first token on."""
        recording = find(str(self.spec.recordings), request)
        paced = msgspec.structs.replace(
            recording,
            deltas=(),
            first_token_s=0.0,
            tokens_per_s=self.spec.decode_tokens_s,
            prefill_tokens_per_s=None,
        )
        return performance(paced, request)

    def _prompt(self, request: EngineRequest) -> _Prompt:
        text = "\n".join((*(message.content for message in request.messages), request.prefix)).rstrip("\n")
        spec = self.spec
        block_chars = max(1, round(spec.block_tokens * spec.chars_per_token))
        blocks = fingerprints(text, block_chars=block_chars) if spec.cache_blocks else ()
        return _Prompt(max(1, math.ceil(len(text) / spec.chars_per_token)), blocks)

    @contextlib.asynccontextmanager
    async def _slot(self, deadline_s: float) -> AsyncIterator[_Life]:
        """The machine, once it has room for one request more."""
        if (life := self._life) is None:
            raise EngineGone(f"simulated GPU {self.spec.alias!r} takes no requests: {self.phase}")
        life.taken += 1
        try:
            self._fail(life)
            try:
                async with asyncio.timeout_at(_when(deadline_s)):
                    await life.slots.acquire()
            except TimeoutError:
                raise self._late() from None
            try:
                yield life
            finally:
                life.slots.release()
        finally:
            life.taken -= 1

    async def _read(self, life: _Life, prompt: _Prompt, deadline_s: float) -> tuple[int, float]:
        """Reads a prompt after those before it. Returns its cached tokens, and when it was read.

        Times are reckoned from when they were due, so that late timers do not add up.
        """
        entered_s = _now_s()
        async with life.reading:
            cached = min(life.cache.known(prompt.blocks) * self.spec.block_tokens, prompt.tokens - 1)
            unread_s = (prompt.tokens - cached) / self.spec.prefill_tokens_s
            due_s = max(entered_s, life.read_until_s) + unread_s
            try:
                await self._until(life, due_s, deadline_s)
            finally:
                life.read_until_s = min(due_s, _now_s())
            life.cache.keep(prompt.blocks)
        return cached, due_s

    async def _until(self, life: _Life, due_s: float, deadline_s: float) -> None:
        """Returns when something is done.

        Raises:
            EngineGone: the machine died before.
            CallTimeout: time was up before.
        """
        is_over = await _is_over(life, min(due_s, deadline_s))
        if is_over or (life.is_hung and await _is_over(life, deadline_s)):
            raise EngineGone(f"simulated GPU {self.spec.alias!r} is gone: {life.cause}")
        if due_s > deadline_s or life.is_hung:
            raise self._late()

    def _late(self) -> CallTimeout:
        return CallTimeout(f"simulated GPU {self.spec.alias!r} did not answer in time")

    def _recent(self) -> Sequence[_Ended]:
        while self._ended and self._ended[0].at_s < _now_s() - WINDOW_S:
            self._ended.popleft()
        return self._ended

    # -- lives and deaths ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._life = _Life(self.spec)
        self._lives += 1
        self.phase = ""

    def _fail(self, life: _Life) -> None:
        """Counts a request, and fails where it is the one for that."""
        faults = self.spec.faults
        life.requests += 1
        if life.requests == faults.dies_after:
            self._die(life, f"it died at its request {life.requests}, as its spec says")
        elif life.requests == faults.hangs_after:
            life.is_hung = True
            self._later = asyncio.create_task(self._kill(life), name=f"kill {self.spec.alias}")

    async def _kill(self, life: _Life) -> None:
        await asyncio.sleep(self.spec.faults.hang_s)
        self._die(life, f"it hung for {self.spec.faults.hang_s:g} s, as its spec says, and was killed")

    def _die(self, life: _Life, cause: str) -> None:
        restart_s = self.spec.faults.restart_s
        self._end(life, cause)
        log.error("engine.died", what="a simulated GPU died", model=self.spec.alias, cause=cause)
        if restart_s is None:
            self._on_give_up(f"simulated GPU {self.spec.alias!r}: {cause}; it is not started again")
        else:
            self._later = asyncio.create_task(self._restart(restart_s), name=f"restart {self.spec.alias}")

    def _end(self, life: _Life, cause: str) -> None:
        life.cause = self.phase = cause
        life.over.set()
        self._life = None

    async def _restart(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._begin()
        log.info("engine.restarted", what="a simulated GPU answers again", model=self.spec.alias)


async def _is_over(life: _Life, until_s: float) -> bool:
    """Whether a machine dies before a time; others get their turn in any case."""
    try:
        async with asyncio.timeout_at(_when(until_s)):
            await life.over.wait()
    except TimeoutError:
        return False
    return True


def _when(at_s: float) -> float | None:
    return None if at_s == math.inf else at_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()


__all__ = ["Faults", "PrefixCache", "SimulatedGpu", "SimulatedSpec"]
