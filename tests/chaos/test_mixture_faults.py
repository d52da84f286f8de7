"""Workers that run mixtures are killed at every step, floods and late answers come: one answer, and each call once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mosaic_tasks import Run
from tests.chaos.test_faults import APP, QUICK, await_event
from tests.integration.mixture_runs import ask, experts, number, says
from tests.services import Worker, Workers

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

QUEUES = ["mosaic.cpu", "mosaic.api.replay"]
WAIT_S = 60.0
MARGIN = {"kind": "margin", "margin": 2, "confidence": None}


def start(workers: Workers, **options: Any) -> Worker:
    return workers.start(APP, QUEUES, pool="async", concurrency=64, **options)


def two_agree(tmp_path: Path, *, slow_tokens_per_s: float = 0.2) -> Run:
    """Two experts agree, a third would write for long."""
    asked = experts(tmp_path, number(18), number(18))
    slow = says(tmp_path, "slow", number(5, prose="long " * 50), tokens_per_s=slow_tokens_per_s)
    return ask([*asked, {"name": "slow", "model": slow}], gate=MARGIN, waves=3)


def check_once(run: Run) -> None:
    """Nothing was recorded twice, and nothing of the run lives on."""
    ended = Counter(call for event in run.events() if event.kind in ("done", "cut") for call in event.calls)
    assert set(ended.values()) == {1}
    decided = [event for event in run.events() if event.kind == "decided"]
    assert len(decided) == 1
    assert run.live_calls() == []


@pytest.mark.parametrize(
    "place",
    [
        "before_commit",
        "after_commit",
        "before_grow",
        "after_grow",
        "lose_grow",
        "before_cut",
        "after_cut",
        "after_claim",
        "before_record",
        "after_record",
    ],
)
def test_a_worker_may_die_at_any_step_of_a_mixture(workers: Workers, tmp_path: Path, place: str) -> None:
    killing = {**QUICK, "KILL_AT": place, "KILL_FLAG": str(tmp_path / "killed")}
    doomed = start(workers, env=killing, args=["--include", "tests.chaos.killing"])
    doomed.wait_ready()
    run = two_agree(tmp_path)
    if not place.startswith("lose"):
        assert doomed.wait(timeout_s=20) == -signal.SIGKILL
    start(workers, env=QUICK).wait_ready()
    record = run.result(timeout_s=WAIT_S)
    assert (record["answer"], record["by"]) == (18, "gate")
    check_once(run)


def test_an_expert_that_answers_after_the_gate_is_refused(workers: Workers, tmp_path: Path) -> None:
    """Its process was stopped while the others decided."""
    asked = experts(tmp_path, number(18), number(18))
    late = {"name": "late", "model": says(tmp_path, "late", number(5), tokens_per_s=20), "queue": "late"}
    stopped = workers.start(APP, ["late"], pool="async", env={**QUICK, "MOSAIC_LIVENESS_S": "60"})
    workers.start(APP, ["mosaic.cpu"], env=QUICK).wait_ready()
    stopped.wait_ready()
    run = ask([*asked, late], gate=MARGIN, waves=3)
    await_event(run, "claimed", count=2)  # of the mixture, and of the late one
    stopped.signal(signal.SIGSTOP)
    start(workers, env=QUICK).wait_ready()
    record = run.result(timeout_s=WAIT_S)
    stopped.signal(signal.SIGCONT)
    assert (record["answer"], record["cut"]) == (18, 1)
    check_once(run)


def test_a_flood_of_mixtures_is_answered_one_by_one(workers: Workers, tmp_path: Path) -> None:
    start(workers, env=QUICK).wait_ready()
    start(workers, env=QUICK).wait_ready()
    runs = [two_agree(tmp_path, slow_tokens_per_s=2.0) for _ in range(40)]
    assert [run.result(timeout_s=WAIT_S)["answer"] for run in runs] == [18] * 40
    for run in runs:
        check_once(run)


def test_a_cancelled_run_leaves_no_expert_at_work(workers: Workers, tmp_path: Path) -> None:
    start(workers, env=QUICK).wait_ready()
    asked = experts(tmp_path, *[number(each, prose="long " * 50) for each in range(3)], tokens_per_s=0.2)
    run = ask(asked, waves=3)
    await_event(run, "claimed", count=4)
    run.cancel()
    assert run.live_calls() == []


def test_answers_of_a_hundred_kilobytes_are_heard(workers: Workers, tmp_path: Path) -> None:
    start(workers, env=QUICK).wait_ready()
    long = json.dumps({"reasoning": "So it goes. " * 9000, "answer": "18"})
    writer = {"kind": "synthesis", "model": says(tmp_path, "writer", number(18))}
    record = ask(experts(tmp_path, long, long), gate="none", enough=1, aggregator=writer).result(
        timeout_s=WAIT_S
    )
    assert (record["answer"], record["by"]) == (18, "synthesis")
