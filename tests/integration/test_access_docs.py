"""What the guide to security says is so: its quotas can be read, its users of the server suffice and cannot do more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from mosaic_queues.connection import urls_of
from mosaic_tasks import Flow, submit
from mosaic_tasks.access.quotas import read_quotas
from tests.integration import run_tools as tools
from tests.services import Workers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
]
GUIDE = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
USERS = re.findall(r"^ACL SETUSER (\S+) on >PASSWORD (.*)$", GUIDE, re.M)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.M | re.S)


def test_its_quotas_can_be_read(tmp_path: Path) -> None:
    [text] = blocks("yaml")
    (tmp_path / "quotas.yaml").write_text(text)
    assert read_quotas(tmp_path / "quotas.yaml")["acme"].open_runs == 2_000


@pytest.fixture(params=USERS, ids=[name for name, _ in USERS])
def user(request: pytest.FixtureRequest, redis_client: Redis) -> Iterator[str]:
    name, rights = request.param
    redis_client.execute_command("ACL", "SETUSER", name, "on", ">secret", *rights.split())
    yield name
    redis_client.execute_command("ACL", "DELUSER", name)


def test_its_users_suffice_for_workers(
    user: str, redis_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    urls = urls_of(redis_url.replace("://", f"://{user}:secret@", 1))
    flow = Flow("few-rights")
    flow.output(flow.tool(tools.double, for_each=flow.tool(tools.count, n=20), x="${item}", id="each"))
    redis_client.acl_log_reset()
    with Workers(urls, tmp_path) as workers:
        workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
        assert submit(flow.build()).result(timeout_s=30) == [2 * n for n in range(20)]
    assert redis_client.acl_log() == []


def test_workers_reach_no_api_key(redis_url: str, redis_client: Redis) -> None:
    [rights] = [rights for name, rights in USERS if name == "mosaic-worker"]
    redis_client.execute_command("ACL", "SETUSER", "mosaic-worker", "on", ">secret", *rights.split())
    try:
        with Redis.from_url(redis_url.replace("://", "://mosaic-worker:secret@", 1)) as worker:
            worker.hset("mosaic:{01990c2e}:run", "a", 1)
            worker.delete("mosaic:{01990c2e}:run")
            for command in (
                ("HSET", "mosaic:{access}:names", "a", "b"),
                ("HGETALL", "mosaic:{access}:key:x"),
                ("XTRIM", "mosaic:{access}:audit", "MAXLEN", "0"),
                ("FLUSHALL",),
                ("CONFIG", "SET", "maxmemory", "1"),
                ("MONITOR",),
                ("KEYS", "*"),
            ):
                with pytest.raises(NoPermissionError):
                    worker.execute_command(*command)
    finally:
        redis_client.execute_command("ACL", "DELUSER", "mosaic-worker")
