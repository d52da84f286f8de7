"""The process that submits, in the benchmark of routing: its router places each call. Asked by `routing.py`."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from mosaic_routing.inventory import engines
from mosaic_routing.queues import DIRECT_PREFIX
from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.placing import dispatching
from mosaic_tasks.execution.process import process_for

TIMEOUT_S = 120.0


def workers_answering(_count: int) -> int:
    """How many machines take requests."""
    return sum(report.state == "ready" for report in engines(process_for(app).client))


class Clock:
    """How long each call of a function took, in microseconds."""

    def __init__(self) -> None:
        self.took_us: list[float] = []

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return function(*arguments, **named)
            finally:
                self.took_us.append((time.perf_counter_ns() - begun) / 1e3)

        return timed


def workflow(name: str, agent: dict[str, Any], objective: str) -> Workflow:
    """One agent, which is asked what comes in."""
    return Workflow.from_data(
        {
            "name": name,
            "objective": objective,
            "inputs": {"prompt": {"type": "string"}},
            "nodes": {"answer": {"agent": {**agent, "prompt": "{{ inputs.prompt }}"}}},
            "output": "answer",
        }
    )


def play(path: str, name: str, agent: dict[str, Any], objective: str) -> dict[str, Any]:
    """Submits a run for each line of a file when it is due, and tells of each how it went.

    Args:
        path: JSON: seconds since the beginning and prompt of each.
        name: of the workflow; what is learned of lengths belongs to that.

    Returns:
        Of each call in order: `latency_s` from when it was due, `input_tokens`, `cached_tokens`, `output_tokens`,
        `cost_usd`, and the `machine` that answered; of all, how late they were submitted, what they took here, and what
        decisions took.
    """
    asked, decisions, places = workflow(name, agent, objective), Clock(), Clock()
    dispatching.route = decisions(dispatching.route)
    dispatcher: Any = process_for(app).places
    dispatcher.dispatch = places(dispatcher.dispatch)
    begun_cpu_s, begun_s = time.process_time(), time.time()
    runs, late_s = _submit_all(asked, json.loads(Path(path).read_text()), begun_s)
    for run, _ in runs:
        run.result(TIMEOUT_S)
    seconds, workers = time.time() - begun_s, _workers()
    return {
        "calls": [_told(run, due_s, workers) for run, due_s in runs],
        "seconds": seconds,
        "cpu": (time.process_time() - begun_cpu_s) / seconds,
        "late_p99_s": sorted(late_s)[-(-99 * len(late_s) // 100) - 1],
        "decision_us_p50": statistics.median(decisions.took_us),
        "dispatch_us_p50": statistics.median(places.took_us),
    }


def _workers() -> dict[str, str]:
    """The names of the workers by their incarnation."""
    reports = engines(process_for(app).client)
    return {
        report.holder: report.queues[-1].removeprefix(DIRECT_PREFIX).partition("@")[0] for report in reports
    }


def _submit_all(
    asked: Workflow, calls: Sequence[tuple[float, str]], begun_s: float
) -> tuple[list[tuple[Run, float]], list[float]]:
    runs, late_s = [], []
    for at_s, prompt in calls:
        due_s = begun_s + at_s
        time.sleep(max(0.0, due_s - time.time()))
        late_s.append(time.time() - due_s)
        runs.append((submit(asked, {"prompt": prompt}), due_s))
    return runs, late_s


def _told(run: Run, due_s: float, workers: Mapping[str, str]) -> dict[str, Any]:
    found = {event.kind: event for event in run.events()}
    used = found["usage"]
    return {
        "latency_s": found["closed"].at_ms / 1000 - due_s,
        "machine": workers[found["claimed"].holder.partition("#")[0]],
        "input_tokens": used.tokens[0],
        "output_tokens": used.tokens[1],
        "cached_tokens": used.cached_tokens,
        "cost_usd": used.cost_usd,
    }
