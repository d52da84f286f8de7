"""Guards of several processes on one server: they ring, renew, come back after losses, and trust no machine's clock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ReadOnlyError

from mosaic_queues.errors import EngineOverloaded, ServerUnavailable
from mosaic_queues.keys import Keys
from mosaic_routing.guards import (
    Answer,
    BreakerPolicy,
    BucketLimit,
    Charge,
    Guards,
    Lease,
    Limited,
    Need,
    Query,
    Request,
    ServerBackend,
    Settlement,
    Take,
)
from tests.services import READY_S

pytestmark = pytest.mark.integration
ONE = Need(leases=(Lease("x", 1, 1),))
WHOLE = Need(
    takes=(Take("tokens", 10, BucketLimit(600), "tokens"),),
    leases=(Lease("x", 1, 1), Lease("backlog", 70)),
    charges=(Charge("all", 5, 100, "day"),),
    breaker="dep",
)
Make = Callable[..., Guards]


class Unreliable(ServerBackend):
    """Loses the answers of some steps, which happened all the same."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self.loses = ""
        self.error: Exception = ServerUnavailable("the answer was lost")

    def _run(self, name: str, expiry_ms: int, argument: dict[str, Any]) -> Any:
        answer = super()._run(name, expiry_ms, argument)
        if name == self.loses:
            raise self.error
        return answer


class Slow(ServerBackend):
    """Stays in `admit` until it may go on."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self.inside, self.goes_on = threading.Event(), threading.Event()

    def admit(self, request: Request) -> Answer:
        answer = super().admit(request)
        self.inside.set()
        assert self.goes_on.wait(READY_S)
        return answer


@pytest.fixture
def make(redis_client: Redis) -> Iterator[Make]:
    """Makes the guards of one process after the other."""
    made: list[Guards] = []

    def guards(backend: type[ServerBackend] = ServerBackend, *, expiry_s: float = 60.0) -> Guards:
        made.append(Guards(backend(redis_client, Keys("mosaic")), expiry_s=expiry_s, chance=lambda: 0.0))
        return made[-1]

    yield guards
    for each in made:
        each.close()


def active(guards: Guards, of: str = "x") -> int:
    return guards.read(Query(leases=(of,))).leases[0][0]


def enter(guards: Guards, need: Need, **options: Any) -> None:
    with guards.admit(need, **options):
        pass


def test_a_place_that_another_process_gives_back_is_taken(make: Make) -> None:
    ours, theirs = make(), make()
    waiter = threading.Thread(target=enter, args=(theirs, ONE))
    with ours.admit(ONE):
        waiter.start()
    waiter.join()
    assert active(ours) == 0


def test_a_ring_is_heard_when_a_place_is_free(make: Make, redis_client: Redis) -> None:
    guards, heard = make(), threading.Event()
    held = Request(permit="ours", need=ONE, expiry_ms=60_000)
    assert not guards.backend.admit(held).blocker
    assert guards.backend.listen(lambda what: heard.set() if what == "lease:x" else None)
    blocked = guards.backend.admit(Request(permit="theirs", need=ONE, expiry_ms=60_000))
    assert (blocked.by, blocked.is_rung) == ("lease:x", True)
    guards.release("ours")
    assert heard.wait(READY_S)


def test_who_dies_frees_what_it_held(make: Make) -> None:
    guards = make(expiry_s=0.3)
    guards.backend.admit(Request(permit="of the dead", need=WHOLE, expiry_ms=300))
    enter(guards, ONE, wait_s=READY_S)
    readings = guards.read(Query(leases=("x", "backlog"), accounts=(("all", "day"),)))
    assert readings.leases == ((0, 0), (0, 0))
    assert readings.accounts == ((0, 0),)


def test_who_lives_keeps_what_it_holds(make: Make) -> None:
    guards, other = make(expiry_s=0.4), make(expiry_s=0.4)
    with guards.admit(ONE), pytest.raises(Limited, match="all that 'x' may do at once is in use"):
        enter(other, ONE, wait_s=1.5)
    enter(other, ONE, wait_s=0)


def test_who_comes_back_after_its_permit_lapsed_pays_all_the_same(make: Make) -> None:
    guards = make(expiry_s=0.3)
    guards.backend.admit(Request(permit="stalled", need=WHOLE, expiry_ms=300))
    enter(guards, ONE, wait_s=READY_S)
    for _ in range(2):  # the second tells nothing new
        guards.backend.settle(Settlement(permit="stalled", cost=7), 300)
    assert guards.read(Query(accounts=(("all", "day"),))).accounts == ((7, 0),)


def test_an_admission_whose_answer_is_lost_is_given_back(make: Make) -> None:
    guards = make(Unreliable)
    guards.backend.loses = "admit"  # type: ignore[attr-defined]
    with pytest.raises(ServerUnavailable):
        enter(guards, WHOLE)
    assert active(guards) == 1
    guards.keeper.beat()
    readings = guards.read(Query(leases=("x", "backlog"), accounts=(("all", "day"),)))
    assert readings.leases == ((0, 0), (0, 0))
    assert readings.accounts == ((0, 0),)


def test_one_that_is_let_in_after_a_lost_answer_keeps_what_it_took(make: Make) -> None:
    guards, need = make(Unreliable), Need(takes=(Take("tokens", 600, BucketLimit(600), "tokens"),))
    guards.backend.loses = "admit"  # type: ignore[attr-defined]
    with pytest.raises(ServerUnavailable):
        enter(guards, need, permit="a")
    guards.backend.loses = ""  # type: ignore[attr-defined]
    with guards.admit(need, permit="a"):
        guards.keeper.beat()
        assert guards.read(Query(buckets=(("tokens", BucketLimit(600)),))).buckets[0] > 0


@pytest.mark.parametrize("error", [ServerUnavailable("it was lost"), ReadOnlyError("it is a replica now")])
def test_a_call_ends_well_although_its_settling_is_lost(make: Make, error: Exception) -> None:
    guards = make(Unreliable)
    guards.backend.error = error  # type: ignore[attr-defined]
    with guards.admit(WHOLE) as permit:
        permit.used(dollars=3e-6)
        guards.backend.loses = "settle"  # type: ignore[attr-defined]
    guards.backend.loses = ""  # type: ignore[attr-defined]
    guards.keeper.beat()
    assert active(guards) == 0
    assert guards.read(Query(accounts=(("all", "day"),))).accounts == ((3, 0),)


def test_what_is_owed_when_a_process_ends_is_settled(make: Make) -> None:
    guards, other = make(Unreliable), make()
    guards.backend.loses = "admit"  # type: ignore[attr-defined]
    with pytest.raises(ServerUnavailable):
        enter(guards, ONE)
    assert active(other) == 1
    guards.close()
    assert active(other) == 0


def test_a_server_that_lost_everything_learns_who_runs(make: Make, redis_client: Redis) -> None:
    guards, other = make(), make()
    with guards.admit(ONE):
        redis_client.flushdb()
        guards.keeper.beat()
        with pytest.raises(Limited):
            enter(other, ONE, wait_s=0)
    enter(other, ONE, wait_s=0)


def test_a_server_that_does_not_answer_is_told_as_such() -> None:
    with (
        Redis(host="localhost", port=1) as nobody,
        Guards(ServerBackend(nobody, Keys("mosaic"))) as guards,
        pytest.raises(ServerUnavailable, match="does not answer"),
    ):
        enter(guards, ONE)


def test_a_machine_whose_clock_is_minutes_off_counts_as_any_other(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = make(), make()
    with ours.admit(WHOLE):
        now = time.time
        for minutes in (-10, 10):
            monkeypatch.setattr(time, "time", lambda off_s=60 * minutes: now() + off_s)
            monkeypatch.setattr(time, "time_ns", lambda off_s=60 * minutes: int((now() + off_s) * 1e9))
            with pytest.raises(Limited):
                enter(theirs, ONE, wait_s=0)
            theirs.keeper.beat()
            assert active(theirs) == 1


def test_one_task_that_is_cancelled_while_it_is_let_in_leaves_nothing(make: Make) -> None:
    guards = make(Slow)
    backend: Any = guards.backend

    async def scenario() -> None:
        async def call() -> None:
            async with guards.admit(ONE):
                pytest.fail("it was cancelled")

        task = asyncio.create_task(call())
        await asyncio.to_thread(backend.inside.wait, READY_S)
        task.cancel()
        backend.goes_on.set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(scenario())
    assert active(guards) == 0


def test_one_task_that_is_cancelled_twice_while_it_is_let_in_leaves_nothing(make: Make) -> None:
    guards = make(Slow)
    backend: Any = guards.backend

    async def scenario() -> None:
        task = asyncio.create_task(guards.admit(ONE).__aenter__())
        await asyncio.to_thread(backend.inside.wait, READY_S)
        for _ in range(5):
            task.cancel()
            await asyncio.sleep(0)
        backend.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert active(guards) == 0


def test_tasks_share_a_limit_with_threads(make: Make) -> None:
    guards, other = make(), make()

    async def calls() -> None:
        async def call() -> None:
            async with guards.admit(ONE):
                assert active(guards) == 1

        await asyncio.gather(*(call() for _ in range(20)))

    threads = [threading.Thread(target=enter, args=(other, ONE)) for _ in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(calls())
    for thread in threads:
        thread.join()
    assert active(guards) == 0


def test_over_all_processes_a_dead_deployment_costs_one_try_each_time_its_breaker_opens(make: Make) -> None:
    need = Need(breaker="dep", policy=BreakerPolicy(open_ms=100, open_max_ms=100))
    are_probes: list[bool] = []

    def call(guards: Guards) -> None:
        with guards.admit(need) as permit:
            are_probes.append(permit.is_probe)
            raise EngineOverloaded("503")

    def calls(guards: Guards) -> None:
        for _ in range(5):
            with pytest.raises(EngineOverloaded):
                call(guards)

    with pytest.raises(EngineOverloaded):
        call(make())
    threads = [threading.Thread(target=calls, args=(make(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert are_probes == [False] + 20 * [True]


def test_all_keys_are_of_one_slot_and_expire(make: Make, redis_client: Redis) -> None:
    guards = make()
    with guards.admit(WHOLE) as permit:
        permit.ended("failed")
        guards.backend.admit(Request(permit="waits", need=ONE, expiry_ms=1_000))
        expiries_ms = {key: redis_client.pttl(key) for key in redis_client.scan_iter()}
    assert len(expiries_ms) >= 6
    assert all(b":{guards}:" in key for key in expiries_ms)
    assert min(expiries_ms.values()) > 0
