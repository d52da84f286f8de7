"""A backup of the server, restored into another one as the guide to operations says: runs go on there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from mosaic_queues.connection import ServerUrls, urls_of
from mosaic_queues.server import server_binary
from tests.services import Workers

pytestmark = pytest.mark.integration

WORKFLOW = """
name: kept
inputs: {died: {type: string}}
nodes:
  first: {tool: "tests.integration.run_tools:echo", with: {value: 7}}
  dies: {tool: "tests.integration.run_tools:die_once", with: {path: "${inputs.died}"}, after: [first]}
  both: {tool: "tests.integration.run_tools:echo", with: {value: ["${first}", "${dies}"]}}
output: both
"""
OUTPUT = [7, "alive"]
LIVENESS = {"MOSAIC_LIVENESS_S": "2"}


@contextmanager
def server(data: Path, *, loads: bool) -> Iterator[ServerUrls]:
    """A Valkey with the append-only file; one that `loads` a snapshot switches that file on afterwards."""
    with tempfile.TemporaryDirectory(prefix="mosaic-test-", dir="/tmp") as short:  # its path must be short
        options = {"port": "0", "unixsocket": f"{short}/s", "dir": str(data), "save": ""}
        options["appendonly"] = "no" if loads else "yes"
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        process = subprocess.Popen(
            [server_binary(), *words], stdout=subprocess.DEVNULL, start_new_session=True
        )
        urls = urls_of(f"unix://{short}/s?db=0")
        try:
            with Redis.from_url(urls.redis_url, retry=Retry(ConstantBackoff(0.01), 500)) as client:
                client.ping()
                if loads:
                    client.config_set("appendonly", "yes")
            yield urls
        finally:
            process.kill()
            process.wait()


def mosaic(urls: ServerUrls, directory: Path, words: Sequence[str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "mosaic_tasks.cli", *words, "--json"],
        env={**os.environ, "MOSAIC_REDIS_URL": urls.redis_url, "MOSAIC_HOME": str(directory)},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def started(urls: ServerUrls, directory: Path, died: Path) -> str:
    """A run of which a call kills its worker, unless a file says that it did."""
    words = ["run", str(directory / "kept.yaml"), "--input", f"died={died}", "--no-wait"]
    return str(mosaic(urls, directory, words)["run"])


def output(urls: ServerUrls, directory: Path, run: str) -> Any:
    return mosaic(urls, directory, ["result", run, "--wait"])["output"]


def test_runs_go_on_from_a_snapshot_in_another_server(tmp_path: Path) -> None:
    (tmp_path / "kept.yaml").write_text(WORKFLOW)
    before, after, lives = tmp_path / "before", tmp_path / "after", tmp_path / "lives"
    for made in (before, after, lives):
        made.mkdir()
    with server(before, loads=False) as urls:
        with Workers(urls, tmp_path) as workers:
            worker = workers.start("mosaic_tasks.app", ["mosaic.cpu"], env=LIVENESS).wait_ready()
            done = started(urls, tmp_path, lives)
            assert output(urls, tmp_path, done) == OUTPUT
            claimed = started(urls, tmp_path, tmp_path / "died")
            worker.wait()
        queued = started(urls, tmp_path, lives)
        with Redis.from_url(urls.redis_url) as client:
            client.save()
        shutil.copy(before / "dump.rdb", after)
    with server(after, loads=True) as urls, Workers(urls, tmp_path) as workers:
        workers.start("mosaic_tasks.app", ["mosaic.cpu"], env=LIVENESS).wait_ready()
        assert [output(urls, tmp_path, run) for run in (done, queued, claimed)] == [OUTPUT] * 3
        assert any((after / "appendonlydir").iterdir())
