"""A reader of streams takes no more at once than its page, whether it is behind or at the tail; and misses nothing."""

from __future__ import annotations

import threading

import pytest
from redis import Redis

from mosaic_queues.following import Following
from mosaic_queues.keys import Keys
from tests.services import READY_S

pytestmark = pytest.mark.integration


def test_pages_bound_what_is_taken_at_once(redis_client: Redis) -> None:
    rung, seen = threading.Event(), list[bytes]()
    following = Following(redis_client, Keys("mosaic"), {"mosaic:s": "0-0"}, ring=rung.set, page=2)
    try:
        for batch in (range(5), range(5, 12)):
            for number in batch:
                redis_client.xadd("mosaic:s", {"n": number})
            redis_client.expire("mosaic:s", 60)
            while len(seen) <= batch[-1]:
                rung.clear()
                taken = [fields[b"n"] for _, fields in following.take().get("mosaic:s", ())]
                assert len(taken) <= 2
                seen += taken
                assert taken or rung.wait(READY_S)
    finally:
        following.leave()
    assert seen == [b"%d" % number for number in range(12)]
