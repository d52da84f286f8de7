"""What runs and tenants got is counted over all processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_routing.service import MemoryService, Served, ServerService
from tests.services import READY_S

pytestmark = pytest.mark.integration
KEYS = Keys("mosaic")
SENDING = """
import json, sys
from redis import Redis
from mosaic_queues.keys import Keys
from mosaic_routing.ordering import Waiting, celery_level
from mosaic_routing.service import ServerService
url, tenant, count = sys.argv[1:]
service = ServerService(Redis.from_url(url), Keys("mosaic"))
levels = []
for number in range(int(count)):
    ((attained_s, lead_s),) = service.serve(f"{tenant}{number}", tenant, [10.0])
    levels.append(celery_level(Waiting(length_s=10.0, attained_s=attained_s, lead_s=lead_s), now_s=0.0))
print(json.dumps(levels))
"""
sent = st.lists(
    st.tuples(
        st.sampled_from(["r1", "r2", "r3"]),
        st.sampled_from(["", "acme", "umbrella"]),
        st.lists(st.integers(0, 5_000), min_size=1, max_size=3),
    ),
    max_size=40,
)


def send(url: str, tenant: str, count: int) -> list[int]:
    """The levels of the calls that a process sends, each of a run of its own."""
    command = [sys.executable, "-c", SENDING, url, tenant, str(count)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=READY_S)
    levels: list[int] = json.loads(told.stdout)
    return levels


def test_two_processes_order_fairly_between_tenants(redis_url: str) -> None:
    send(redis_url, "small", 1)
    (*_, much) = send(redis_url, "large", 200)
    (large,), (small,) = send(redis_url, "large", 1), send(redis_url, "small", 1)
    assert large == much > small


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent)
def test_the_script_and_the_pure_shares_agree(
    redis_client: Redis, steps: Sequence[tuple[str, str, list[int]]]
) -> None:
    redis_client.flushdb()
    server, memory = ServerService(redis_client, KEYS), MemoryService()
    for run_id, tenant, lengths_ms in steps:
        lengths_s = [length / 1_000 for length in lengths_ms]
        told, expected = (each.serve(run_id, tenant, lengths_s) for each in (server, memory))
        assert [pytest.approx(one, abs=1e-6) for one in expected] == told


def test_one_that_is_idle_holds_nobody_back_and_keeps_its_lead(redis_client: Redis) -> None:
    service = ServerService(redis_client, KEYS)
    service.serve("r1", "small", [1.0])
    service.serve("r2", "large", [100.0])
    assert service.serve("r2", "large", [0.0]) == [Served(100.0, 99.0)]
    redis_client.zadd("mosaic:{order}:seen", {"small": 0, "large": 0})
    assert service.serve("r3", "third", [10.0]) == [Served(0.0, 0.0)]
    assert service.serve("r2", "large", [0.0])[0].lead_s == pytest.approx(89.0)


def test_all_keys_are_of_one_slot_and_expire(redis_client: Redis) -> None:
    ServerService(redis_client, KEYS).serve("r", "acme", [1.0])
    expiries_ms = {key: redis_client.pttl(key) for key in redis_client.scan_iter()}
    assert len(expiries_ms) == 4
    assert all(b":{order}:" in key for key in expiries_ms)
    assert min(expiries_ms.values()) > 0
