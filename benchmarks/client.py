"""The client of one side, in a process of its own: runs what it is told on standard input, and says how long it took.

    python client.py MODULE     where MODULE is `stock_app`, `ours` or `streaming_client`

A line in is JSON: `["run", shape, size]`, `["workers", count]`, or `["call", function, argument, ...]` of the module; a
line out is JSON too.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

START_S = 60.0


def run_once(side: Any, shape: str, size: int) -> dict[str, Any]:
    """Runs a shape once.

    Returns:
        `seconds` from submitting to the result, `define_s` before that, and the `result`.
    """
    begun = time.perf_counter()
    run = side.prepare(shape, size)
    defined = time.perf_counter()
    gc.collect()
    submitted = time.perf_counter()
    result = run()
    return {"seconds": time.perf_counter() - submitted, "define_s": defined - begun, "result": result}


def wait_for_workers(side: Any, count: int) -> dict[str, Any]:
    """Asks until so many workers answer.

    Raises:
        TimeoutError: they do not come up.
    """
    deadline = time.monotonic() + START_S
    while (answering := side.workers_answering(count)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{answering} of {count} workers are up after {START_S:g} s")
    return {"workers": count}


def call(side: Any, function: str, *arguments: Any) -> Any:
    """Calls a function of the side's module."""
    return getattr(side, function)(*arguments)


ORDERS: dict[str, Callable[..., Any]] = {"run": run_once, "workers": wait_for_workers, "call": call}


def main() -> None:
    """Serves standard input until it ends."""
    side = importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        order, *arguments = json.loads(line)
        print(json.dumps(ORDERS[order](side, *arguments)), flush=True)


if __name__ == "__main__":
    main()
