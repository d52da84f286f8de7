"""Processors and memory, of a machine and of a container on it."""

from __future__ import annotations

from pathlib import Path

from mosaic_routing.resources import resources

GIB = 1 << 30
MEMINFO = "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   33554432 kB\n"


def files(root: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (root / name.replace("_", ".")).write_text(text)
    return root


def test_this_machine_tells_of_itself() -> None:
    found = resources()
    assert found.cpus > 0
    assert found.memory_bytes is None or found.memory_bytes > (found.available_bytes or 0) > 0


def test_outside_of_a_container_the_machine_counts(tmp_path: Path) -> None:
    found = resources(proc=files(tmp_path, meminfo=MEMINFO), cgroup=tmp_path / "nowhere")
    assert (found.memory_bytes, found.available_bytes) == (64 * GIB, 32 * GIB)


def test_a_container_has_what_it_may_use(tmp_path: Path) -> None:
    files(tmp_path, meminfo=MEMINFO, memory_max=f"{8 * GIB}\n", memory_current=f"{7 * GIB}\n")
    files(tmp_path, memory_stat=f"anon 5\ninactive_file {GIB}\n", cpu_max="50000 100000\n")
    found = resources(proc=tmp_path, cgroup=tmp_path)
    assert (found.cpus, found.memory_bytes, found.available_bytes) == (0.5, 8 * GIB, 2 * GIB)


def test_a_container_without_limits_has_what_the_machine_has(tmp_path: Path) -> None:
    files(tmp_path, meminfo=MEMINFO, memory_max="max\n", memory_current="5\n", cpu_max="max 100000\n")
    found = resources(proc=tmp_path, cgroup=tmp_path)
    assert (found.memory_bytes, found.available_bytes) == (64 * GIB, 32 * GIB)
    assert found.cpus == resources().cpus


def test_what_the_kernel_does_not_tell_is_not_known(tmp_path: Path) -> None:
    found = resources(proc=tmp_path, cgroup=tmp_path)
    assert (found.memory_bytes, found.available_bytes) == (None, None)
