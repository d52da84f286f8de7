"""Our side of the inference benchmark: what its client process does, asked for by `inference.py`."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from inference_load import ALIAS, Answer, Slice, keep_asking

from mosaic_tasks import Run, Workflow, asubmit, submit
from mosaic_tasks.app import app

TIMEOUT_S = 120.0


def workers_answering(count: int) -> int:
    """How many of `count` workers answer now."""
    return len(app.control.ping(timeout=1.0, limit=count))


async def nothing(number: int) -> int:
    """A tool that could await something, and need not."""
    return number


@cache
def _workflow(tokens: int, *, fans_out: bool) -> Workflow:
    """An agent: asked about each prompt of a list, or about one."""
    agent = {"model": f"vllm:{ALIAS}", "temperature": 0.0, "max_tokens": tokens}
    if fans_out:
        node = {"for_each": "${inputs.prompts}", "agent": {**agent, "prompt": "{{ item }}"}}
        inputs: dict[str, Any] = {"prompts": {"type": "array"}}
    else:
        node = {"agent": {**agent, "prompt": "{{ inputs.prompt }}"}}
        inputs = {"prompt": {"type": "string"}}
    return Workflow.from_data(
        {"name": "asked", "inputs": inputs, "nodes": {"answer": node}, "output": "answer"}
    )


def fan_out(is_read: bool, *wanted: int) -> dict[str, Any]:
    """One run that asks all of a slice; the worker's slots bound how many are in flight.

    Args:
        is_read: whether a reader follows what the agent puts out.
        wanted: the fields of a `Slice`.
    """
    asked = Slice(*wanted)
    workflow = _workflow(asked.tokens, fans_out=True)
    begun = time.perf_counter()
    run = submit(workflow, {"prompts": asked.prompts})
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(_read, run) if is_read else None
        counts = [len(run.result(TIMEOUT_S)), *([reading.result()] if reading is not None else [])]
    seconds = time.perf_counter() - begun
    if set(counts) != {asked.count}:
        raise AssertionError(f"{counts} answers (result, reader) came, not {asked.count}")
    return {"seconds": seconds, "tokens": _tokens(run), "first_s": [], "whole_s": []}


def _read(run: Run) -> int:
    """How many answers a reader sees."""
    return sum(len(event.value) for event in run.stream(timeout_s=TIMEOUT_S) if event.kind == "items")


def _tokens(run: Run) -> int:
    """All that was generated."""
    return sum(event.tokens[1] for event in run.events() if event.kind == "usage" and event.tokens)


def users(*wanted: int) -> dict[str, Any]:
    """A run a question, each with a reader of its text; as many users at the same time as are to be in flight."""
    runs: list[Run] = []
    found = asyncio.run(keep_asking(Slice(*wanted), partial(_ask, runs)))
    return found | {"tokens": sum(map(_tokens, runs))}


async def _ask(runs: list[Run], prompt: str, tokens: int) -> Answer:
    begun = time.perf_counter()
    first_s, text = 0.0, ""
    run = await asubmit(_workflow(tokens, fans_out=False), {"prompt": prompt})
    runs.append(run)
    async with run.astream(timeout_s=TIMEOUT_S) as events:
        async for event in events:
            if event.kind == "text":
                first_s = first_s or time.perf_counter() - begun
                text += event.value
    if not text:
        raise AssertionError(f"run {run.id} has no answer: {run.record()}")
    return Answer(first_s, time.perf_counter() - begun, tokens)


def batched(count: int) -> float:
    """Calls a second of a fan-out over a coroutine that does nothing."""
    data = {
        "name": "nothings",
        "inputs": {"numbers": {"type": "array"}},
        "nodes": {
            "done": {
                "for_each": "${inputs.numbers}",
                "tool": "inference_client:nothing",
                "with": {"number": "${item}"},
            }
        },
        "output": "done",
    }
    begun = time.perf_counter()
    results = submit(Workflow.from_data(data), {"numbers": list(range(count))}).result(TIMEOUT_S)
    if sorted(results) != list(range(count)):
        raise AssertionError(f"{len(results)} of {count} calls came back")
    return count / (time.perf_counter() - begun)
