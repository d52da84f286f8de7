"""Two deployments on one server and one broker, each in a namespace of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from tests.services import Worker, Workers

pytestmark = pytest.mark.integration
SIDES = ("left", "right")

CLIENT = """
import sys
from mosaic_tasks import Flow, get_run, submit
from mosaic_tasks.app import app
from tests.integration import run_tools as tools

if sys.argv[1] == "by name":
    FILE = sys.argv[2]
    print(app.send_task("mosaic.submit", args=[FILE], queue="mosaic.cpu").get(timeout=30))
elif sys.argv[1] == "submit":
    flow = Flow("pids")
    each = flow.tool(tools.pid, for_each=flow.tool(tools.count, n=20), x="${item}", pause_s=0.01, id="each")
    flow.output(each)
    print(submit(flow.build()).id)
else:
    print(*get_run(sys.argv[2]).result(timeout_s=30))
"""

WORKFLOW = """
name: by-name
nodes:
  a: {tool: "tests.integration.run_tools:count", with: {n: 3}}
output: a
"""


def env_of(side: str) -> dict[str, str]:
    return {"MOSAIC_NAMESPACE": side, "MOSAIC_OUTBOX_GRACE_S": "0.5", "MOSAIC_SWEEP_S": "0.2"}


def client(side: str, redis_url: str, *arguments: str) -> list[str]:
    """What a client of one side prints, in words."""
    environment = {
        **os.environ,
        **env_of(side),
        "MOSAIC_REDIS_URL": redis_url,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path])),
    }
    command = [sys.executable, "-c", CLIENT, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def outside(redis_client: Redis) -> set[bytes]:
    """The keys that belong to neither side."""
    prefixes = tuple(f"{side}:".encode() for side in SIDES)
    return {key for key in redis_client.scan_iter(count=1_000) if not key.startswith(prefixes)}


def start(workers: Workers, side: str) -> Worker:
    return workers.start("mosaic_tasks.app", ["mosaic.cpu"], env=env_of(side), args=["--task-events"])


def test_namespaces_on_one_server_do_not_meet(
    workers: Workers, redis_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    """The right side's run waits, its messages untouched, while the left side's worker finishes the left's."""
    file = tmp_path / "w.yaml"
    file.write_text(WORKFLOW)
    runs = {side: client(side, redis_url, "submit")[0] for side in SIDES}
    waiting = redis_client.lrange("right:mosaic.cpu", 0, -1)
    assert len(waiting) == 1
    left = start(workers, "left").wait_ready()
    assert set(client("left", redis_url, "result", runs["left"])) == {str(left.pid)}
    assert client("left", redis_url, "result", *client("left", redis_url, "by name", str(file))) == list(
        "012"
    )
    assert redis_client.lrange("right:mosaic.cpu", 0, -1) == waiting
    right = start(workers, "right").wait_ready()
    assert set(client("right", redis_url, "result", runs["right"])) == {str(right.pid)}
    assert outside(redis_client) == set()
    workers.stop()
    assert runs["right"] not in left.log
    assert runs["left"] not in right.log
