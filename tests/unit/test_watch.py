"""The thread that looks at what runs."""

from __future__ import annotations

import threading

import pytest

from mosaic_tasks.execution import watch
from mosaic_tasks.execution.watch import hasten, watching


class Breaking:
    """Raises when it is first looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.looked_again = threading.Event()

    def look(self, _now: float) -> None:
        self.looks += 1
        if self.looks == 1:
            raise AttributeError("not ready")
        self.looked_again.set()


@pytest.mark.leaves("threads", reason="a process has one watch, for good")
def test_the_watch_survives_what_it_looks_at() -> None:
    breaking = Breaking()
    with watching(breaking):
        assert breaking.looked_again.wait(10)


class Seen:
    """Tells that it was looked at."""

    def __init__(self) -> None:
        self.looked = threading.Event()

    def look(self, _now: float) -> None:
        self.looked.set()


@pytest.mark.leaves("threads", reason="a process has one watch, for good")
def test_the_watch_looks_at_once_when_it_is_to_make_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "TICK_S", 3600.0)
    try:
        with watching(Seen()) as seen:
            hasten()
            assert seen.looked.wait(10)
    finally:
        monkeypatch.undo()
        hasten()
