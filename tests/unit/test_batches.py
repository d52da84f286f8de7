"""How a batch writes its results and shows how far it is, without a server."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from rich.console import Console

from mosaic_queues.errors import InputError, PayloadCorrupt
from mosaic_tasks.cli.batches import window
from mosaic_tasks.cli.batches.items import Item
from mosaic_tasks.cli.batches.progress import Progress, shown
from mosaic_tasks.cli.batches.results import opened
from mosaic_tasks.client import Run
from mosaic_tasks.reports.result import Result


def result(line: int) -> Result:
    return Result(line=line, run=f"r{line}", status="done", key=f"k{line}", output={"text": "é"})


def test_a_line_is_written_whole_however_little_is_taken_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with opened(tmp_path / "out.jsonl", mark="k") as results:
        results.append(result(1))
    written = json.loads((tmp_path / "out.jsonl").read_text("utf-8"))
    assert written == {"line": 1, "run": "r1", "status": "done", "output": {"text": "é"}, "key": "k1"}


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with (
        opened(tmp_path / "out.jsonl", mark="k") as results,
        pytest.raises(InputError, match=r"cannot write the results to '.*out\.jsonl': No space left"),
    ):
        results.append(result(1))


def test_a_stdout_on_a_full_disk_is_told_and_that_nobody_reads_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, told in ((errno.ENOSPC, InputError), (errno.EPIPE, BrokenPipeError)):

        def fails(_text: str, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(typer, "echo", fails)
        with opened(None, mark="k") as results, pytest.raises(told):
            results.append(result(1))


def test_results_that_are_put_in_order_still_belong_to_one_batch(tmp_path: Path) -> None:
    first, second = (Item(number, f"k{number}", {}) for number in (1, 2))
    path, mixed = tmp_path / "out.jsonl", [second._replace(number=1), first._replace(number=2)]
    with opened(path, mark="k") as results:
        for item in (first, second):
            results.append(Result(line=item.number, run=None, status="bad", key=item.key))
    with opened(path, mark="k") as results:
        assert all(results.earlier(item) for item in mixed)
        results.settle()
        results.sort(mixed)
        with pytest.raises(InputError, match="another `mosaic batch` writes"), opened(path, mark="k"):
            pass
    with opened(path, mark="k") as results:
        assert all(results.earlier(item) for item in mixed)
        assert results.in_order == 2
    assert list(tmp_path.iterdir()) == [path]


def test_an_output_that_cannot_be_read_back_is_a_failure_of_its_line() -> None:
    class Broken:
        id = "r"

        def output(self) -> Any:
            raise PayloadCorrupt("its bytes are gone")

    begun = window._Started(Item(3, "k", {}), cast(Run, Broken()), "done")
    found = window._result(begun)
    assert (found.line, found.run, found.status) == (3, "r", "failed")
    assert found.error == "its output cannot be read: its bytes are gone"


def test_progress_tells_what_is_left_at_the_rate_of_this_try() -> None:
    progress = Progress(total=1200, earlier=1000, done=995, failed=5, begun_s=10.0)
    assert progress.told(0, 10.0) == "995 of 1,200 lines done, 5 failed, 0 running, 0.0 a second"
    for status in ["done"] * 19 + ["cancelled"]:
        progress.ended(status)
    told = "1,014 of 1,200 lines done, 6 failed, 64 running, 2.0 a second, 1 min 30 s left"
    assert progress.told(64, 20.0) == told


def followed(*, terminal: bool) -> str:
    written = io.StringIO()
    console = Console(file=written, width=200, force_terminal=terminal, _environ={"TERM": "xterm"})
    progress = Progress(total=100)
    with shown(progress, lambda: 7, console) as renew:
        for _ in range(100):
            progress.ended("done")
            renew()
    return written.getvalue()


def test_without_a_terminal_each_tenth_is_a_line() -> None:
    lines = followed(terminal=False).splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        f"{tens * 10} of 100 lines done" for tens in range(1, 11)
    ]


def test_on_a_terminal_one_line_renews_itself() -> None:
    text = followed(terminal=True)
    assert text.count("\n") == 1
    assert "100 of 100 lines done, 0 failed, 7 running" in text
