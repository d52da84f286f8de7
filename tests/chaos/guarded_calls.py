"""A process that makes guarded calls until it is killed. Used by `test_guard_faults.py`.

Each call notes in the server that it is inside, under the name of its process, so that whoever kills that one can
strike it off; how many were inside at the most is noted in the same step.
"""

from __future__ import annotations

import os
import random
from itertools import count

from redis import Redis

from mosaic_queues.connection import connect
from mosaic_queues.keys import Keys
from mosaic_routing.guards import BreakerPolicy, BucketLimit, Charge, Guards, Lease, Need, ServerBackend, Take

LIMIT = 5
RATE = BucketLimit(30_000, 500)
EXPIRY_S = 3.0
COST_MICROS = 50
NEED = Need(
    takes=(Take("calls", 1, RATE),),
    leases=(Lease("few", 1, LIMIT), Lease("backlog", 70)),
    charges=(Charge("run", 2 * COST_MICROS, 10**9),),
    breaker="dep",
    policy=BreakerPolicy(open_ms=20, open_max_ms=100),
)
INSIDE, MOST, BEGUN, ENDED = "inside", "most", "begun", "ended"
_ENTER = """
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], math.max(redis.call('SCARD', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or 0)))
redis.call('RPUSH', KEYS[3], ARGV[1])
"""


def call(client: Redis, guards: Guards, name: str) -> None:
    """Makes one, and tells of it."""
    with guards.admit(NEED) as permit:
        client.eval(_ENTER, 3, INSIDE, MOST, BEGUN, name)
        permit.used(dollars=COST_MICROS / 1e6)
        if random.random() < 0.02:
            permit.ended("failed")
        client.srem(INSIDE, name)
    client.incr(ENDED)


def main() -> None:
    """Makes calls for ever."""
    with connect() as client, Guards(ServerBackend(client, Keys("mosaic")), expiry_s=EXPIRY_S) as guards:
        for number in count():
            call(client, guards, f"{os.getpid()}/{number}")


if __name__ == "__main__":
    main()
