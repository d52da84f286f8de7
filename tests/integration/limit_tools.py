"""The tool of the workflow in `test_server_limits.py`; workers import it."""

from __future__ import annotations

from pathlib import Path


def read(path: str) -> str:
    return Path(path).read_text()
