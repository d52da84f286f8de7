"""The leak checks find what they are there to find."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from redis import Redis

from tests.leaks import Kind, Snapshot, leaks_since, permanent_keys


def found(before: Snapshot) -> dict[Kind, list[str]]:
    return {kind: what for kind, what in leaks_since(before, grace_s=0.01).items() if what}


@pytest.mark.parametrize(
    ("name", "daemon", "leaks"),
    [("worker", False, True), ("worker", True, False), ("mosaic-beat", True, True)],
)
def test_threads_that_stay_are_found_unless_they_are_foreign_daemons(
    name: str, daemon: bool, leaks: bool
) -> None:
    before, end = Snapshot.take(), threading.Event()
    thread = threading.Thread(target=end.wait, name=name, daemon=daemon)
    thread.start()
    try:
        assert found(before) == ({"threads": [repr(name)]} if leaks else {})
    finally:
        end.set()
        thread.join()


def test_a_process_that_stays_is_found_and_one_that_ends_is_not() -> None:
    before = Snapshot.take()
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        (text,) = found(before)["processes"]
        assert text.startswith(f"{process.pid} ")
    assert not found(before)


def test_a_file_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = Snapshot.take()
    (tmp_path / "left").touch()
    assert found(before) == {"files": ["left"]}


def test_a_changed_working_directory_is_found_and_undone(tmp_path: Path) -> None:
    before = Snapshot.take()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert found(before)["files"] == [f"the working directory {str(tmp_path)!r}"]
        assert Path.cwd() == Path(before.directory)


@pytest.mark.integration
@pytest.mark.leaves("keys", reason="a key without an expiry is what this test is about")
def test_keys_of_ours_without_an_expiry_are_found(redis_client: Redis) -> None:
    redis_client.set("mosaic:stays", "1")
    redis_client.set("mosaic:goes", "1", ex=60)
    redis_client.set("another", "1")
    assert permanent_keys(redis_client) == ["mosaic:stays"]
