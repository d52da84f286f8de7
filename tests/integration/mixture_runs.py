"""Mixtures over recorded answers, as tests submit them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mosaic_tasks import Run, Workflow, submit

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "reasoning": {"type": "string"}},
    "required": ["answer", "reasoning"],
}


def says(folder: Path, name: str, text: str, *, tokens_per_s: float | None = None, match: str = "") -> str:
    """The model name of a recording that answers whatever holds `match` with `text`."""
    path = folder / f"{name}.jsonl"
    line = {"match": [match], "text": text, "tokens_per_s": tokens_per_s}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({key: value for key, value in line.items() if value is not None}) + "\n")
    return f"replay:{path}"


def number(value: int, *, prose: str = "") -> str:
    """An answer as JSON, with its reasoning behind it."""
    return json.dumps({"answer": str(value), "reasoning": prose or "It follows."})


def experts(folder: Path, *texts: str, **options: Any) -> list[dict[str, Any]]:
    return [
        {"name": f"e{place}", "model": says(folder, f"e{place}", text, **options)}
        for place, text in enumerate(texts)
    ]


def mixture(asked: list[dict[str, Any]], **fields: Any) -> Workflow:
    told = {
        "prompt": "{{ inputs.question }}",
        "answer": {"form": "number", "field": "answer"},
        "experts": asked,
        **fields,
    }
    node = {"mixture": told}
    inputs = {"question": "string"}
    return Workflow.from_data(
        {"name": "mixes", "inputs": inputs, "nodes": {"answer": node}, "output": "answer"}
    )


def ask(asked: list[dict[str, Any]], **fields: Any) -> Run:
    return submit(mixture(asked, **{"details": True, **fields}), {"question": "How many?"})
