"""The clients of the gateway benchmark, asked by `gateway.py`: one at the worker's side, one that reads through it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness import percentile

from mosaic_tasks import Workflow, get_run, submit
from mosaic_tasks.access.keyring import KeyRing
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for

TIMEOUT_S = 120.0
WORDS_PER_S = 20.0
FIRST_S = 0.4
"""A text begins so late that whoever reads it is there."""
NAMES = ("brief", "long", "step")


def workers_answering(count: int) -> int:
    """How many of `count` workers answer now."""
    return len(app.control.ping(timeout=1.0, limit=count))


# -- what is served --------------------------------------------------------------------------------------------------


def make_key() -> str:
    """An API key that may do what the benchmark does."""
    process = process_for(app)
    return KeyRing(process.client, process.ledger.keys).add("benchmark", scopes=["submit", "read"])


def make_workflows(stream_s: float) -> str:
    """Writes the workflows where this process works, and gives their folder: two texts, and a tool."""
    texts = {
        "brief": _text("brief", 20, words_per_s=200.0),
        "long": _text("long", int(stream_s * WORDS_PER_S)),
    }
    step = {"tool": "ours:step", "with": {"value": "${inputs.value}"}}
    made = {name: {"name": name, "nodes": {"text": node}, "output": "text"} for name, node in texts.items()}
    made["step"] = {"name": "step", "inputs": {"value": "integer"}, "nodes": {"step": step}, "output": "step"}
    folder = Path.cwd() / "workflows"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.yaml").write_text(Workflow.from_data(made[name]).to_yaml())
    return str(folder)


def _text(name: str, words: int, *, words_per_s: float = WORDS_PER_S) -> dict[str, Any]:
    """A node that writes so many words, one by one."""
    deltas = [(FIRST_S + number / words_per_s, f"word{number:05} ") for number in range(words)]
    told = {"match": [""], "text": "".join(word for _, word in deltas), "deltas": deltas}
    recording = Path.cwd() / f"{name}.jsonl"
    recording.write_text(json.dumps(told) + "\n")
    return {"agent": {"prompt": "Write.", "model": f"replay:{recording}"}}


def start(workflow: str) -> str:
    """Starts a run of a workflow without the gateway; its id."""
    return submit(Path.cwd() / "workflows" / f"{workflow}.yaml").id


# -- the first token -------------------------------------------------------------------------------------------------


def said_at(run_id: str) -> float:
    """When a reader beside the worker sees the first word of a run, by the machine's monotonic clock."""
    run = get_run(run_id)
    with run.stream(timeout_s=TIMEOUT_S) as events:
        next(event for event in events if event.kind == "text")
        seen_s = time.monotonic()
    run.result(TIMEOUT_S)
    return seen_s


def heard_at(url: str, key: str, run_id: str) -> float:
    """When it is heard through the gateway."""
    return asyncio.run(_heard_at(url, key, run_id))


async def _heard_at(url: str, key: str, run_id: str) -> float:
    async for kind, _ in _events(url, key, run_id):
        if kind == "text":
            return time.monotonic()
    raise LookupError(f"run {run_id} said nothing")


async def _events(url: str, key: str, run_id: str) -> AsyncIterator[tuple[str, Any]]:
    """The server-sent events of a run's output: kind and data."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        head = f"GET /v1/runs/{run_id}/stream HTTP/1.0\r\nHost: {at.netloc}\r\nAuthorization: Bearer {key}\r\n\r\n"
        writer.write(head.encode())
        if b" 200 " not in await reader.readline():
            raise ConnectionError(f"the gateway refuses: {await reader.read()!r}")
        kind = ""
        async for line in reader:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)
    finally:
        writer.close()


# -- readers ---------------------------------------------------------------------------------------------------------


def read_together(url: str, key: str, run_id: str, count: int) -> dict[str, Any]:
    """So many readers at once.

    Returns:
        How many were `dropped`: they did not read all of it, once and in order. Seconds from the beginning until the
        last had its first word and the first its last one, and how far the ends lie apart.
    """
    begun_s = time.monotonic()
    found = asyncio.run(_read_all(url, key, run_id, count))
    said = get_run(run_id).result(TIMEOUT_S)
    right = [(came_s, left_s) for text, came_s, left_s in found if text == said]
    came, left = ([each[side] - begun_s for each in right] for side in (0, 1))
    ends = sorted(left)
    return {
        "dropped": count - len(right),
        "chars": len(said),
        "last_came_s": max(came, default=0.0),
        "first_left_s": min(left, default=0.0),
        "ends_apart_p50_ms": 1e3 * (percentile(ends, 50) - ends[0]) if ends else None,
        "ends_apart_p99_ms": 1e3 * (percentile(ends, 99) - ends[0]) if ends else None,
    }


async def _read_all(url: str, key: str, run_id: str, count: int) -> Sequence[tuple[str, float, float]]:
    return await asyncio.gather(*(_read(url, key, run_id) for _ in range(count)))


async def _read(url: str, key: str, run_id: str) -> tuple[str, float, float]:
    """What a reader read to its end, and when it came and left; nothing, where anything lacks or came twice."""
    text, came_s = "", 0.0
    try:
        async for kind, data in _events(url, key, run_id):
            came_s = came_s or time.monotonic()
            if data["offset"] != len(text):
                break
            if kind == "end":
                return text, came_s, time.monotonic()
            text += data["value"]
    except OSError as error:
        print(f"a reader was dropped: {error}")
    return "", came_s, time.monotonic()


# -- submissions -----------------------------------------------------------------------------------------------------


def count_ended(path: str) -> dict[str, Any]:
    """Of the runs of a file that `gateway_load.py` wrote: how many are `done`, and in what time the last one was."""
    ledger, begun_s = process_for(app).ledger, time.monotonic()
    runs = json.loads(Path(path).read_text())["runs"]
    while True:
        statuses = ledger.statuses(runs)
        waited_s = time.monotonic() - begun_s
        if "running" not in statuses or waited_s > TIMEOUT_S:
            return {"done": statuses.count("done"), "drained_s": waited_s}
        time.sleep(0.1)
