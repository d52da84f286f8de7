"""Reports in an object store over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_batches import done, work, write

from mosaic_queues.errors import InputError
from mosaic_tasks.reports.formats import Format
from mosaic_tasks.reports.making import make
from mosaic_tasks.reports.places import Store
from tests.integration.buckets import s3

pytestmark = pytest.mark.integration


def test_a_bucket_gets_whole_files_and_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3(monkeypatch) as server:
        store = Store("s3://reports/week-48", work=tmp_path / "work")
        with store.writing("items/00001-shop.html") as path:
            path.write_bytes(b"<p>")
        assert server.objects == {"/reports/week-48/items/00001-shop.html": b"<p>"}
        assert store.holds("items/00001-shop.html")
        store.fetch("items/00001-shop.html", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"<p>"
        assert not store.holds("none")
        with pytest.raises(ZeroDivisionError):
            write_half(store)
        assert len(server.objects) == 1
        assert list((tmp_path / "work").iterdir()) == []


def write_half(store: Store) -> None:
    with store.writing("half") as path:
        path.write_bytes(b"<")
        raise ZeroDivisionError


def test_a_bucket_that_is_closed_is_told_without_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3(monkeypatch) as server:
        server.is_closed = True
        store = Store("s3://reports/week-48", work=tmp_path)
        with (
            pytest.raises(InputError, match="cannot write 'a' in 's3://reports/week-48'") as told,
            store.writing("a") as path,
        ):
            path.write_bytes(b"x")
        assert "hush-hush" not in str(told.value)


class Closing(dict[str, bytes]):
    """The objects of a bucket that takes so many, and then one more, of which it says that it does not."""

    def __init__(self, server: Any, most: int) -> None:
        super().__init__()
        self._server, self._most = server, most
        self.taken: list[str] = []

    def __setitem__(self, name: str, data: bytes) -> None:
        super().__setitem__(name, data)
        self.taken.append(name.rpartition("/")[2])
        self._server.is_closed = len(self.taken) > self._most


def test_reports_go_on_where_the_bucket_was_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "results.jsonl", [done(1, "one"), done(2, "two")])
    with s3(monkeypatch) as server:
        server.objects = bucket = Closing(server, most=3)
        store = Store("s3://reports/week-48", work=tmp_path / "work")
        report = work(tmp_path, Format.JSONL, Format.HTML, each=True, place=store)
        with pytest.raises(InputError, match=r"cannot write 'items/00002-item-2\.html'"):
            make(report, tmp_path / "marks")
        assert list((tmp_path / "work").iterdir()) == []
        server.is_closed, server.objects._most = False, 99
        make(report, tmp_path / "marks")
        make(report, tmp_path / "marks")
    assert {name.rpartition("week-48/")[2] for name in bucket} == {
        "results.jsonl",
        "report.html",
        "items/00001-item-1.html",
        "items/00002-item-2.html",
    }
    assert (bucket.taken.count("report.html"), bucket.taken.count("00002-item-2.html")) == (1, 2)
