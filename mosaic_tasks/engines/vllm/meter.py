"""How busy an engine is, from what vLLM tells after each of its steps, and how many more requests fit.

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

    Attributes:
        running, waiting, kv_use: what vLLM told after its last step.
        preempted: requests that vLLM took out of its batch, since the start.
        worked_at: when the engine last got on with a request, by the clock: a token, or a part of a prompt.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._steps: deque[tuple[float, Step]] = deque()
        self._begun = now()
        self._lengths: deque[int] = deque(maxlen=_LENGTHS)
        self._read_tokens = self._read_s = 0.0
        self.running = 0
        self.waiting = 0
        self.kv_use = 0.0
        self.preempted = 0
        self.worked_at = now()

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Takes vLLM's `SchedulerStats` and `IterationStats`; either may be None."""
        step = Step()
        if scheduler is not None:
            self.running = scheduler.num_running_reqs
            self.waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self.kv_use = scheduler.kv_cache_usage
            step.looked_up = scheduler.prefix_cache_stats.queries
            step.found = scheduler.prefix_cache_stats.hits
        if iteration is not None:
            self._read(iteration, step)
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

    def _read(self, iteration: Any, step: Step) -> None:
        step.prompt_tokens = iteration.num_prompt_tokens
        step.generated_tokens = iteration.num_generation_tokens
        step.firsts = len(iteration.time_to_first_tokens_iter)
        step.first_s = sum(iteration.time_to_first_tokens_iter)
        step.gaps = len(iteration.inter_token_latencies_iter)
        step.gap_s = sum(iteration.inter_token_latencies_iter)
        self.preempted += iteration.num_preempted_reqs
        for request in iteration.finished_requests:
            self._note_reading(request.num_prompt_tokens - request.num_cached_tokens, request.prefill_time)

    def _note_reading(self, tokens: int, taken_s: float) -> None:
        if tokens >= _LONG_PROMPT and taken_s > 0:
            self._read_tokens = _FADING * self._read_tokens + tokens
            self._read_s = _FADING * self._read_s + taken_s

    def _forget(self) -> None:
        old = self._now() - WINDOW_S
        while self._steps and self._steps[0][0] < old:
            self._steps.popleft()


def stat_logger(meter: Meter) -> Any:
    """What AsyncLLM takes as one of its `stat_loggers`: it tells `meter`.

    It stands in the place of vLLM's own Prometheus logger, which is added otherwise, takes an eighth of the loop's
    time, and which nobody reads here.
    """
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class _Logger(PrometheusStatLogger):
        def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            meter.record(scheduler_stats, iteration_stats)

        def record_admission_rejection(self, reason: str) -> None:
            pass

        def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
            pass

        def log_engine_initialized(self) -> None:
            pass

    return _Logger
