"""Runs of the tools that stream, as tests submit them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mosaic_queues.errors import RunFailed
from mosaic_tasks import Run, Workflow, submit

TOOLS = "tests.integration.stream_tools"
SCHEMA = {
    "type": "object",
    "properties": {
        "revenue": {"type": "integer"},
        "risk": {"type": "object", "properties": {"level": {"type": "string"}}},
        "warnings": {"type": "array", "items": {"type": "string"}},
        "profit": {"type": "integer"},
    },
    "required": ["revenue"],
}


def workflow(nodes: dict[str, Any], output: str, **more: Any) -> Workflow:
    return Workflow.from_data({"name": "streams", "nodes": nodes, "output": output, **more})


def tool(name: str, *, module: str = TOOLS, **options: Any) -> dict[str, Any]:
    arguments = options.pop("with_", {})
    return {"tool": f"{module}:{name}", "with": arguments, **options}


def one_by_one(fold: str, **options: Any) -> dict[str, Any]:
    """A fold that gets the items of `numbers` one by one."""
    reads = {"with_": {"values": "${numbers}"}, "edges": {"numbers": "stream"}}
    return tool(fold, **reads, batch={"max_items": 1}, **options)


def run(nodes: dict[str, Any], output: str, **more: Any) -> Run:
    return submit(workflow(nodes, output, **more))


def failed_once() -> Run:
    """A run whose node `b` failed, and does so once only; `a` was counted."""
    nodes = {
        "a": tool("counted", with_={"name": "a"}),
        "b": tool("fails_once", with_={"x": "${a}"}),
    }
    started = run(nodes, "b")
    with pytest.raises(RunFailed, match="fails once"):
        started.result(30)
    return started


def recorded(path: Path, *deltas: tuple[float, str]) -> str:
    """The model name of a recording that says this at these times (s)."""
    line = {"match": [""], "text": "".join(text for _, text in deltas), "deltas": deltas}
    path.write_text(json.dumps(line) + "\n", "utf-8")
    return f"replay:{path}"


def agent(model: str, **options: Any) -> dict[str, Any]:
    return {
        "agent": {"prompt": "Extract.", "output": SCHEMA, "model": model},
        "queue": "mosaic.cpu",
        **options,
    }
