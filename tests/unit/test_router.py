"""Where calls go: what must hold under every policy, what ours goes by, and what is said when nothing is open."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_routing.affinity import Memory
from mosaic_routing.router import Policy, PolicyName, route
from mosaic_routing.snapshot import Snapshot, wait_s
from mosaic_routing.targets import Ask, Target

POLICIES = get_args(PolicyName)
STALE_S = 5.0


def target(name: str, **values: Any) -> Target:
    given_ = {"deployment": f"{name}/llama", "slots": 4, "decode_tokens_s": 40.0, "prefill_tokens_s": 1600.0}
    return Target(
        name=name, model="llama", engine="simulated:llama", queue=f"mosaic.direct.{name}", **given_ | values
    )


def full(name: str, *, active: int, tokens: float = 200.0, **values: Any) -> Target:
    return target(name, active=active, backlog_tokens=active * tokens, **values)


def ask(**values: Any) -> Ask:
    return Ask(**{"call": "run/1", "input_tokens": 400.0, "output_tokens": 200.0} | values)


positive = st.floats(0.1, 1e4)
targets = st.builds(
    Target,
    name=st.uuids().map(str),
    deployment=st.sampled_from(["h100/llama", "l4/llama", "api.x/gpt"]),
    model=st.just("llama"),
    engine=st.just("simulated:llama"),
    queue=st.just("q"),
    slots=st.integers(0, 8),
    active=st.integers(0, 30),
    backlog_tokens=st.floats(0, 1e5),
    prefill_tokens_s=st.one_of(positive, st.just(math.inf), st.just(0.0)),
    decode_tokens_s=st.one_of(positive, st.just(0.0), st.just(math.nan)),
    output_price=st.floats(0, 20),
    quality=st.floats(0, 1),
    context_tokens=st.integers(1, 8192),
    age_s=st.floats(0, 2 * STALE_S),
    is_open=st.booleans(),
    ready_in_s=st.one_of(st.just(0.0), st.floats(0, 60)),
)
asks = st.builds(
    Ask,
    call=st.uuids().map(str),
    targets=st.sampled_from([(), ("h100/llama",), ("l4/llama", "api.x/gpt"), ("none/llama",)]),
    input_tokens=st.floats(0, 5000),
    output_tokens=st.floats(0, 2000),
    prefix=st.lists(st.integers(0, 20), max_size=5).map(tuple),
    objective=st.sampled_from(["latency", "throughput", "cost"]),
    deadline_s=st.one_of(st.just(math.inf), st.floats(0, 100)),
    budget=st.one_of(st.just(math.inf), st.floats(-1, 0.1), st.just(math.nan)),
    latency_s=st.one_of(st.just(math.inf), st.floats(0, 100)),
)


@pytest.mark.parametrize("name", POLICIES)
@given(fleet=st.lists(targets, max_size=6, unique_by=lambda one: one.name), asked=asks)
def test_no_policy_chooses_a_target_that_must_not_take_the_call(
    name: PolicyName, fleet: list[Target], asked: Ask
) -> None:
    asked = msgspec.structs.replace(asked, excluded=tuple(one.name for one in fleet[:1]))
    decision = route(asked, Snapshot(fleet, stale_s=STALE_S), policy=Policy(name=name), memory=Memory())
    if not decision.target:
        assert decision.reasons
        assert 0.0 <= decision.wait_s <= asked.deadline_s
        return
    chosen = next(one for one in fleet if one.name == decision.target)
    assert not chosen.is_open
    assert chosen.slots > 0
    assert chosen.decode_tokens_s > 0
    assert chosen.ready_in_s == 0.0
    assert chosen.age_s <= STALE_S
    assert chosen.name not in asked.excluded
    assert not asked.targets or chosen.deployment in asked.targets
    assert asked.input_tokens + asked.output_tokens <= chosen.context_tokens
    assert decision.cost <= asked.budget
    assert decision.latency_s <= asked.deadline_s


@given(st.lists(targets, max_size=6, unique_by=lambda one: one.name), asks)
def test_a_decision_is_a_function_of_its_arguments(fleet: list[Target], asked: Ask) -> None:
    assert route(asked, Snapshot(fleet)) == route(asked, fleet)


@given(
    active=st.integers(0, 100), more=st.integers(0, 20), slots=st.integers(1, 16), tokens=st.floats(1, 1e4)
)
def test_more_requests_of_the_same_length_never_shorten_the_wait(
    active: int, more: int, slots: int, tokens: float
) -> None:
    before = wait_s(active, active * tokens, slots=slots, output_s=0.01)
    after = wait_s(active + more, (active + more) * tokens, slots=slots, output_s=0.01)
    assert before <= after + 1e-9


def test_there_is_no_wait_as_long_as_a_slot_is_free() -> None:
    assert wait_s(3, 1e6, slots=4, output_s=1.0) == 0.0


def test_one_of_four_requests_side_by_side_ends_in_a_quarter_of_their_length() -> None:
    assert wait_s(4, 400.0, slots=4, output_s=0.1) == pytest.approx(2.5)


def test_the_longest_answer_goes_to_the_fast_target_and_the_shortest_to_the_slow_one() -> None:
    fleet = Snapshot([full("fast", active=6, decode_tokens_s=160.0), full("slow", active=1)])
    assert route(ask(output_tokens=20.0, input_tokens=0.0), fleet).target == "slow"
    assert route(ask(output_tokens=2000.0, input_tokens=0.0), fleet).target == "fast"


def test_a_fuller_fast_target_is_left_to_longer_answers_before_anybody_waits_there() -> None:
    fleet = Snapshot([full("fast", active=3, decode_tokens_s=50.0), target("slow", decode_tokens_s=40.0)])
    decision = route(ask(output_tokens=100.0), fleet)
    assert decision.target == "slow"
    assert any("fast would answer in" in reason and "longer answers" in reason for reason in decision.reasons)


def test_cost_takes_the_cheaper_target_and_latency_the_faster_one() -> None:
    fleet = Snapshot([target("fast", decode_tokens_s=200.0, output_price=10.0), target("cheap")])
    assert route(ask(objective="latency"), fleet).target == "fast"
    assert route(ask(objective="cost"), fleet).target == "cheap"


def test_a_better_model_is_worth_a_little_more_time() -> None:
    fleet = Snapshot([target("good", quality=0.95, decode_tokens_s=38.0), target("bad", quality=0.55)])
    assert route(ask(), fleet).target == "good"


def test_within_its_latency_target_a_call_takes_the_cheaper_one() -> None:
    fleet = Snapshot([target("fast", decode_tokens_s=80.0, output_price=100.0), target("slow")])
    assert route(ask(), fleet).target == "fast"
    assert route(ask(latency_s=10.0), fleet).target == "slow"
    assert route(ask(latency_s=3.0), fleet).target == "fast"


def test_a_call_goes_where_its_prefix_is_and_costs_only_the_rest() -> None:
    fleet, memory = Snapshot([target("a"), target("b"), target("c")]), Memory()
    memory.note("b", (1, 2, 3))
    decision = route(ask(prefix=(1, 2, 3, 4)), fleet, memory=memory)
    assert decision.target == "b"
    assert decision.cached_tokens == pytest.approx(300.0)
    assert decision.work_tokens == pytest.approx(200.0 + 100.0 / 40.0)


def test_a_prefix_counts_no_more_where_a_target_has_its_share() -> None:
    fleet, memory = Snapshot([target("a", first_token_s=0.05), target("b")]), Memory()
    memory.note("a", (1, 2, 3), work_tokens=1000.0)
    memory.note("b", (), work_tokens=100.0)
    assert route(ask(prefix=(1, 2, 3)), fleet, memory=memory).target == "b"


def test_processes_that_know_nothing_of_each_other_send_a_new_prefix_to_the_same_target() -> None:
    fleet = [target(f"t{number}") for number in range(8)]
    for first in range(40):
        prefix = tuple(range(100 * first, 100 * first + 4))
        chosen = {
            route(
                ask(prefix=prefix, input_tokens=4000.0, call=f"run/{process}"),
                Snapshot(fleet),
                memory=Memory(),
            ).target
            for process in range(5)
        }
        assert len(chosen) == 1


def test_equal_targets_are_not_all_taken_in_the_same_order() -> None:
    fleet = Snapshot([target(f"t{number}") for number in range(4)])
    assert len({route(Ask(call=f"run/{number}"), fleet).target for number in range(50)}) == 4


def test_what_was_sent_counts_before_the_next_snapshot() -> None:
    fleet = Snapshot([target("a", slots=1), target("b", slots=1)])
    first = route(ask(), fleet)
    fleet.sent(first)
    second = route(ask(), fleet)
    assert {first.target, second.target} == {"a", "b"}


def test_round_robin_takes_turns() -> None:
    fleet, memory, chosen = Snapshot([target("a"), target("b"), target("c")]), Memory(), []
    for _ in range(6):
        decision = route(ask(), fleet, policy=Policy(name="round-robin"), memory=memory)
        memory.note(decision.target, ())
        chosen.append(decision.target)
    assert chosen == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("least-outstanding", {"active": 0}),
        ("backlog", {"active": 0}),
        ("speed", {"decode_tokens_s": 400.0}),
        ("price", {"output_price": 1.0}),
        ("quality", {"quality": 1.0}),
    ],
)
def test_an_ingredient_alone_takes_what_is_best_by_it(name: PolicyName, best: dict[str, Any]) -> None:
    others = [full(f"t{number}", active=2, output_price=5.0, quality=0.5) for number in range(3)]
    chosen = msgspec.structs.replace(full("best", active=2, output_price=5.0, quality=0.5), **best)
    if "active" in best:
        chosen = msgspec.structs.replace(chosen, backlog_tokens=0.0)
    assert route(ask(), Snapshot([*others, chosen]), policy=Policy(name=name)).target == "best"


def test_no_worker_for_any_target_waits_and_says_so() -> None:
    decision = route(ask(targets=("h100/llama",)), Snapshot([]))
    assert decision.target == ""
    assert decision.wait_s > 0
    assert decision.reasons[-1] == "no worker serves h100/llama"


def test_a_fleet_that_shrinks_to_nothing_and_returns_is_used_again_and_keeps_its_prefixes() -> None:
    fleet, memory = [target("a"), target("b"), target("c")], Memory()
    memory.note("b", (1, 2, 3))
    asked = ask(prefix=(1, 2, 3))
    assert [route(asked, now, memory=memory).target for now in (fleet, [], fleet)] == ["b", "", "b"]


def test_when_all_are_closed_the_next_look_is_when_the_first_opens() -> None:
    fleet = Snapshot([target("a", ready_in_s=4.0), target("b", ready_in_s=2.5), target("c", is_open=True)])
    decision = route(ask(), fleet)
    assert decision.wait_s == 2.5
    assert "b: its limits let nothing through now" in decision.reasons
    assert "c: its circuit breaker is open" in decision.reasons


def test_nothing_that_opens_after_the_deadline_is_waited_for() -> None:
    decision = route(ask(deadline_s=1.0), Snapshot([target("a", ready_in_s=4.0)]))
    assert decision.wait_s == 0.0
    assert decision.reasons[0] == "no target opens before the deadline in 1.00 s"


def test_a_closed_target_that_could_never_serve_the_call_is_not_waited_for() -> None:
    decision = route(ask(), Snapshot([target("a", ready_in_s=4.0, context_tokens=100)]))
    assert decision.wait_s == 0.0
    assert decision.reasons[0] == "no target can serve this call"


def test_stale_targets_are_closed_and_looked_at_again() -> None:
    decision = route(ask(), Snapshot([target("a", age_s=60.0)], stale_s=STALE_S))
    assert decision.wait_s > 0
    assert "a: its last report is 60.0 s old, more than 5.0 s" in decision.reasons


def test_of_many_that_were_left_out_a_few_are_told() -> None:
    fleet = Snapshot([target("a"), *(target(f"t{number}", is_open=True) for number in range(9))])
    reasons = route(ask(), fleet).reasons
    assert sum("circuit breaker" in reason for reason in reasons) == 3
    assert reasons[-1] == "6 more targets were left out"


def test_what_does_not_fit_is_told_with_its_numbers() -> None:
    fleet = Snapshot(
        [
            target("small", context_tokens=500),
            target("dear", output_price=1e4),
            target("slow", decode_tokens_s=1.0),
        ]
    )
    reasons = route(ask(deadline_s=60.0, budget=0.5), fleet).reasons
    assert "small: prompt and answer have 600 tokens, its context only 500" in reasons
    assert "dear: the call would cost 2.000000 US dollars there, and may cost 0.500000" in reasons
    assert "slow: it would answer after the deadline in 60.00 s" in reasons


def test_a_machine_that_the_call_wants_to_share_is_preferred_where_it_costs_little() -> None:
    here = target("here", machine="one", decode_tokens_s=100.0)
    there = target("there", machine="other", decode_tokens_s=90.0)
    slow = target("slow", machine="far", decode_tokens_s=10.0)
    near = [
        route(Ask(call="r/1", output_tokens=100, near=(machine,)), [here, there, slow])
        for machine in ("other", "far")
    ]
    assert [decision.target for decision in near] == ["there", "here"]
    assert "it is on other, as the call wants" in near[0].reasons
