"""Transitions of several runs that share a trip, and hosts whose runs ask so."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from mosaic_queues.advancing import OtherPlan, Transition
from mosaic_queues.errors import RunFailed
from mosaic_queues.ledger import Ledger
from mosaic_queues.transitions import Done
from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.hosting import Host
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.process import Process, process_for
from mosaic_tasks.pool.slots import Slots

pytestmark = pytest.mark.integration
QUEUE, WAIT_S = "q", 10.0
ECHO = {
    "name": "echo",
    "nodes": {"one": {"tool": "tests.integration.host_tools:meets", "with": {"x": 1, "n": 1}}},
    "output": "one",
}
_ids = itertools.count()


def opened(ledger: Ledger) -> str:
    run_id = f"run-{next(_ids)}"
    roots = [(QUEUE, ["0", "1"])]
    ledger.open_run(run_id, plan="p", name="n", inputs=b"", roots=roots, retention_s=60, max_run_s=60)
    return run_id


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_each_transition_has_its_own_answer(redis_client: Redis) -> None:
    ledger = Ledger(redis_client)
    first, second, third = (opened(ledger) for _ in range(3))
    (claim,) = ledger.advance(second, holder="me", claim=["0"]).claimed
    redis_client.set(f"mosaic:{{{third}}}:calls", "no hash", ex=60)
    done = Done("0", claim.fence, b"value", "done", ())
    stale = done._replace(fence=claim.fence + 1)
    answers = ledger.advance_together(
        [
            Transition(first, "me", claim=["0"], read=["in"]),
            Transition(second, "me", done=[stale, done], claim=["1"]),
            Transition(third, "me", claim=["0"]),
        ]
    )
    assert not isinstance(answers[0], Exception)
    assert not isinstance(answers[1], Exception)
    assert [each.call for each in answers[0].claimed] == ["0"]
    assert answers[0].outputs == {"in": b""}
    assert [each.call for each in answers[1].claimed] == ["1"]
    assert answers[1].stale == ["0"]
    assert isinstance(answers[2], ResponseError)


def test_a_run_that_has_another_plan_is_left_as_it_is(redis_client: Redis) -> None:
    ledger = Ledger(redis_client)
    first, second = opened(ledger), opened(ledger)
    asked = [
        Transition(first, "me", claim=["0"], plan="other"),
        Transition(second, "me", claim=["0"], plan="p"),
    ]
    before = ledger.live_calls(first)
    refused, answer = ledger.advance_together(asked)
    assert isinstance(refused, OtherPlan)
    assert not isinstance(answer, Exception)
    assert [each.call for each in answer.claimed] == ["0"]
    assert ledger.live_calls(first) == before
    with pytest.raises(OtherPlan, match=f"run {first} has not the plan other"):
        ledger.advance(first, **asked[0].options())


# -- a host ------------------------------------------------------------------------------------------------------------


class Trips:
    """Between a host and the ledger: what goes there, and when nothing comes back.

    Attributes:
        sizes: of each trip, how many runs it was for.
        away: so many trips have no answer from now on.
        arrives: whether the server has done what they asked all the same.
    """

    def __init__(self, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.away, self.arrives = 0, False
        self._ledger = process.ledger
        self._alone, self._together = process.ledger.advance, process.ledger.advance_together
        monkeypatch.setattr(process.ledger, "advance", self._advance)
        monkeypatch.setattr(process.ledger, "advance_together", self._advance_together)

    def _advance(self, run_id: str, **options: Any) -> Any:
        return self._trip(1, lambda: self._alone(run_id, **options))

    def _advance_together(self, transitions: Any) -> Any:
        return self._trip(len(transitions), lambda: self._together(transitions))

    def _trip(self, size: int, go: Callable[[], Any]) -> Any:
        self.sizes.append(size)
        if not self.away:
            return go()
        self.away -= 1
        if self.arrives:
            go()
        raise RedisConnectionError("away")


@pytest.fixture
def process(mosaic_process: Any) -> Process:
    return process_for(app)


@pytest.fixture
def trips(process: Process, monkeypatch: pytest.MonkeyPatch) -> Trips:
    return Trips(process, monkeypatch)


@pytest.fixture
def host(process: Process) -> Iterator[Host]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = Host(process, loop=loop, slots=Slots(8))
    process.host = made
    yield made
    made.close()
    process.host = None
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def given(host: Host, count: int) -> tuple[list[Run], list[str]]:
    """So many runs of one call, whose messages a host gets while its clerk is busy; and those that are done."""
    runs, done = [submit(Workflow.from_data(ECHO)) for _ in range(count)], list[str]()
    for run in runs:
        host.take(run.id, ["0"], lambda run_id=run.id: done.append(run_id))  # type: ignore[misc]
    return runs, done


@pytest.fixture
def held(host: Host, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The clerk collects nothing until this is set."""
    go = threading.Event()
    collect = host._collect

    def wait(timeout_s: float | None) -> None:
        go.wait()
        collect(timeout_s)

    monkeypatch.setattr(host, "_collect", wait)
    host._inbox.put(None)  # it may wait for something in there already
    return go


def results(runs: list[Run]) -> list[Any]:
    return [run.result(WAIT_S) for run in runs]


def await_done(done: list[str], runs: list[Run]) -> None:
    deadline = time.monotonic() + WAIT_S
    while sorted(done) != sorted(run.id for run in runs):
        assert time.monotonic() < deadline, done
        threading.Event().wait(0.01)


def test_runs_that_begin_together_share_a_trip(host: Host, held: threading.Event, trips: Trips) -> None:
    runs, done = given(host, 5)
    held.set()
    assert results(runs) == [1] * 5
    await_done(done, runs)
    assert trips.sizes[0] == 5
    assert host._slots.used == 0


def test_the_plans_of_runs_that_came_together_are_asked_for_at_once(
    host: Host, held: threading.Event, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, done = given(host, 5)
    process._plan_hashes.clear()
    asked: list[list[str]] = []
    ask = process.ledger.plan_hashes
    monkeypatch.setattr(process.ledger, "plan_hashes", lambda ids: asked.append(ids) or ask(ids))
    with monkeypatch.context() as alone:
        alone.setattr(process.ledger, "run", lambda _run_id: 1 / 0)
        held.set()
        await_done(done, runs)
    assert [sorted(ids) for ids in asked] == [sorted(run.id for run in runs)]
    assert results(runs) == [1] * 5


OTHER = ECHO | {
    "name": "other",
    "nodes": {"one": {"tool": "tests.integration.host_tools:meets", "with": {"x": 2, "n": 1}}},
}


@pytest.fixture
def no_plans(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Which plan a run has is not known here; what asks for that."""
    asked: list[Any] = []
    for name in ("run", "plan_hashes"):
        ask = getattr(process.ledger, name)
        monkeypatch.setattr(process.ledger, name, lambda what, ask=ask: asked.append(what) or ask(what))
    return asked


def test_a_host_need_not_ask_for_a_plan_that_a_message_names(
    host: Host, process: Process, no_plans: list[Any]
) -> None:
    run, done = submit(Workflow.from_data(ECHO)), list[str]()
    plan = process.plan_of(run.id).hash
    process._plan_hashes.clear()
    host.take(run.id, ["0"], lambda: done.append(run.id), plan=plan)
    await_done(done, [run])
    assert no_plans == []
    assert process.knows_plan_of(run.id)
    assert results([run]) == [1]


def test_a_message_that_names_another_plan_changes_nothing(
    host: Host, held: threading.Event, process: Process, no_plans: list[Any]
) -> None:
    """Nor does it keep the run's own message from being done, or a run that came with it."""
    run, beside, other = (submit(Workflow.from_data(data)) for data in (ECHO, ECHO, OTHER))
    done, own, wrong = list[str](), process.plan_of(run.id).hash, process.plan_of(other.id).hash
    process._plan_hashes.clear()
    for asked, plan in ((run, wrong), (beside, own), (run, own)):
        host.take(asked.id, ["0"], lambda run_id=asked.id: done.append(run_id), plan=plan)  # type: ignore[misc]
    held.set()
    await_done(done, [run, beside, run])
    assert no_plans == [run.id]
    assert results([run, beside]) == [1, 1]
    assert process.ledger.live_calls(run.id) == []
    assert host._slots.used == 0


@pytest.mark.parametrize("calls", [["0"], ["0", "7"]], ids=["its calls", "a call that no plan knows"])
def test_a_message_alone_that_names_another_plan_is_taken_up_with_the_runs_own(
    host: Host, process: Process, no_plans: list[Any], calls: list[str]
) -> None:
    run, other, done = submit(Workflow.from_data(ECHO)), submit(Workflow.from_data(OTHER)), list[str]()
    wrong = process.plan_of(other.id).hash
    process._plan_hashes.clear()
    host.take(run.id, calls, lambda: done.append(run.id), plan=wrong)
    await_done(done, [run])
    assert no_plans == [[run.id]]
    assert results([run]) == [1]
    assert host._slots.used == 0


def test_late_calls_of_a_run_that_is_gone_are_over(
    host: Host, process: Process, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is handed back in the moment in which a slot becomes free for the other."""
    run, done = submit(Workflow.from_data(ECHO)), list[str]()
    plan = process.plan_of(run.id).hash
    process._plan_hashes.clear()
    redis_client.delete(*process.ledger.keys.run(run.id))
    hand_back = host._hand_back

    def late(_now: float) -> None:
        held = host._runs.get(run.id)
        if held is not None and len(held.given) == 2:
            held._waiting["0"] = held._waiting["0"]._replace(since=0.0)
            hand_back(time.monotonic())
            host._slots.give(8)

    monkeypatch.setattr(host, "_hand_back", late)
    host._slots.take(8)
    for call in ("0", "0.1"):
        host.take(run.id, [call], lambda: done.append(run.id), plan=plan)
    await_done(done, [run, run])
    assert (host._runs, host._slots.used) == ({}, 0)


@pytest.mark.parametrize("error", [SystemExit(3), RuntimeError("odd")])
def test_a_named_plan_whose_tool_cannot_be_imported_fails_its_run_alone(
    host: Host,
    held: threading.Event,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    run, broken, done = submit(Workflow.from_data(ECHO)), submit(Workflow.from_data(OTHER)), list[str]()
    plans = {each.id: process.plan_of(each.id) for each in (run, broken)}
    process._plan_hashes.clear()
    node = PreparedPlan.node

    def imported(plan: PreparedPlan, number: int) -> Any:
        if plan is plans[broken.id]:
            raise error
        return node(plan, number)

    monkeypatch.setattr(PreparedPlan, "node", imported)
    for each in (run, broken):
        host.take(each.id, ["0"], lambda run_id=each.id: done.append(run_id), plan=plans[each.id].hash)  # type: ignore[misc]
    held.set()
    await_done(done, [run, broken])
    assert results([run]) == [1]
    assert process.ledger.run(broken.id).status == "failed"
    assert host._clerk.is_alive()
    assert host._slots.used == 0


def test_a_run_that_is_gone_keeps_none_that_came_with_it(
    host: Host, held: threading.Event, process: Process, redis_client: Redis
) -> None:
    (gone, *runs), done = given(host, 3)
    process._plan_hashes.clear()
    redis_client.delete(*process.ledger.keys.run(gone.id))
    held.set()
    assert results(runs) == [1] * 2
    await_done(done, [gone, *runs])


def test_a_server_that_is_away_is_waited_for_once(
    host: Host, held: threading.Event, trips: Trips, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trip of all, and that of the first one, which asks again; then all of them wait."""
    monkeypatch.setattr(host, "_patience_s", lambda: 60.0)  # nobody else is there
    trips.away = 2
    runs, done = given(host, 5)
    held.set()
    assert results(runs) == [1] * 5
    await_done(done, runs)
    assert trips.sizes[:2] == [5, 1]
    assert host._slots.used == 0


@pytest.mark.parametrize("arrives", [False, True], ids=["never arrived", "answer lost"])
def test_calls_of_a_lost_trip_keep_their_messages(
    host: Host, held: threading.Event, trips: Trips, arrives: bool
) -> None:
    """There is no sweeper here that would publish them again."""
    trips.away, trips.arrives = 1, arrives
    runs, done = given(host, 3)
    held.set()
    assert results(runs) == [1] * 3
    await_done(done, runs)
    assert host._slots.used == 0


def test_a_transition_that_cannot_be_made_fails_its_own_run_alone(
    host: Host, held: threading.Event, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broken, *runs), done = given(host, 3)
    argument = Transition.argument

    def unwritable(transition: Transition) -> dict[str, Any]:
        made = argument(transition)
        return made | {"claim": [object()]} if transition.run_id == broken.id else made

    monkeypatch.setattr(Transition, "argument", unwritable)
    held.set()
    assert results(runs) == [1] * 2
    with pytest.raises(RunFailed, match="internal error"):
        broken.result(WAIT_S)
    await_done(done, [broken, *runs])


def test_nobody_waits_for_what_another_run_publishes(
    host: Host, held: threading.Event, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    fans = Workflow.from_data(
        {
            "name": "fans",
            "inputs": {"many": {"type": "array"}},
            "nodes": {
                "many": {
                    "for_each": "${inputs.many}",
                    "tool": "tests.integration.host_tools:meets",
                    "with": {"x": "${item}", "n": 1},
                }
            },
            "output": "many",
        }
    )
    gate = threading.Event()
    publish = process.outbox.publish_chord

    def late(*args: Any, **options: Any) -> bool:
        gate.wait(WAIT_S)
        return publish(*args, **options)

    monkeypatch.setattr(process.outbox, "publish_chord", late)
    first = submit(fans, {"many": [1, 1]})
    host.take(first.id, ["0"], lambda: None)
    (second,), _ = given(host, 1)
    begun = threading.Event()
    launch = host._launch_all

    def launched(run: Any, flights: Any) -> None:
        if run.run_id == second.id:
            begun.set()
        launch(run, flights)

    monkeypatch.setattr(host, "_launch_all", launched)
    held.set()
    assert begun.wait(WAIT_S)
    gate.set()
    assert results([second]) == [1]
