"""Calls that a limit holds up: few are sent, the others wait until their turn, and are woken once there is room."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mosaic_queues.transitions import LiveCall
from mosaic_routing.ceilings import LONGEST_S
from mosaic_tasks import Run, submit
from mosaic_tasks.execution.bootsteps import Recovering
from mosaic_tasks.execution.driver import drive
from mosaic_tasks.execution.placing.dispatching import Dispatcher
from mosaic_tasks.execution.process import Process
from tests.integration.test_routing import models
from tests.integration.test_routing_faults import FAN_OUT, calls_at, mended, serving

__all__ = ["models"]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("threads", reason="one watches the drives of a process, one publishes for them"),
]
CALLS = 30


@pytest.fixture
def process(models: Path) -> Process:
    """This process, as a worker that asks a provider which lets two calls run at once, of some ten seconds each."""
    models.write_text(models.read_text() + "limits: {deployments: {'*': {concurrency: 2}}}\n")
    process = serving("mosaic.api.replay")
    process.learning.observe_service("api.replay/sage", 10.0)
    return process


@pytest.fixture
def run(process: Process) -> Run:
    run = submit(FAN_OUT, {"numbers": list(range(CALLS))})
    drive(process, run.id, ["0"])
    return run


def states(run: Run) -> Counter[str]:
    return Counter(call.state for call in run.live_calls())


def delayed(run: Run) -> list[LiveCall]:
    return sorted((call for call in run.live_calls() if call.state == "delayed"), key=lambda call: call.at_ms)


def anew(process: Process) -> None:
    """Has the fleet read anew at once."""
    process.places = Dispatcher(process)


def test_no_more_are_sent_than_have_their_turn_soon(process: Process, run: Run) -> None:
    assert states(run) == {"ready": 2, "delayed": CALLS - 2}
    assert calls_at(process) == 2
    waits_s = {event.pause_ms // 1000 for event in run.events() if event.kind == "routed"}
    assert max(waits_s) == LONGEST_S
    assert len(waits_s) > 8  # one behind the other
    (told,) = run.explain()
    assert "it has as many calls as its limits let run soon" in str(told)


def test_one_that_waits_on_is_not_told_of_again(process: Process, run: Run) -> None:
    before = sum(event.kind == "routed" for event in run.events())
    for _ in range(3):
        anew(process)
        waits = [call.call for call in reversed(delayed(run))]  # so that each has another place in the line
        process.ledger.wake(run.id, [], now_ms=process.now_ms(), early=waits)
        process.publish(run.id, process.plan_of(run.id), [("mosaic.routed", waits)])
    assert states(run) == {"ready": 2, "delayed": CALLS - 2}
    assert sum(event.kind == "routed" for event in run.events()) == before


def test_as_many_are_woken_as_there_is_room_for(process: Process, run: Run, models: Path) -> None:
    first = [call.call for call in delayed(run)][:6]
    models.write_text(models.read_text().replace("concurrency: 2", "concurrency: 8"))
    anew(process)
    assert Recovering(process).early({run.id: delayed(run)}) == {run.id: first}
    mended(process)
    assert states(run) == {"ready": 8, "delayed": CALLS - 8}
    assert {call.call for call in run.live_calls() if call.state == "ready"} >= set(first)


def test_where_there_is_no_room_nobody_is_woken(process: Process, run: Run) -> None:
    anew(process)
    assert Recovering(process).early({run.id: delayed(run)}) == {}
    mended(process)
    assert states(run) == {"ready": 2, "delayed": CALLS - 2}
