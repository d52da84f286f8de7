"""The ledger's transitions against a real server: one by one, and in any order that faults may produce."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from mosaic_queues.connection import server_ms
from mosaic_queues.errors import UnknownRun
from mosaic_queues.events import Event, follow_events, read_events
from mosaic_queues.ledger import KeyedRun, Ledger
from mosaic_queues.transitions import Claim, Done, JoinStep, Route, Usage, shadow_of
from mosaic_tasks.definition.plan import NodePlan, Plan, link
from mosaic_tasks.execution.prepared import CallId, PreparedPlan

pytestmark = pytest.mark.integration
NIL = b"\x00\xc0"
QUEUE = "q"
_ids = itertools.count()


@pytest.fixture
def ledger(redis_client: Redis) -> Ledger:
    return Ledger(redis_client)


def open_run(ledger: Ledger, *roots: str, retention_s: float = 60.0) -> str:
    run_id = f"run-{next(_ids)}"
    ledger.open_run(
        run_id,
        plan="p",
        name="n",
        inputs=NIL,
        roots=[(QUEUE, roots)],
        retention_s=retention_s,
        max_run_s=60.0,
    )
    return run_id


def claim(ledger: Ledger, run_id: str, call: str, holder: str = "me") -> Claim:
    (claimed,) = ledger.advance(run_id, holder=holder, claim=[call]).claimed
    return claimed


def done(claimed: Claim, *joins: str) -> Done:
    return Done(claimed.call, claimed.fence, NIL, "done", joins)


def kinds(ledger: Ledger, run_id: str) -> list[str]:
    return [event.kind for event in read_events(ledger.client, ledger.keys, run_id)]


def test_a_run_opens_once(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    again = ledger.open_run(
        run_id, plan="other", name="n", inputs=NIL, roots=[], retention_s=1.0, max_run_s=1.0
    )
    assert not again
    assert ledger.run(run_id).plan == "p"


def test_an_unknown_run_is_named(ledger: Ledger) -> None:
    with pytest.raises(UnknownRun, match="'nowhere'"):
        ledger.run("nowhere")


def test_a_call_is_held_by_one_process_at_a_time(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    assert claim(ledger, run_id, "0").fence == 1
    assert ledger.advance(run_id, holder="other", claim=["0"]).claimed == []


def test_a_claim_tells_since_when(ledger: Ledger) -> None:
    """Not since when the call was ready: what waited long in its queue is not overdue when it starts."""
    run_id = open_run(ledger, "0")
    ready_at(ledger, run_id, "0", ms=1)
    claim(ledger, run_id, "0")
    (claimed,) = [e for e in read_events(ledger.client, ledger.keys, run_id) if e.kind == "claimed"]
    assert [call.at_ms for call in ledger.live_calls(run_id)] == [claimed.at_ms]


def ready_at(ledger: Ledger, run_id: str, call: str, *, ms: int) -> None:
    key = ledger.keys.run(run_id)[1]
    state = msgspec.msgpack.decode(ledger.client.hget(key, call))
    state[5] = ms
    ledger.client.hset(key, call, msgspec.msgpack.encode(state))


def test_a_run_s_keys_outlive_the_time_it_may_take(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0", retention_s=3_600.0)
    lives = [ledger.client.ttl(key) for key in ledger.client.keys(f"*{run_id}*")]
    assert min(lives) > 3_600


def test_a_result_is_recorded_once(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0", "1")
    held = claim(ledger, run_id, "0")
    step = JoinStep("0", 2, [(QUEUE, ["2"])])
    assert ledger.advance(run_id, holder="me", done=[done(held, "0")], joins=[step]).stale == []
    assert ledger.advance(run_id, holder="me", done=[done(held, "0")], joins=[step]).stale == ["0"]
    assert [call.call for call in ledger.live_calls(run_id)] == ["1"]


def test_a_process_that_comes_back_late_is_fenced(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    old = claim(ledger, run_id, "0", "dead")
    assert ledger.take_back(run_id, [("0", old.fence)], holder="dead") == [(QUEUE, ["0"])]
    new = claim(ledger, run_id, "0", "alive")
    assert (new.fence, new.losses) == (2, 1)
    step = JoinStep("0", 1, None)
    assert ledger.advance(run_id, holder="dead", done=[done(old, "0")], joins=[step]).stale == ["0"]
    assert ledger.advance(run_id, holder="alive", done=[done(new, "0")], joins=[step]).closed


def test_a_taken_back_claim_refuses_its_old_holder_before_anybody_claims_it(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    old = claim(ledger, run_id, "0")
    ledger.take_back(run_id, [("0", old.fence)], holder="me")
    assert ledger.advance(run_id, holder="me", done=[done(old)]).stale == ["0"]


def test_a_closing_node_releases_its_successors_and_claims_what_it_serves(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    step = JoinStep("0", 1, [(QUEUE, ["1", "2", "3"]), ("elsewhere", ["4"])])
    answer = ledger.advance(
        run_id,
        holder="me",
        done=[done(claim(ledger, run_id, "0"), "0")],
        joins=[step],
        keep=2,
        serves=[QUEUE],
    )
    assert [held.call for held in answer.claimed] == ["1", "2"]
    assert [tuple(group) for group in answer.ready] == [(QUEUE, ["3"]), ("elsewhere", ["4"])]


def test_a_retry_waits_and_then_is_ready(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    held = claim(ledger, run_id, "0")
    assert ledger.fail(run_id, held, holder="me", error="boom", retry_s=30.0)
    (live,) = ledger.live_calls(run_id)
    assert (live.state, live.failures) == ("delayed", 1)
    assert ledger.advance(run_id, holder="me", claim=["0"]).claimed == []
    assert ledger.wake(run_id, ["0"], now_ms=server_ms(ledger.client)) == []
    assert ledger.wake(run_id, ["0"], now_ms=live.at_ms) == [(QUEUE, ["0"])]


def test_a_final_failure_ends_the_run_and_nothing_of_it_runs_on(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0", "1")
    held = claim(ledger, run_id, "0")
    assert ledger.fail(run_id, held, holder="me", error="node 'a': boom", retry_s=None)
    assert ledger.run(run_id).status == "failed"
    assert ledger.run(run_id).error == "node 'a': boom"
    assert ledger.advance(run_id, holder="me", claim=["1"]).claimed == []


def test_a_cancelled_run_refuses_results_and_claims(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0", "1")
    held = claim(ledger, run_id, "0")
    assert ledger.end_run(run_id, "cancelled", "no longer needed")
    assert not ledger.end_run(run_id, "cancelled", "again")
    assert ledger.advance(run_id, holder="me", done=[done(held)], claim=["1"]).stale == ["0"]
    assert ledger.run(run_id).error == "no longer needed"


@pytest.mark.parametrize("size", [1, 3, 9000])
def test_a_fan_out_closes_after_its_last_item(ledger: Ledger, size: int) -> None:
    run_id = open_run(ledger, "0")
    calls = [f"0.{item}" for item in range(size)]
    answer = ledger.expand(
        run_id,
        claim(ledger, run_id, "0"),
        holder="me",
        join="n0",
        items=[(QUEUE, calls)],
        size=size,
        close=(QUEUE, ["0.c"]),
    )
    assert sum(len(group) for _, group in answer.ready) == size
    step = JoinStep("n0", 0, [(QUEUE, ["0.c"])])
    held = ledger.advance(run_id, holder="me", claim=calls).claimed
    early = ledger.advance(run_id, holder="me", done=[done(c, "n0") for c in held[1:]], joins=[step])
    assert early.ready == []
    last = ledger.advance(run_id, holder="me", done=[done(held[0], "n0")], joins=[step])
    assert [tuple(group) for group in last.ready] == [(QUEUE, ["0.c"])]


def test_an_empty_fan_out_closes_at_once(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    answer = ledger.expand(
        run_id, claim(ledger, run_id, "0"), holder="me", join="n0", items=[], size=0, close=(QUEUE, ["0.c"])
    )
    assert [tuple(group) for group in answer.ready] == [(QUEUE, ["0.c"])]


def test_every_key_of_a_finished_run_expires(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0", retention_s=0.05)
    ledger.client.hset(ledger.keys.run(run_id)[4], "blob", b"x")
    step = JoinStep("0", 1, None)
    assert ledger.advance(
        run_id, holder="me", done=[done(claim(ledger, run_id, "0"), "0")], joins=[step]
    ).closed
    keys = ledger.client.keys(f"*{run_id}*")
    assert all(0 <= ledger.client.pttl(key) <= 50 for key in keys)


def test_use_is_recorded_with_the_transition_but_brings_no_run_back(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    used = Usage("0", "some-model", 10, 20, 0.5, 4, fence=1, finish="length")
    ledger.advance(run_id, holder="me", usages=[used])
    (event,) = [e for e in read_events(ledger.client, ledger.keys, run_id) if e.kind == "usage"]
    assert (event.detail, event.tokens, event.cost_usd) == ("some-model", (10, 20), 0.5)
    assert (event.cached_tokens, event.finish) == (4, "length")
    ledger.advance("gone", holder="me", usages=[used])
    assert ledger.client.keys("*gone*") == []


def test_use_is_noted_once_for_each_claim_however_often_it_is_told(ledger: Ledger) -> None:
    """As after an answer that was lost."""
    run_id = open_run(ledger, "0")
    used = Usage("0", "some-model", 10, 20, None, fence=1)
    for again in (used, used, used._replace(fence=2)):
        ledger.advance(run_id, holder="me", usages=[again])
    noted = [e.cost_usd for e in read_events(ledger.client, ledger.keys, run_id) if e.kind == "usage"]
    assert noted == [None, None]


def test_envelopes_come_with_the_claims_that_read_them(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0", "1")
    ledger.advance(run_id, holder="me", done=[done(claim(ledger, run_id, "0"))])
    answer = ledger.advance(run_id, holder="me", claim=["1"], read=["0", "7"])
    assert answer.outputs == {"0": NIL}


def test_an_idempotency_key_gives_the_first_run(ledger: Ledger) -> None:
    first, second = (KeyedRun(run_id, "report", "w", "i") for run_id in ("first", "second"))
    assert ledger.run_for_key("", "k", first, keep_s=60.0) == first
    assert ledger.run_for_key("", "k", second, keep_s=60.0) == first


def test_events_can_be_read_on_from_any_of_them(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    claim(ledger, run_id, "0")
    events = read_events(ledger.client, ledger.keys, run_id)
    for position, event in enumerate(events):
        rest = read_events(ledger.client, ledger.keys, run_id, after=event.id)
        assert rest == events[position + 1 :]


def test_following_ends_with_the_run(ledger: Ledger) -> None:
    run_id = open_run(ledger, "0")
    ledger.end_run(run_id, "cancelled", "")
    followed = [e for e in follow_events(ledger.client, ledger.keys, run_id, block_ms=10) if e is not None]
    assert [event.kind for event in followed] == ["opened", "ready", "closed"]


# -- any order of faults ---------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> Plan:
    nodes = draw(st.integers(1, 8))
    deps = [
        tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=3)))) if number else ()
        for number in range(nodes)
    ]
    return link(
        "random",
        [NodePlan(f"n{i}", "tool", QUEUE, deps=d) for i, d in enumerate(deps)],
        output=nodes - 1,
    )


class Chaos:
    """Processes that claim, finish, fail, die, and come back late, on one run."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self.ledger, self.plan = ledger, PreparedPlan("p", plan)
        self.run_id = f"chaos-{next(_ids)}"
        self.held: list[tuple[str, Claim]] = []
        self.lost: list[tuple[str, Claim]] = []
        self.shadows: list[tuple[str, Claim]] = []
        ledger.open_run(
            self.run_id,
            plan="p",
            name="n",
            inputs=NIL,
            roots=self.plan.by_queue(plan.roots),
            retention_s=60.0,
            max_run_s=60.0,
        )

    def ready(self) -> list[str]:
        return sorted(call.call for call in self.ledger.live_calls(self.run_id) if call.state == "ready")

    def claim(self, pick: int, holder: str) -> None:
        if ready := self.ready():
            wanted = [ready[pick % len(ready)]] * 2
            self._hold(holder, self.ledger.advance(self.run_id, holder=holder, claim=wanted[:1]).claimed)
            assert self.ledger.advance(self.run_id, holder=holder, claim=wanted[:1]).claimed == []

    def _hold(self, holder: str, claims: list[Claim]) -> None:
        self.held += [(holder, claimed) for claimed in claims]

    def finish(self, pick: int, keep: int) -> None:
        if self.held:
            holder, claimed = self.held.pop(pick % len(self.held))
            self._hold(holder, self._record(holder, claimed, keep).claimed)

    def _record(self, holder: str, claimed: Claim, keep: int = 0):
        steps = self.plan.steps(CallId(claimed.call))
        return self.ledger.advance(
            self.run_id,
            holder=holder,
            done=[done(claimed, *(step.name for step in steps))],
            joins=steps,
            keep=keep,
            serves=[QUEUE],
        )

    def fail(self, pick: int, _keep: int) -> None:
        if self.held:
            holder, claimed = self.held.pop(pick % len(self.held))
            assert self.ledger.fail(self.run_id, claimed, holder=holder, error="boom", retry_s=0.0)
            self.lost.append((holder, claimed))
            self.ledger.wake(self.run_id, [claimed.call], now_ms=server_ms(self.ledger.client) + 1)

    def die(self, pick: int, _keep: int) -> None:
        if self.held:
            holder, claimed = self.held.pop(pick % len(self.held))
            self.ledger.take_back(self.run_id, [(claimed.call, claimed.fence)], holder=holder)
            self.lost.append((holder, claimed))

    def come_back(self, pick: int, _keep: int) -> None:
        if self.lost:
            holder, claimed = self.lost[pick % len(self.lost)]
            assert self._record(holder, claimed).stale == [claimed.call]

    def hedge(self, pick: int, _keep: int) -> None:
        """A call that is held gets a shadow, which another process claims."""
        if self.held:
            holder, claimed = self.held[pick % len(self.held)]
            shadow = Route(shadow_of(claimed.call), QUEUE, "there", "", 0, NIL)
            self.ledger.hedge(self.run_id, claimed, shadow, holder=holder)
            taken = self.ledger.advance(self.run_id, holder="s", claim=[shadow.call]).claimed
            self.shadows += [("s", claim) for claim in taken]

    def overtake(self, pick: int, _keep: int) -> None:
        """A shadow answers, perhaps one that was dropped already."""
        if self.shadows:
            holder, shadow = self.shadows[pick % len(self.shadows)]
            claimed = self.ledger.overtake(self.run_id, shadow, holder=holder)
            if claimed is not None and (holder, claimed) not in self.held:
                first = [each for each in self.held if each[1].call == claimed.call]
                self.held = [each for each in self.held if each not in first] + [(holder, claimed)]
                self.lost += first

    def drop(self, pick: int, _keep: int) -> None:
        """The process of a shadow dies."""
        if self.shadows:
            _, shadow = self.shadows[pick % len(self.shadows)]
            self.ledger.take_back(self.run_id, [(shadow.call, shadow.fence)], holder="s")

    def end(self) -> Iterator[Event]:
        while self.ledger.run(self.run_id).status == "running":
            for holder in ("p", "q"):
                self.claim(0, holder)
            self.finish(0, 1)
        return iter(read_events(self.ledger.client, self.ledger.keys, self.run_id))


ACTIONS = ["claim", "finish", "fail", "die", "come_back", "hedge", "overtake", "drop"]
STEPS = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=graphs(), steps=st.lists(STEPS, min_size=10, max_size=40))
def test_every_node_closes_exactly_once_whatever_dies(
    ledger: Ledger, plan: Plan, steps: list[tuple[str, int]]
) -> None:
    chaos = Chaos(ledger, plan)
    for name, pick in steps:
        if name == "claim":
            chaos.claim(pick, "pq"[pick % 2])
        else:
            getattr(chaos, name)(pick, pick % 3)
    events = list(chaos.end())
    closed = Counter(call for event in events if event.kind == "done" for call in event.calls)
    assert closed == Counter(str(number) for number in range(len(plan.nodes)))
    assert events[-1].kind == "closed"
    assert ledger.live_calls(chaos.run_id) == []
    order = [call for event in events if event.kind == "done" for call in event.calls]
    for number, node in enumerate(plan.nodes):
        assert all(order.index(str(dep)) < order.index(str(number)) for dep in node.deps)
    keys = ledger.client.keys(f"*{chaos.run_id}*")
    ledger.client.delete(*keys)
