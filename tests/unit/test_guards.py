"""How calls pass the guards: they wait, in order, within their time, and settle; what limits there are; headers."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
import virtual_clock
from pydantic import ValidationError

from mosaic_queues.errors import ContextTooLong, EngineError
from mosaic_routing.guards import (
    BreakerPolicy,
    BucketLimit,
    BudgetSpent,
    Charge,
    GuardedCall,
    Guards,
    Lease,
    Limited,
    Limits,
    MemoryBackend,
    Need,
    Permit,
    Query,
    Request,
    Take,
)
from mosaic_routing.guards.headers import pause_ms, told
from mosaic_routing.guards.values import Answer, Told
from tests.services import READY_S

START_MS = 1_800_000_000_000
MINUTE = BucketLimit(60)  # one a second
ONE = Need(leases=(Lease("x", 1, 1),))
TRY = Need(breaker="x", policy=BreakerPolicy(open_ms=1_000))


def requests(amount: int = 1) -> Need:
    return Need(takes=(Take("requests", amount, MINUTE),))


def on_loop(scenario: Any) -> Any:
    """Runs it on a virtual clock, which the limits share."""

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        with Guards(
            MemoryBackend(lambda: START_MS + round(loop.time() * 1_000)), chance=lambda: 0.0
        ) as guards:
            return await scenario(guards)

    coroutine: Coroutine[Any, Any, Any] = run()
    return virtual_clock.run(coroutine)


def reading(guards: Guards, of: str = "x") -> tuple[int, int]:
    return guards.read(Query(leases=(of,))).leases[0]


async def hold(guards: Guards, need: Need, seconds: float, **options: Any) -> float:
    """Runs a call of this length; when it began."""
    async with guards.admit(need, **options):
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
    return began


def test_a_call_waits_until_there_is_room_in_the_bucket() -> None:
    async def scenario(guards: Guards) -> list[float]:
        await hold(guards, requests(60), 0)
        return await asyncio.gather(*(hold(guards, requests(), 0) for _ in range(5)))

    assert on_loop(scenario) == pytest.approx([1, 2, 3, 4, 5])


def test_a_place_goes_to_who_waited_longest_and_asking_costs_one_step_a_place() -> None:
    async def scenario(guards: Guards) -> tuple[list[float], int]:
        asked: list[Request] = []
        admit = guards.backend.admit

        def counting(request: Request) -> Answer:
            asked.append(request)
            return admit(request)

        guards.backend.admit = counting  # type: ignore[method-assign]
        return await asyncio.gather(*(hold(guards, ONE, 2) for _ in range(10))), len(asked)

    began, asked = on_loop(scenario)
    assert began == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert asked <= 20


def test_a_call_that_comes_later_does_not_overtake() -> None:
    async def scenario(guards: Guards) -> list[float]:
        await hold(guards, requests(60), 0)
        large = asyncio.create_task(hold(guards, requests(10), 0))
        await asyncio.sleep(5)
        return [await hold(guards, requests(1), 0), await large]

    small, large = on_loop(scenario)
    assert large == pytest.approx(10)
    assert small == pytest.approx(11)


def test_the_more_urgent_of_those_that_wait_goes_first() -> None:
    async def scenario(guards: Guards) -> list[float]:
        running = asyncio.create_task(hold(guards, ONE, 10))
        await asyncio.sleep(1)
        later = [asyncio.create_task(hold(guards, ONE, 10, priority=priority)) for priority in (5, 9, 5, 0)]
        return await asyncio.gather(running, *later)

    assert on_loop(scenario) == pytest.approx([0, 20, 40, 30, 10])


def test_the_more_urgent_goes_before_one_that_waits_for_its_moment() -> None:
    async def scenario(guards: Guards) -> list[float]:
        await hold(guards, requests(60), 0)
        large = asyncio.create_task(hold(guards, requests(10), 0, priority=1))
        await asyncio.sleep(5)
        return [await hold(guards, requests(), 0), await large]

    assert on_loop(scenario) == pytest.approx([5, 11])


def test_one_that_cannot_wait_so_long_is_refused_at_once() -> None:
    async def scenario(guards: Guards) -> float:
        await hold(guards, requests(60), 0)
        with pytest.raises(Limited, match=r"the rate limit 'requests' is used up; for 5 s more") as caught:
            await hold(guards, requests(5), 0, wait_s=4.5)
        assert (caught.value.by, caught.value.wait_s) == ("bucket:requests", 5)
        return asyncio.get_running_loop().time()

    assert on_loop(scenario) == 0


def test_one_that_waits_for_a_place_is_refused_when_its_time_is_over() -> None:
    async def scenario(guards: Guards) -> float:
        running = asyncio.create_task(hold(guards, ONE, 60))
        await asyncio.sleep(0)
        behind = asyncio.create_task(hold(guards, ONE, 0, wait_s=8))
        with pytest.raises(Limited, match="all that 'x' may do at once is in use"):
            await hold(guards, ONE, 0, wait_s=7)
        with pytest.raises(Limited):
            await behind
        at = asyncio.get_running_loop().time()
        await running
        return at

    assert on_loop(scenario) == pytest.approx(8)


def test_one_that_is_cancelled_while_it_waits_leaves_the_line_to_the_next() -> None:
    async def scenario(guards: Guards) -> float:
        running = asyncio.create_task(hold(guards, ONE, 5))
        await asyncio.sleep(0)
        first, second = (asyncio.create_task(hold(guards, ONE, 0)) for _ in range(2))
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.wait([first])
        began = await second
        await running
        assert reading(guards) == (0, 0)
        return began

    assert on_loop(scenario) == 5


def test_all_or_nothing() -> None:
    async def scenario(guards: Guards) -> None:
        need = Need(takes=requests().takes, leases=ONE.leases)
        async with guards.admit(ONE):
            with pytest.raises(Limited):
                await hold(guards, need, 0, wait_s=0)
            await hold(guards, requests(60), 0, wait_s=0)

    on_loop(scenario)


def test_a_failed_call_opens_the_breaker_and_others_wait_for_its_probe() -> None:
    async def scenario(guards: Guards) -> list[float]:
        with pytest.raises(EngineError):
            async with guards.admit(TRY):
                raise EngineError("unreachable")
        return await asyncio.gather(*(hold(guards, TRY, 3) for _ in range(3)))

    assert on_loop(scenario) == [1, 4, 4]


def test_a_refused_prompt_does_not_open_it() -> None:
    async def scenario(guards: Guards) -> None:
        with pytest.raises(ContextTooLong):
            async with guards.admit(TRY):
                raise ContextTooLong("of 9,000 tokens")
        assert guards.read(Query(breakers=("x",))).breakers[0].state == "closed"

    on_loop(scenario)


def test_with_all_breakers_open_calls_wait_within_their_time() -> None:
    async def scenario(guards: Guards) -> float:
        needs = [Need(breaker=name, policy=TRY.policy) for name in "abc"]
        for need in needs:
            async with guards.admit(need) as permit:
                permit.ended("failed")
        assert {each.state for each in guards.read(Query(breakers=("a", "b", "c"))).breakers} == {"open"}
        with pytest.raises(Limited, match="the circuit breaker of 'a' is open"):
            await hold(guards, needs[0], 0, wait_s=0.5)
        return await hold(guards, needs[1], 0, wait_s=1.5)

    assert on_loop(scenario) == 1


def test_money_is_reserved_before_and_settled_after() -> None:
    async def scenario(guards: Guards) -> None:
        def cost(micros: int) -> Need:
            return Need(charges=(Charge("run:1", micros, 1_000),))

        async with guards.admit(cost(800)) as permit:
            with pytest.raises(Limited, match="is reserved for calls that run"):
                await hold(guards, cost(300), 0, wait_s=0)
            permit.used(dollars=0.0001)
        said = (
            r"the budget 'run:1' does not suffice for the call: it is \$0\.001, of which \$0\.0001 is spent and "
            r"\$0\.00 reserved for calls that run, and the call may cost \$0\.000901; raise it, ask a cheaper model, or"
        )
        with pytest.raises(BudgetSpent, match=said):
            await hold(guards, cost(901), 0)
        await hold(guards, cost(900), 0)
        assert guards.read(Query(accounts=(("run:1", "total"),))).accounts == ((1_000, 0),)

    on_loop(scenario)


def test_a_day_ends_and_its_budget_is_whole_again() -> None:
    async def scenario(guards: Guards) -> None:
        need = Need(charges=(Charge("all", 600, 1_000, "day"),))
        await hold(guards, need, 0)
        with pytest.raises(BudgetSpent, match="until the day ends, in UTC, in "):
            await hold(guards, need, 0)
        began = await hold(guards, need, 0, wait_s=86_400)
        assert (START_MS + began * 1_000) % 86_400_000 == pytest.approx(0, abs=1)

    on_loop(scenario)


def test_what_runs_over_midnight_is_settled_on_its_own_day() -> None:
    async def scenario(guards: Guards) -> None:
        account = (("all", "day"),)
        need = Need(charges=(Charge("all", 600, 1_000, "day"),))
        await hold(guards, need, 86_400)
        assert guards.read(Query(accounts=account)).accounts == ((0, 0),)  # type: ignore[arg-type]

    on_loop(scenario)


def test_tokens_that_were_not_used_come_back() -> None:
    async def scenario(guards: Guards) -> float:
        need = Need(takes=(Take("tokens", 50, MINUTE, "tokens"),))
        async with guards.admit(need) as permit:
            permit.used(tokens=20)
        return await hold(guards, need, 0)

    assert on_loop(scenario) == pytest.approx(10)


def test_headers_lower_the_provider_s_buckets_alone() -> None:
    async def scenario(guards: Guards) -> None:
        takes = (Take("provider", 1, MINUTE, is_told=True), Take("tenant", 1, MINUTE))
        async with guards.admit(Need(takes=takes)) as permit:
            permit.answered(
                {"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "20s"}, now_s=0
            )
        buckets = guards.read(Query(buckets=(("provider", MINUTE), ("tenant", MINUTE)))).buckets
        assert buckets == (20_000, 0)

    on_loop(scenario)


@pytest.mark.parametrize("amount", [-1.0, math.nan, math.inf, 1e300])
def test_absurd_usage_is_refused(amount: float) -> None:
    permit = Permit("p", is_probe=False, waited_s=0)
    with pytest.raises(ValueError, match="what a call cost is"):
        permit.used(dollars=amount)
    with pytest.raises(ValueError, match="a call used"):
        permit.used(tokens=amount)  # type: ignore[arg-type]


def test_threads_wait_as_tasks_do() -> None:
    with Guards(MemoryBackend()) as guards:
        inside, most, lock = 0, 0, threading.Lock()

        def call() -> None:
            nonlocal inside, most
            for _ in range(20):
                with guards.admit(Need(leases=(Lease("x", 1, 3),))):
                    with lock:
                        inside += 1
                        most = max(most, inside)
                    with lock:
                        inside -= 1

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most <= 3
        assert reading(guards) == (0, 0)


def test_what_was_sent_somewhere_is_counted_there_until_it_ends_or_expires() -> None:
    async def scenario(guards: Guards) -> None:
        for number, weight in enumerate([100, 50, 10]):
            guards.lease(f"call{number}", of="x", weight=weight, expiry_s=60)
        assert reading(guards) == (3, 160)
        guards.lease("call0", of="y", weight=100, expiry_s=60)
        guards.release("call1")
        guards.release("call1")
        assert (reading(guards), reading(guards, "y")) == ((1, 10), (1, 100))
        for _ in range(20):  # somebody lives, so no pause is taken for an outage
            await asyncio.sleep(4)
            reading(guards)
        assert (reading(guards), reading(guards, "y")) == ((0, 0), (0, 0))

    on_loop(scenario)


@pytest.mark.parametrize("pause_s", [4, 6, 12, 100])
def test_what_was_sent_by_the_dead_is_counted_no_more_however_rare_calls_are(pause_s: float) -> None:
    async def scenario(guards: Guards) -> None:
        guards.lease("call", of="x", weight=100, expiry_s=60)
        for _ in range(4 + 100 // pause_s):
            await asyncio.sleep(pause_s)
            reading(guards)
        assert reading(guards) == (0, 0)

    on_loop(scenario)


class Flawed(MemoryBackend):
    """Cannot renew once."""

    def __init__(self) -> None:
        super().__init__()
        self.beats, self.renewed = 0, threading.Event()

    def renew(self, permits: Sequence[str], expiry_ms: int) -> tuple[str, ...]:
        self.beats += 1
        if self.beats == 1:
            raise RuntimeError("nobody thought of this")
        self.renewed.set()
        return super().renew(permits, expiry_ms)


def test_whatever_goes_wrong_permits_are_renewed_by_the_next_beat() -> None:
    backend = Flawed()
    with Guards(backend, expiry_s=0.2) as guards, guards.admit(ONE):
        assert backend.renewed.wait(READY_S)


def test_a_need_names_each_thing_once() -> None:
    with pytest.raises(ValueError, match="lease:x more than once"):
        Need(leases=(Lease("x"), Lease("x")))


@pytest.mark.parametrize("weight", [-1, 10**11])
def test_a_weight_that_is_none_is_refused(weight: int) -> None:
    with pytest.raises(ValueError, match=f"a lease of 'x' weighs {weight}"):
        Lease("x", weight)


@pytest.mark.parametrize("amount", [-1, 10**16])
def test_a_charge_that_is_none_is_refused_by_name(amount: int) -> None:
    with pytest.raises(ValueError, match=f"what a call may cost on account 'run:7' is {amount}"):
        Charge("run:7", amount, None)
    with pytest.raises(ValueError, match=f"the budget of account 'run:7' is {amount}"):
        Charge("run:7", 1, amount)


# -- what limits there are ---------------------------------------------------------------------------------------------


CALL = GuardedCall(
    deployment="api.openai/gpt", model="gpt", tenant="acme", run="7", tokens=900, dollars=0.01, run_dollars=2
)


def test_a_call_needs_something_of_each_limit_that_is_about_it() -> None:
    limits = Limits.model_validate(
        {
            "providers": {
                "api.openai": {"requests_per_minute": 500, "tokens_per_minute": 10_000, "burst_minutes": 0.5}
            },
            "deployments": {"*": {"concurrency": 64}},
            "models": {"other": {"concurrency": 1}},
            "tenants": {"*": {"dollars_per_day": 20}, "acme": {"dollars_per_day": 5}},
            "breaker": {"slow_s": 30, "bad_share": 0.25},
        }
    )
    need = limits.need(CALL)
    assert need.takes == (
        Take("provider:api.openai:requests", 1, BucketLimit(500, 250), "requests", True),
        Take("provider:api.openai:tokens", 900, BucketLimit(10_000, 5_000), "tokens", True),
    )
    assert need.leases == (Lease("deployment:api.openai/gpt", 1, 64),)
    assert need.charges == (
        Charge("tenant:acme", 10_000, 5_000_000, "day"),
        Charge("run:7", 10_000, 2_000_000),
    )
    assert (need.breaker, need.policy.slow_ms, need.policy.bad_percent) == ("api.openai/gpt", 30_000, 25)


def test_without_limits_there_is_the_breaker_alone() -> None:
    need = Limits().need(GuardedCall(deployment="l4/llama"))
    assert need == Need(breaker="l4/llama")


@pytest.mark.parametrize(
    ("declared", "field"),
    [
        ({"tenants": {"acme": {"dollars_per_day": -1}}}, "tenants.acme.dollars_per_day"),
        ({"tenants": {"acme": {"dollars_per_day": math.nan}}}, "tenants.acme.dollars_per_day"),
        ({"dollars_per_day": 1e300}, "dollars_per_day"),
        ({"providers": {"p": {"requests_per_minute": 0}}}, "providers.p.requests_per_minute"),
        ({"providers": {"p": {"requests_per_minute": 10**12}}}, "providers.p.requests_per_minute"),
        ({"providers": {"p": {"rpm": 5}}}, "providers.p.rpm"),
        ({"breaker": {"open_s": 90}}, "breaker"),
    ],
)
def test_limits_that_are_none_are_refused_by_name(declared: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Limits.model_validate(declared)
    assert ".".join(map(str, caught.value.errors()[0]["loc"])) == field


@pytest.mark.parametrize("dollars", [-1.0, math.nan, 1e300])
def test_a_run_s_budget_that_is_none_is_refused_by_name(dollars: float) -> None:
    with pytest.raises(ValueError, match="the budget of 'run:7' is"):
        Limits().need(GuardedCall(deployment="d", run="7", run_dollars=dollars))


# -- headers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, Told()),
        ({"remaining": "17", "reset": "6m0s"}, Told(17, 360_000)),
        ({"remaining": "0", "reset": "1h2m3s"}, Told(0, 3_600_000)),
        ({"remaining": "0", "reset": "250ms"}, Told(0, 250)),
        ({"remaining": "0", "reset": "12"}, Told(0, 12_000)),
        ({"remaining": "0", "reset": "1000000030"}, Told(0, 30_000)),
        ({"remaining": "0", "reset": "soon"}, Told(0, 0)),
        ({"remaining": "0", "reset": "-5"}, Told(0, 0)),
        ({"remaining": "0", "reset": "inf"}, Told(0, 0)),
        ({"remaining": "-3", "reset": "5"}, Told()),
        ({"remaining": "nan"}, Told()),
        ({"remaining": "many"}, Told()),
        ({"remaining": "1e300"}, Told(10_000_000_000, 0)),
    ],
)
def test_what_a_provider_says_of_its_limits(headers: dict[str, str], said: Told) -> None:
    named = {f"x-ratelimit-{what}-tokens": value for what, value in headers.items()}
    assert told(named, "tokens", now_s=1e9) == said
    assert told(named, "requests", now_s=1e9) == Told()


def test_moments_are_of_the_provider_s_clock() -> None:
    headers = {
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2026-01-31T12:00:30Z",
        "date": "Sat, 31 Jan 2026 12:00:00 GMT",
    }
    assert told(headers, "requests", now_s=0) == Told(0, 30_000)


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({}, 0),
        ({"retry-after": "20"}, 20_000),
        ({"retry-after": "20", "retry-after-ms": "150"}, 150),
        ({"retry-after": "1e12"}, 3_600_000),
        ({"retry-after": "-1"}, 0),
        ({"retry-after": "later"}, 0),
    ],
)
def test_the_pause_that_a_provider_asks_for(headers: dict[str, str], pause: int) -> None:
    assert pause_ms(headers, now_s=0) == pause
