"""What a host holds of a run: slots, messages and claims stay in balance, whatever the server does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from made_observers import observer
from redis.exceptions import ConnectionError as RedisConnectionError

from mosaic_queues.errors import CallRevoked, ClaimLost
from mosaic_queues.transitions import EPOCH, Advance, Claim, Usage
from mosaic_tasks import Workflow
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.execution.hosted_run import Flight, HostedRun, Ticket, by_queue
from mosaic_tasks.execution.hosting import Silence
from mosaic_tasks.execution.outcomes import Ending, Expand, Failure, Outcome, Unrecorded, Value, Work, ended
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.pool.slots import Slots

TOOL = {"tool": "tests.integration.host_tools:nothing", "with": {"x": 1}}


class Ledger:
    """Grants claims of what is ready; may lose its answers, or not be there."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.claimed: dict[str, str] = {}
        self.recorded: list[str] = []
        self.failed: list[str] = []
        self.away = 0
        self.loses = 0

    def advance(
        self, _run: str, *, holder: str, done: Sequence[Any], claim: Sequence[str], **_more: Any
    ) -> Advance:
        self._check()
        self.recorded += [item.call for item in done]
        taken = [call for call in claim if call in self.ready]
        answer = Advance([], [Claim(call, 1, 0, 0) for call in taken], [], False)
        self._grant(taken, holder)
        return self._answer(answer)

    def expand(self, _run: str, claim: Claim, *, holder: str, keep: int, **_more: Any) -> Advance:
        self._check()
        self.recorded.append(claim.call)
        items = [f"{claim.call}.{item}" for item in range(keep)]
        self._grant(items, holder)
        return self._answer(Advance([], [Claim(call, 1, 0, 0) for call in items], [], False))

    def fail(self, _run: str, claim: Claim, **_more: Any) -> bool:
        self._check()
        self.failed.append(claim.call)
        return True

    def _grant(self, calls: Sequence[str], holder: str) -> None:
        self.ready -= set(calls)
        self.claimed.update(dict.fromkeys(calls, holder))

    def _check(self) -> None:
        if self.away:
            self.away -= 1
            raise RedisConnectionError("away")

    def _answer(self, answer: Advance) -> Advance:
        if self.loses:
            self.loses -= 1
            raise RedisConnectionError("the answer was lost")
        return answer


class Held:
    """A run on a host without a server: what `HostedRun` asks of its process."""

    def __init__(self, *, limit: int = 8) -> None:
        self.ledger, self.slots = Ledger(), Slots(limit)
        self.published: list[tuple[str, list[str]]] = []
        self.let_go: list[str] = []
        self.told: list[str] = []
        self.done: list[str] = []
        self._names = iter(range(1000))
        reporter = SimpleNamespace(
            failed=lambda *_a, **_k: self.told.append("failed"), succeeded=lambda *_a: self.told.append("ok")
        )
        process = SimpleNamespace(
            ledger=self.ledger,
            settings=SimpleNamespace(continuation_calls=100, continuation_s=1.0),
            claimant=lambda: f"me#{next(self._names)}",
            let_go=self._let_go,
            publish=self._publish,
            publish_chord=lambda *_a: None,
            assure_alive=lambda: None,
            remember_value=lambda *_a: None,
            value=lambda *_a: None,
            slots=lambda _queue: 1,
            serves=(),
            reporter=reporter,
            observer=observer(),
            lengths=SimpleNamespace(add=lambda *_a: None),
            payloads=None,
            host=None,
        )
        nodes = {
            "a": TOOL,
            "b": {**TOOL, "for_each": "${c}"},
            "c": {"tool": "tests.integration.host_tools:count", "with": {"n": 3}},
            "d": {**TOOL, "queue": "other"},
            "all": {"tool": "tests.integration.run_tools:echo", "with": {"value": ["${a}", "${b}", "${d}"]}},
        }
        workflow = Workflow.from_data({"name": "held", "nodes": nodes, "output": "all"})
        self.plan = PreparedPlan("hash", compile_workflow(workflow))
        any_process: Any = process
        self.run = HostedRun(any_process, "run", self.plan, slots=self.slots)

    def _let_go(self, _run: str, claimant: str, *, now: bool = True) -> None:
        self.let_go.append(claimant)
        again = [call for call, holder in self.ledger.claimed.items() if holder == claimant]
        for call in again:
            del self.ledger.claimed[call]
        self.ledger.ready |= set(again)

    def _publish(self, _run: str, _plan: Any, groups: Sequence[Any]) -> None:
        self.published += [(queue, list(calls)) for queue, calls in groups]

    def message(self, name: str, *calls: str, now: float = 0.0) -> None:
        """A message brings ready calls."""
        self.ledger.ready |= set(calls) - self.ledger.claimed.keys()
        self.slots.take(len(calls))
        self.run.give(list(calls), Ticket(calls, lambda: self.done.append(name)), now)

    def step(self, room: int = 100) -> list[Claim]:
        """One transition; what it claimed and would now run."""
        self.run.step(room=room)
        self.run.close_recorded()
        claims, _ = list(self.run.claimed), self.run.claimed.clear()
        return claims

    def record(self, claim: Claim) -> None:
        """A call ends well, and is recorded."""
        self.run.settle(claim, Value(b"", "", Ending()), 0.0)
        self.step(room=0)

    def work(self, claim: Claim) -> Work:
        call = CallId(claim.call)
        return Work(claim, call, self.plan.node(call.node), {}, {}, {}, "me")


@pytest.fixture
def held() -> Iterator[Held]:
    """In the end nothing is left, and each slot is free."""
    found = Held()
    yield found
    found.ledger.away = found.ledger.loses = 0
    assert found.run.is_idle
    assert found.slots.used == 0


def number(held: Held, name: str) -> str:
    """The call of a node."""
    return str([node.name for node in held.plan.plan.nodes].index(name))


def test_a_message_is_done_when_all_its_calls_are_recorded(held: Held) -> None:
    a, d = number(held, "a"), number(held, "d")
    held.message("m", a, d)
    first, second = held.step()
    held.record(first)
    assert (held.done, held.slots.used) == ([], 1)
    held.record(second)
    assert held.done == ["m"]
    assert sorted(held.ledger.recorded) == sorted([a, d])


def test_what_is_settled_keeps_its_message_until_it_is_recorded(held: Held) -> None:
    held.message("m", number(held, "a"))
    (claim,) = held.step()
    held.run.settle(claim, Value(b"", "", Ending()), 0.0)
    held.run.close_recorded()
    assert (held.done, held.slots.used) == ([], 1)
    held.ledger.away = 2
    with pytest.raises(RedisConnectionError):
        held.step()
    assert (held.done, held.slots.used) == ([], 1)
    held.step()
    assert held.done == ["m"]


def test_a_call_that_waits_and_comes_again_takes_one_slot_and_runs_once(held: Held) -> None:
    a = number(held, "a")
    held.message("m", a)
    held.message("again", a)
    assert held.slots.used == 1
    (claim,) = held.step()
    held.record(claim)
    assert held.done == ["m", "again"]


def test_a_call_that_runs_and_comes_again_keeps_its_slot_and_message(held: Held) -> None:
    a = number(held, "a")
    held.message("m", a)
    (claim,) = held.step()
    held.message("again", a)
    assert held.slots.used == 2
    assert held.step() == []
    assert (held.done, held.slots.used) == (["again"], 1)
    held.record(claim)
    assert held.done == ["again", "m"]


def test_what_a_transition_keeps_takes_a_slot(held: Held) -> None:
    held.message("m", number(held, "b"))
    (claim,) = held.step()
    held.run.settle(claim, Expand(3), 0.0)
    kept = list(held.run.claimed)
    held.run.claimed.clear()
    held.run.close_recorded()
    assert (len(kept), held.slots.used, held.done) == (3, 3, ["m"])
    for each in kept:
        held.record(each)


def test_a_lost_answer_lets_go_of_its_own_claims_alone(held: Held) -> None:
    a, d = number(held, "a"), number(held, "d")
    held.message("m", a)
    (running,) = held.step()
    held.message("other", d)
    held.ledger.loses = 1
    assert held.step() == []
    assert held.let_go == [held.run.claimant]
    assert held.ledger.claimed == {a: held.run.holder(running)}
    assert held.done == []
    (again,) = held.step()  # nobody knew whether it was claimed
    assert again.call == d
    for each in (running, again):
        held.record(each)
    assert held.done == ["m", "other"]


def test_a_server_that_stays_away_after_a_lost_answer_leaves_no_claim_behind(held: Held) -> None:
    a = number(held, "a")
    held.message("m", a)
    held.ledger.loses = 2
    with pytest.raises(RedisConnectionError):
        held.step()
    assert held.let_go == [held.run.claimant]
    assert (held.slots.used, held.done) == (1, [])
    (claim,) = held.step()
    held.record(claim)
    assert held.done == ["m"]


def test_a_lost_expansion_leaves_what_was_claimed_beside_it(held: Held) -> None:
    a, b = number(held, "a"), number(held, "b")
    held.message("m", a, b)
    held.run.step(room=8)
    beside = next(claim for claim in held.run.claimed if claim.call == a)
    expanding = next(claim for claim in held.run.claimed if claim.call == b)
    held.run.claimed.remove(expanding)
    name = held.run.holder(beside)
    held.ledger.loses = 1
    held.run.settle(expanding, Expand(3), 0.0)
    assert list(held.run.claimed) == [beside]
    assert held.ledger.claimed[a] == name
    assert name not in held.let_go
    held.run.claimed.clear()
    held.record(beside)


def test_calls_are_handed_back_to_their_own_queues(held: Held) -> None:
    a, d = number(held, "a"), number(held, "d")
    held.message("m", a, d)
    assert held.run.hand_back_late(0.0)
    assert not held.run.hand_back_late(0.0)
    held.run.close_recorded()
    assert dict(held.published) == {"mosaic.cpu": [a], "other": [d]}
    assert (held.done, held.slots.used) == (["m"], 0)
    assert by_queue(held.plan, []) == []


def test_only_what_waits_for_long_is_handed_back(held: Held) -> None:
    a, d = number(held, "a"), number(held, "d")
    held.message("early", a, now=1.0)
    held.message("late", d, now=2.0)
    assert held.run.hand_back_late(1.5)
    held.run.close_recorded()
    assert (held.published, held.done) == ([("mosaic.cpu", [a])], ["early"])
    (claim,) = held.step()
    assert claim.call == d
    held.record(claim)


def test_a_run_that_is_closed_frees_all_it_has(held: Held) -> None:
    a, c, d = (number(held, name) for name in "acd")
    held.message("m", a, d)
    held.message("waits", c)
    held.run.step(room=2)
    held.run.settle(held.run.claimed.popleft(), Value(b"", "", Ending()), 0.0)
    held.run.close()
    assert sorted(held.done) == ["m", "waits"]


def landed(held: Held, claim: Claim, outcome: Outcome, made: list[int]) -> None:
    """A call has run; counts how often its outcome is made."""

    def make() -> Outcome:
        made.append(1)
        return outcome

    execution: Any = None
    held.run.landed.append((Flight(held.work(claim), execution, 0.0, 0.0), make))


def test_a_failure_is_told_and_noted_once_though_the_server_was_away(held: Held) -> None:
    held.message("m", number(held, "a"))
    (claim,) = held.step()
    made: list[int] = []
    usage = Usage("0", "m", 1, 2, None)
    landed(held, claim, Failure("it failed", retryable=True, usage=usage), made)
    held.ledger.away = 3
    for _ in range(3):
        with pytest.raises(RedisConnectionError):
            held.run.settle_landed(1.0, room=8)
    held.run.settle_landed(1.0, room=8)
    assert (made, held.told, held.ledger.failed) == ([1], ["failed"], [claim.call])
    assert held.run.finished.usages == [usage]
    held.step()
    assert held.done == ["m"]


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (ClaimLost("gone"), Unrecorded("gone", is_lost=True)),
        (CallRevoked("revoked"), Failure("node 'a': CallRevoked: revoked", retryable=False, is_revoked=True)),
    ],
)
def test_what_a_cancelled_call_comes_to(reason: Exception, outcome: Outcome) -> None:
    held = Held()
    claim = Claim(number(held, "a"), 1, 0, 0)
    assert ended(held.work(claim), reason) == outcome


def test_a_ticket_is_done_once() -> None:
    done: list[int] = []
    ticket = Ticket(["a", "b"], lambda: done.append(1))
    for calls in (["a"], ["a"], ["b"], ["b"], []):
        ticket.close(calls)
    assert done == [1]


@pytest.mark.parametrize(
    ("times", "length_s"),
    [([0.1] * 5, 0.5), ([0.1, 400.0], 1.1), ([40.0], 1.0), ([], 0.0)],
    ids=["listened", "stopped", "kept waiting", "not asked"],
)
def test_a_silence_lasts_as_long_as_somebody_listened(times: list[float], length_s: float) -> None:
    silence = Silence()
    now = silence._asked
    for pause_s in times:
        now += pause_s
        silence.lasts(now)
    assert silence.lasts(now) == pytest.approx(length_s)
    silence.end()
    assert silence.lasts(now) == 0.0


def test_a_call_of_an_earlier_epoch_takes_back_what_it_said_all_the_same(held: Held) -> None:
    a, other = number(held, "a"), number(held, "d")
    held.message("m", a)
    (claim,) = held.step()
    before, abandoned = held.run.execution, list[str]()
    publication: Any = SimpleNamespace(abandon=lambda: abandoned.append(claim.call))
    before._publications[claim] = publication
    held.run.take(Advance([], [Claim(other, EPOCH + 1, 0, 0)], [], False))
    assert held.run.execution is not before
    held.run.execution.abandon(claim)
    assert abandoned == [a]
    held.run.close()
