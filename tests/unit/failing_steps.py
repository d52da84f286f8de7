"""Has some work fail at each of its steps on files in turn: its process is killed, the step fails, or the disk is full.

A step is whatever Python tells its audit hooks of a path below a directory: opening, renaming, deleting, making.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from mosaic_queues.errors import MosaicError

How = Literal["killed", "error", "full"]
_STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.chmod", "os.link"}
_FULL_BYTES = 512
MOST_STEPS = 500
WHOLE, SURVIVED, TOLD, RAISED = 0, 2, 3, 4
"""How a process ends in which nothing failed; or something did, and it went on, told it as an error of ours, or raised
another.
"""


def failed(work: Callable[[Path], object], begin: Path, how: How) -> Iterator[tuple[Path, int]]:
    """For each step a copy of a directory in which the work failed there, and how that process ended; last a copy in
    which nothing failed, as far as the work says.

    Args:
        work: is given the copy.
    """
    for step in range(MOST_STEPS):
        copy = begin.with_name(f"{begin.name}-{how}-{step}")
        shutil.copytree(begin, copy)
        ended = _ended(work, copy, how, step)
        yield copy, ended
        if ended == WHOLE:
            return
    raise AssertionError(f"it is not done after {MOST_STEPS} steps")


def _ended(work: Callable[[Path], object], copy: Path, how: How, step: int) -> int:
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        has_failed = _fail_at(copy, how, step)
        work(copy)
        os._exit(SURVIVED if has_failed() else WHOLE)
    except MosaicError:
        os._exit(TOLD)
    except BaseException:  # a child never comes back to the test
        traceback.print_exc()
        os._exit(RAISED)


def _fail_at(copy: Path, how: How, step: int) -> Callable[[], bool]:
    """Answers what tells whether it did."""
    if how == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (step * _FULL_BYTES, resource.RLIM_INFINITY))
        return lambda: False
    left = [step]

    def hook(event: str, told: tuple[Any, ...]) -> None:
        if event not in _STEPS or not any(str(copy) in str(each) for each in told[:2]):
            return
        left[0] -= 1
        if left[0] == -1 and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if left[0] == -1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    sys.addaudithook(hook)
    return lambda: left[0] < 0
