"""How busy an engine is, from what vLLM tells in each of its steps, and how many more requests fit.

A request that does not fit makes vLLM preempt another: its KV cache is dropped and computed again. So a worker takes
only as many as fit by the length that requests here have had, and the others wait in their queue.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from mosaic_tasks.engines.protocol import EngineLoad

WINDOW_S = 5.0
TOGETHER_S = 0.1
"""Steps of so long are summed up at once: an engine makes hundreds a second."""
_LENGTHS = 256
"""So many finished requests tell how long the next one will be."""
_FIRST_GUESS = 1024
"""Tokens of a request, as long as none has finished."""
_LONG_PROMPT = 256
"""Prompts of which so many tokens are read tell how fast that goes; the time of shorter ones is that of a step."""
_FADING = 0.9
"""By so much what was read counts less with each such prompt."""
_SCHEDULED, _PREEMPTED = 2, 3
"""Of vLLM's `EngineCoreEventType`."""


class Step(msgspec.Struct):
    """One step of the engine, or the sum of several."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    firsts: int = 0
    first_s: float = 0.0
    gaps: int = 0
    gap_s: float = 0.0
    looked_up: int = 0
    found: int = 0

    def add(self, other: Step) -> None:
        """Sums field by field."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def free_slots(
    *, blocks: int, block_tokens: int, kv_use: float, taken: int, expected_tokens: float, most: int
) -> int:
    """How many more requests fit into the KV cache, if they become as long as `expected_tokens`.

    Those in the engine are counted as they will be, not as they are: they still grow.

    Args:
        blocks: of the KV cache.
        block_tokens: tokens in a block.
        kv_use: part of the blocks that is in use, 0 to 1.
        taken: requests in the engine, running or waiting.
        expected_tokens: of a whole request, prompt and answer.
        most: requests that the engine runs at once.
    """
    each = max(1, math.ceil(expected_tokens / block_tokens))
    bound = max(math.ceil(kv_use * blocks), taken * each)
    # One always fits when nothing runs, whatever is expected: it could not wait for anything.
    fit = max((blocks - bound) // each, 0 if taken else 1)
    return max(0, min(fit, most - taken))


def expected_tokens(lengths: deque[int], *, longest: int) -> float:
    """Tokens of the next request: the mean of the last ones and one standard deviation, `longest` at most."""
    if not lengths:
        return min(_FIRST_GUESS, longest)
    mean = sum(lengths) / len(lengths)
    variance = sum((length - mean) ** 2 for length in lengths) / len(lengths)
    return min(mean + math.sqrt(variance), longest)


class Meter:
    """Sums up the steps of one engine.

    Args:
        now: clock, in seconds.
        wall: the time of day, by which vLLM knows when a request arrived.

    Attributes:
        running, waiting, kv_use: what vLLM told after its last step.
        preempted: requests that vLLM took out of its batch, since the start.
        worked_at: when the engine last got on with a request, by the clock: a token, or a part of a prompt.
    """

    def __init__(
        self, *, now: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._now, self._wall = now, wall
        self._step = Step()
        self._steps: deque[tuple[float, Step]] = deque()
        self._begun = now()
        self._lengths: deque[int] = deque(maxlen=_LENGTHS)
        self._read_tokens = self._read_s = 0.0
        self.running = 0
        self.waiting = 0
        self.kv_use = 0.0
        self.preempted = 0
        self.worked_at = now()

    def came(self, request: Any, output: Any, at_s: float, *_: Any) -> None:
        """Takes one output of a step that is going on; is called for each token, so it does no more than it has to.

        Args:
            request: vLLM's `RequestState`, as it was before.
            output: vLLM's `EngineCoreOutput`.
            at_s: when EngineCore gave it, by the clock of its events.
        """
        step, stats = self._step, request.stats
        step.generated_tokens += len(output.new_token_ids)
        if request.is_prefilling:
            self._begins(output, stats.arrival_time, at_s)
        else:
            step.gaps += 1
            step.gap_s += at_s - stats.last_token_ts
        stats.last_token_ts = at_s
        if output.events:
            self.preempted += sum(event.type == _PREEMPTED for event in output.events)

    def record(self, scheduler: Any) -> None:
        """A step is over: takes vLLM's `SchedulerStats`, or None."""
        step, self._step = self._step, Step()
        if scheduler is not None:
            self.running = scheduler.num_running_reqs
            self.waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self.kv_use = scheduler.kv_cache_usage
            step.looked_up = scheduler.prefix_cache_stats.queries
            step.found = scheduler.prefix_cache_stats.hits
        now = self._now()
        # A step that reads a part of a long prompt gives no token, and is told with the queue only.
        if step.generated_tokens or (scheduler is not None and self.running):
            self.worked_at = now
        if self._steps and now - self._steps[-1][0] < TOGETHER_S:
            self._steps[-1][1].add(step)
        else:
            self._steps.append((now, step))
            self._forget()

    def finished(self, tokens: int) -> None:
        """Takes the length of an answered request, prompt included; those for probing and warming tell nothing."""
        self._lengths.append(tokens)

    def load(self, *, taken: int, blocks: int, block_tokens: int, most: int, longest: int) -> EngineLoad:
        """The load at this moment.

        Args:
            taken: requests in the engine, as its user counts them.
            blocks, block_tokens, most: see `free_slots`.
            longest: tokens that one request may have.
        """
        self._forget()
        total = Step()
        for _, step in self._steps:
            total.add(step)
        over_s = min(WINDOW_S, max(self._now() - self._begun, 1e-3))
        # vLLM's own count lags by a step, and stays where it drops the last request: together they are what is taken.
        running = min(self.running, taken)
        kv_use = self.kv_use if taken else 0.0
        return EngineLoad(
            running=running,
            waiting=taken - running,
            slots=free_slots(
                blocks=blocks,
                block_tokens=block_tokens,
                kv_use=kv_use,
                taken=taken,
                expected_tokens=expected_tokens(self._lengths, longest=longest),
                most=most,
            ),
            kv_use=kv_use,
            prompt_tokens_s=total.prompt_tokens / over_s,
            generated_tokens_s=total.generated_tokens / over_s,
            ttft_s=total.first_s / max(total.firsts, 1),
            inter_token_s=total.gap_s / max(total.gaps, 1),
            prefix_hits=total.found / max(total.looked_up, 1),
            preempted=self.preempted,
            prefill_tokens_s=self._read_tokens / self._read_s if self._read_s else 0.0,
        )

    def _begins(self, output: Any, arrived: float, at_s: float) -> None:
        """The first output of a request: its prompt is read."""
        self._step.firsts += 1
        self._step.first_s += self._wall() - arrived
        read = output.prefill_stats
        if read is not None:
            self._step.prompt_tokens += read.num_prompt_tokens
            events = output.events or ()
            begun = next((event.timestamp for event in events if event.type == _SCHEDULED), at_s)
            self._note_reading(read.num_computed_tokens, at_s - begun)

    def _note_reading(self, tokens: int, taken_s: float) -> None:
        if tokens >= _LONG_PROMPT and taken_s > 0:
            self._read_tokens = _FADING * self._read_tokens + tokens
            self._read_s = _FADING * self._read_s + taken_s

    def _forget(self) -> None:
        old = self._now() - WINDOW_S
        while self._steps and self._steps[0][0] < old:
            self._steps.popleft()


def stat_logger(meter: Meter) -> Any:
    """What AsyncLLM takes as one of its `stat_loggers`: it tells `meter` when a step is over.

    It stands in the place of vLLM's own Prometheus logger, which is added otherwise, takes an eighth of the loop's
    time, and which nobody reads here. Without any, EngineCore tells nothing of its queue.
    """
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class _Logger(PrometheusStatLogger):
        def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
            pass

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            meter.record(scheduler_stats)

        def record_admission_rejection(self, reason: str) -> None:
            pass

        def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
            pass

        def log_engine_initialized(self) -> None:
            pass

    return _Logger


def tell_outputs(llm: Any, meter: Meter) -> None:
    """Has an AsyncLLM tell `meter` of each output, in the place of its own statistics of them, which are lists to which
    each token adds: a twentieth of the loop's time.

    Args:
        llm: has had no request yet: with the first one it begins to handle outputs, as `log_stats` says then.
    """
    processor = llm.output_processor
    assert callable(processor._update_stats_from_output)  # else another vLLM would tell nothing
    llm.log_stats = False
    processor._update_stats_from_output = meter.came
