"""Reports and results whose process is killed, whose disk is full, or whose files fail, at each step of their way."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from failing_steps import SURVIVED, TOLD, WHOLE, How, failed
from made_batches import done, work, write
from made_batches import failed as failed_line

from mosaic_queues.errors import InputError
from mosaic_tasks.cli.batches.items import Item
from mosaic_tasks.cli.batches.results import opened
from mosaic_tasks.reports import making
from mosaic_tasks.reports.formats import Format
from mosaic_tasks.reports.making import make
from mosaic_tasks.reports.places import Store
from mosaic_tasks.reports.result import Result

OLD = [done(1, "# One\n" * 9), failed_line(2, "it does not work")]
NEW = [done(1, "# Another one\n" * 9), done(2, "# Two"), done(3, "three")]
ENDS = {"killed": {-signal.SIGKILL}, "error": {TOLD, SURVIVED}, "full": {TOLD}}
FAILURES: tuple[How, ...] = ("killed", "error", "full")


@pytest.fixture
def begin(tmp_path: Path) -> Path:
    """A folder."""
    (tmp_path / "begin").mkdir()
    return tmp_path / "begin"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check(
    steps: Callable[[Path], object],
    begin: Path,
    how: How,
    *,
    check_half: Callable[[Mapping[str, bytes], Mapping[str, bytes]], None],
    least: int,
) -> None:
    """Fails at each step, looks at what is there then, and has the same work done again: all is as without failure."""
    whole = begin.with_name("whole")
    shutil.copytree(begin, whole)
    steps(whole)
    wanted, count = files(whole), 0
    for copy, ended in failed(steps, begin, how):
        if ended == WHOLE:
            assert files(copy) == wanted
            continue
        assert ended in ENDS[how]
        check_half(files(copy), wanted)
        if how != "killed":
            assert files(copy).keys() <= files(begin).keys() | wanted.keys(), "nothing else is left"
        steps(copy)
        assert files(copy) == wanted
        count += 1
    assert count >= least


def report(folder: Path) -> None:
    make(work(folder, Format.MARKDOWN, Format.HTML, each=True), folder / "marks")


@pytest.mark.parametrize("how", FAILURES)
def test_a_report_is_whole_whatever_fails_at_any_step_and_the_same_command_goes_on(
    begin: Path, how: How, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_SAVE_EVERY_S", 0.0)
    write(begin / "results.jsonl", OLD)
    report(begin)
    write(begin / "results.jsonl", NEW)
    before = files(begin)

    def check_half(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> None:
        for name, data in found.items():
            if not name.endswith(".fresh") and name != "marks":
                assert data in (before.get(name), wanted.get(name)), f"{name} is whole, the old or the new"

    check(report, begin, how, check_half=check_half, least=10)


ITEMS = [Item(number, f"k{number}", {}) for number in range(1, 6)]


def results(folder: Path) -> None:
    """Of a batch whose lines have moved and grown since: the file is gone on with, and then written in their order."""
    with opened(folder / "out.jsonl", mark="k") as written:
        for item in ITEMS:
            written.earlier(item)
        written.settle()
        for item in filter(written.lacks, ITEMS[written.in_order :]):
            written.append(_result(item))
        written.sort(ITEMS)


def _result(item: Item) -> Result:
    return Result(line=item.number, run=None, status="done", key=item.key, output="x" * 400)


@pytest.mark.parametrize("how", FAILURES)
def test_results_are_not_lost_whatever_fails_at_any_step_and_the_same_command_goes_on(
    begin: Path, how: How
) -> None:
    with opened(begin / "out.jsonl", mark="k") as written:
        for item in (ITEMS[0], ITEMS[4], ITEMS[2]):
            written.append(_result(item))

    def check_half(found: Mapping[str, bytes], _wanted: Mapping[str, bytes]) -> None:
        for item in (ITEMS[0], ITEMS[4], ITEMS[2]):
            assert f'"key":"{item.key}"'.encode() in found["out.jsonl"], "no result is lost"

    check(results, begin, how, check_half=check_half, least=3)


def test_results_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read '.*results\.jsonl': No such file"):
        make(work(tmp_path, Format.MARKDOWN), tmp_path / "marks")


def test_a_disk_that_is_full_is_told_by_its_name_while_a_store_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "results.jsonl").write_text("stored")
    store = Store((tmp_path / "bucket").as_uri(), work=tmp_path / "work")
    with pytest.raises(InputError, match=r"cannot write '.*away.back': No such file or directory"):
        store.fetch("results.jsonl", tmp_path / "away" / "back")
