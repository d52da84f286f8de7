"""Tools of the models that tests of the OpenAI endpoint ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mosaic_queues.errors import ContentRefused, ContextTooLong, EngineOverloaded
from tests.integration.stream_tools import gate, tell


def echo(value: Any) -> Any:
    return value


def fails(kind: str, path: str = "") -> str:
    """Fails as engines do; notes in a file that it was tried."""
    if path:
        with Path(path).open("a") as file:
            file.write("tried\n")
    kinds = {"context": ContextTooLong, "overloaded": EngineOverloaded, "refused": ContentRefused}
    raise kinds.get(kind, RuntimeError)("that was too much")


def numbers_then_no_more() -> Iterator[int]:
    """A number, and once the gate is open an error."""
    yield 0
    tell("waits", "here")
    gate("more")
    raise RuntimeError("there are no more numbers")
