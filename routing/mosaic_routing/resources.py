"""Processors and memory of this machine, or of the container that it gives us. What is not known is None."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

import msgspec

from mosaic_routing.kernel_files import number_of, text_of

NumberT = TypeVar("NumberT", int, float)

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


class Resources(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What there is at one moment.

    Attributes:
        cpus: that this process may use; a part of one counts as that part.
        load: processes that run or wait to run, mean of the last minute, on the whole machine.
        memory_bytes: the least of what the machine has and the container may use.
        available_bytes: what may be taken of that without swapping.
    """

    cpus: float = 1.0
    load: float | None = None
    memory_bytes: int | None = None
    available_bytes: int | None = None


def resources(*, proc: Path = _PROC, cgroup: Path = _CGROUP) -> Resources:
    """What there is now.

    Args:
        proc: the kernel's files about processes and memory.
        cgroup: those about our container (control groups, version 2).
    """
    memory = _meminfo(text_of(proc / "meminfo"))
    most, taken = number_of(cgroup / "memory.max"), number_of(cgroup / "memory.current")
    cache = re.search(r"^inactive_file (\d+)$", text_of(cgroup / "memory.stat"), re.MULTILINE)
    left = None if most is None or taken is None else most - taken + (int(cache[1]) if cache else 0)
    return Resources(
        cpus=_least(_cpus(), _quota(text_of(cgroup / "cpu.max"))) or 1.0,
        load=_load(),
        memory_bytes=_least(memory.get("MemTotal"), most),
        available_bytes=_least(memory.get("MemAvailable"), left),
    )


def _cpus() -> int | None:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count()


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _quota(text: str) -> float | None:
    """`200000 100000`: two processors; `max 100000`: as many as there are."""
    found = re.fullmatch(r"(\d+) (\d+)", text)
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None


def _meminfo(text: str) -> dict[str, int]:
    """In bytes."""
    return {name: int(kb) * 1024 for name, kb in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _least(*numbers: NumberT | None) -> NumberT | None:
    known = [number for number in numbers if number is not None]
    return min(known) if known else None


__all__ = ["Resources", "resources"]
