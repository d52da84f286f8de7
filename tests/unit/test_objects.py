"""The object store: keys, atomic writes, refusals; the local directory and one that obstore serves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mosaic_queues import objects
from mosaic_queues.errors import ConfigurationError, PayloadCorrupt, PayloadError
from mosaic_queues.objects import LocalObjects, ObjectStore, RemoteObjects, open_objects


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return LocalObjects(tmp_path / "objects") if request.param == "local" else RemoteObjects("memory:///")


def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    store.put("run/a", b"one")
    store.put("run/b", b"")
    assert store.get("run/a") == b"one"
    assert store.get("run/b") == b""


def test_a_second_put_replaces_the_first(store: ObjectStore) -> None:
    store.put("run/a", b"one")
    store.put("run/a", b"two")
    assert store.get("run/a") == b"two"


def test_a_missing_object_is_told_with_its_key_and_what_to_do(store: ObjectStore) -> None:
    with pytest.raises(PayloadCorrupt, match=r"'run/none'.*MOSAIC_OBJECT_STORE"):
        store.get("run/none")


def test_deleting_a_prefix_takes_one_run_and_no_other(store: ObjectStore) -> None:
    for key in ("run/a", "run/b", "run2/a"):
        store.put(key, b"x")
    store.delete_prefix("run")
    store.delete_prefix("run")
    assert store.get("run2/a") == b"x"
    with pytest.raises(PayloadCorrupt):
        store.get("run/a")


@pytest.mark.parametrize("key", ["../x", "a/../../x", "a//b", "/etc/x", "a/.", ""])
def test_a_key_cannot_leave_the_directory(key: str, tmp_path: Path) -> None:
    store = LocalObjects(tmp_path / "objects")
    with pytest.raises(PayloadError, match="no key"):
        store.put(key, b"x")
    with pytest.raises(PayloadError, match="no key"):
        store.delete_prefix(key)


def test_the_local_directory_is_private_and_holds_no_partial_files(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path / "objects")
    store.put("run/a", b"one")
    assert stat.S_IMODE((tmp_path / "objects").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "objects" / "run").iterdir()] == ["a"]


def test_a_failed_write_leaves_nothing_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        path.write_bytes(data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(objects, "_write", fail)
    with pytest.raises(PayloadError, match="No space left"):
        LocalObjects(tmp_path / "objects").put("run/a", b"one")
    assert list((tmp_path / "objects" / "run").iterdir()) == []


def test_a_url_chooses_the_store(tmp_path: Path) -> None:
    assert isinstance(open_objects("s3://bucket/prefix"), RemoteObjects)
    local = open_objects(f"file://{tmp_path}/a%20b")
    local.put("run/a", b"one")
    assert (tmp_path / "a b" / "run" / "a").read_bytes() == b"one"


@pytest.mark.parametrize("url", ["bucket/prefix", "C:/objects"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="MOSAIC_OBJECT_STORE"):
        open_objects(url)


def test_an_unknown_kind_of_url_is_refused_at_first_use_without_its_secret() -> None:
    with pytest.raises(ConfigurationError, match="nosuch") as caught:
        open_objects("nosuch://user:secret@place").get("run/a")
    assert "secret" not in str(caught.value)


def test_a_remote_store_used_before_a_fork_is_refused_after_it_instead_of_hanging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = RemoteObjects("memory:///")
    store.put("run/a", b"one")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(PayloadError, match="fork"):
        store.get("run/a")
