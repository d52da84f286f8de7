"""Arrivals, lengths and prefixes of production traces, as calls of a benchmark."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

TRACES = Path(os.environ.get("TRACES", Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"))
"""Where the traces are; the variable `TRACES` names another directory."""
BLOCK_TOKENS = 512
"""In a prefix block of the Mooncake trace."""


@dataclass(frozen=True)
class Call:
    """A call of a trace.

    Attributes:
        at_s: since the first one.
        prefix: its prompt's blocks; equal ones have an equal beginning.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()


def azure(path: Path = TRACES / "azure-llm-2023-conv.csv.gz") -> list[Call]:
    """A conversation service for an hour (Azure Public Dataset, 2023)."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # Seven digits behind the seconds are one more than Python reads.
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    return [
        Call(at - times[0], int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for at, row in zip(times, rows, strict=True)
    ]


def mooncake(path: Path = TRACES / "mooncake-synthetic.jsonl.gz") -> list[Call]:
    """Long prompts that share their beginnings (Mooncake, 2024)."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [
        Call(row["timestamp"] / 1e3, row["input_length"], row["output_length"], tuple(row["hash_ids"]))
        for row in rows
    ]


def halves(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """The first half to learn on, the second to report on, which begins at 0."""
    middle = len(calls) // 2
    start_s = calls[middle].at_s
    return list(calls[:middle]), [replace(call, at_s=call.at_s - start_s) for call in calls[middle:]]


def conversations(calls: Iterable[Call], *, one_of: int) -> list[Call]:
    """Of the conversations, one of so many, whole: what their prompts share stays what it is."""
    return [call for call in calls if call.prefix[0] % one_of == 0]


def scaled(calls: Iterable[Call], factor: float) -> list[Call]:
    """The same with so many times the time between arrivals."""
    return [replace(call, at_s=call.at_s * factor) for call in calls]
