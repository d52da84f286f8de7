"""Loaded into a worker (`celery -I`): it dies once where a mixture has decided, before or after (`KILL_AT`) what it
taught of its experts is noted. `KILL_FLAG` is a file that says that it happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mosaic_tasks.execution.mixtures.experiences import Experiences, Lesson, Noted

_note = Experiences.note


def _dies_once(self: Experiences, lesson: Lesson) -> Noted:
    flag = Path(os.environ["KILL_FLAG"])
    is_first = not flag.exists()
    flag.touch()
    if is_first and os.environ["KILL_AT"] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    noted = _note(self, lesson)
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    return noted


Experiences.note = _dies_once  # type: ignore[method-assign]
