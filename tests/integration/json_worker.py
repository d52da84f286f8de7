"""`mosaic worker --json` in a process of its own, whose log can be awaited."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

COMMAND = [sys.executable, "-m", "mosaic_tasks.cli"]


class JsonWorker:
    """A worker as a context manager.

    Attributes:
        told: what it said when it was ready.
        log: the lines of its log that were read so far.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str], cwd: Path) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "worker", "--json", *arguments],
            env=environment,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[dict[str, Any]] = []

    def await_event(self, name: str) -> dict[str, Any]:
        """Reads the log up to the next line with this event."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(json.loads(line))
            if self.log[-1]["event"] == name:
                return self.log[-1]
        raise AssertionError(f"the worker ended without {name!r}; its log: {self.log}")

    def stop(self) -> tuple[int, str]:
        """Asks it to end; gives its exit code, and what it said on stdout after it was ready."""
        self._process.terminate()
        rest, log = self._process.communicate()
        self.log += map(json.loads, log.splitlines())
        return self._process.returncode, rest

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        self.told = json.loads(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.stop()
        print(*self.log, sep="\n")
