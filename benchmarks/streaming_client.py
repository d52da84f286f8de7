"""Our side of the streaming benchmark: what its client process does, asked for by `streaming.py`."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from streaming_scenarios import Scenario, barrier, chain, finance, weekly
from streaming_tools import BARE_NOTES, BARE_TASK

from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for

TIMEOUT_S = 300.0
QUEUE = "mosaic.cpu"
TOOLS = "streaming_tools"
SEED = 7
_scenarios: dict[str, Scenario] = {}


def workers_answering(count: int) -> int:
    """How many of `count` workers answer now."""
    return len(app.control.ping(timeout=1.0, limit=count))


# -- streaming against barrier -------------------------------------------------------------------------------------


def prepare_scenario(name: str, speed: float, commits: int) -> dict[str, Any]:
    """Makes a scenario in the directory where this process works, and tells its bound and the workers that it needs."""
    makers: dict[str, Callable[[Path, float], Scenario]]
    makers = {"chain": chain, "finance": finance, "weekly": functools.partial(weekly, commits=commits)}
    scenario = _scenarios[name] = makers[name](Path.cwd(), speed)
    return {"bound_s": scenario.bound_s, "places": dict(scenario.places)}


@functools.cache
def _side(name: str, is_barrier: bool) -> Workflow:
    workflow = _scenarios[name].workflow
    return barrier(workflow) if is_barrier else workflow


def run_scenario(name: str, is_barrier: bool) -> dict[str, Any]:
    """Runs a scenario once, with a reader of its report.

    Returns:
        `seconds` to the result, `first_s` to the reader's first word, and the `text` read.
    """
    scenario, workflow = _scenarios[name], _side(name, is_barrier)
    begun = time.perf_counter()
    run = submit(workflow, scenario.inputs)
    first_s, text = None, ""
    for event in run.stream(scenario.read):
        if event.kind == "text":
            first_s = first_s or time.perf_counter() - begun
            text += event.value
    run.result(TIMEOUT_S)
    return {"seconds": time.perf_counter() - begun, "first_s": first_s, "text": text}


# -- latency -------------------------------------------------------------------------------------------------------


def _streamed(producer: str, arguments: dict[str, Any], *folds: str) -> Workflow:
    """A producer and folds, each reading the one before."""
    nodes: dict[str, Any] = {"made": {"tool": f"{TOOLS}:{producer}", "with": arguments}}
    before = "made"
    for place, name in enumerate(folds):
        argument = "times" if name == "noted" else "values"
        node = {"tool": f"{TOOLS}:{name}", "with": {argument: f"${{{before}}}"}, "edges": {before: "stream"}}
        before = f"{name}_{place}"
        nodes[before] = node
    return Workflow.from_data({"name": "streamed", "nodes": nodes, "output": before})


def _results(runs: Sequence[Run]) -> list[Any]:
    return [run.result(TIMEOUT_S) for run in runs]


def chunk_latencies(runs: int, count: int, period_s: float) -> list[float]:
    """From the making of an item to the start of the fold that reads it, in so many runs at the same time."""
    draw = random.Random(SEED)
    phases = [draw.uniform(0, period_s) for _ in range(runs)]
    arguments = ({"count": count, "period_s": period_s, "phase_s": phase_s} for phase_s in phases)
    started = [submit(_streamed("ticking", each, "noted")) for each in arguments]
    return [latency_s for result in _results(started) for latency_s in result]


def bare_latencies(senders: int, count: int, period_s: float) -> list[float]:
    """From `send_task` to the start of the body of a bare Celery task, at the same pace."""
    draw = random.Random(SEED)
    phases = [draw.uniform(0, period_s) for _ in range(senders)]
    due = sorted(phase_s + number * period_s for phase_s in phases for number in range(count))
    client, start_s = process_for(app).client, time.monotonic()
    client.delete(BARE_NOTES)
    for at_s in due:
        time.sleep(max(0.0, start_s + at_s - time.monotonic()))
        app.send_task(BARE_TASK, args=[time.time()], queue=QUEUE, ignore_result=True)
    return [_popped(client) for _ in due]


def _popped(client: Any) -> float:
    found = client.blpop([BARE_NOTES], timeout=TIMEOUT_S)
    if found is None:
        raise TimeoutError("a bare task did not run")
    return float(found[1])


# -- cost ----------------------------------------------------------------------------------------------------------


def run_chain(count: int, period_s: float) -> dict[str, Any]:
    """Items through two folds; without a period as fast as they can be had."""
    workflow = _paced(count, period_s, "passed", "counted")
    begun = time.perf_counter()
    result = submit(workflow).result(TIMEOUT_S)
    if result != count:
        raise AssertionError(f"{result} of {count} items came through the chain")
    return {"seconds": time.perf_counter() - begun}


def _paced(count: int, period_s: float, *folds: str) -> Workflow:
    if period_s:
        return _streamed("ticking", {"count": count, "period_s": period_s}, *folds)
    return _streamed("numbers", {"count": count}, *folds)


def consumer_tasks(count: int, period_s: float) -> dict[str, Any]:
    """How many tasks a fold took for how many drains that held something."""
    run = submit(_paced(count, period_s, "sized"))
    drains = len(run.result(TIMEOUT_S))
    claims = [event for event in run.events() if event.kind == "claimed" and "1.m" in event.calls]
    return {"drains": drains, "tasks": len(claims)}


def flood(producers: int, count: int) -> dict[str, Any]:
    """Producers at full speed at the same time, each with a fold; entries: what their streams came to."""
    workflow = _paced(count, 0.0, "counted")
    begun = time.perf_counter()
    runs = [submit(workflow) for _ in range(producers)]
    if (found := sum(_results(runs))) != producers * count:
        raise AssertionError(f"{found} of {producers * count} items came")
    seconds = time.perf_counter() - begun
    process = process_for(app)
    streams = [process.ledger.keys.stream(run.id, "0") for run in runs]
    return {"seconds": seconds, "entries": sum(process.client.xlen(stream) for stream in streams)}


# -- readers -------------------------------------------------------------------------------------------------------


def read_together(readers: int) -> dict[str, Any]:
    """Readers of one agent's text, from before its first word; `lost`: those who read something else than it says."""
    draft = _scenarios["chain"].workflow
    run = submit(draft)
    begun = time.perf_counter()
    texts = asyncio.run(_read_all(run, readers))
    run.result(TIMEOUT_S)
    said = run.node_output("draft")
    lost = sum(text != said for text in texts)
    return {"lost": lost, "seconds": time.perf_counter() - begun, "chars": len(said)}


async def _read_all(run: Run, readers: int) -> list[str]:
    return await asyncio.gather(*(_read(run) for _ in range(readers)))


async def _read(run: Run) -> str:
    text = ""
    async with run.astream("draft") as events:
        async for event in events:
            if event.kind == "retract":
                text = text[: event.offset]
            elif event.kind == "text":
                text += event.value
    return text
