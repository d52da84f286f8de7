"""Mixtures on real workers: who is asked, who is cut off, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mosaic_queues.errors import RunFailed
from tests.integration.mixture_runs import SCHEMA, ask, experts, number, says
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

WAIT_S = 60.0
QUEUES = ("mosaic.cpu", "mosaic.api.replay")
MARGIN = {"kind": "margin", "margin": 2, "confidence": None}
NEVER = {"kind": "none", "confidence": None}


@pytest.fixture(autouse=True)
def worker(workers: Workers) -> None:
    workers.start("mosaic_tasks.app", queues=QUEUES, concurrency=32, pool="async").wait_ready()


def test_a_gate_that_passes_leaves_the_others_unasked(tmp_path: Path) -> None:
    record = ask(experts(tmp_path, number(18), number(18), number(5)), gate=MARGIN).result(WAIT_S)
    assert (record["answer"], record["by"], record["asked"], record["unasked"]) == (18, "gate", 2, 1)


def test_a_gate_that_passes_in_mid_wave_cuts_the_others_off(tmp_path: Path) -> None:
    asked = experts(tmp_path, number(18), number(18))
    slow = json.dumps({"reasoning": "It takes long. " * 1000, "answer": "5"})
    asked.append({"name": "slow", "model": says(tmp_path, "slow", slow, tokens_per_s=20)})
    run = ask(asked, gate=MARGIN, waves=3)
    record = run.result(WAIT_S)
    assert (record["answer"], record["asked"], record["cut"]) == (18, 3, 1)
    assert [event.calls for event in run.events() if event.kind == "cut"] == [("3.0",)]


def test_without_a_gate_all_are_asked_and_the_aggregator_decides(tmp_path: Path) -> None:
    asked = experts(tmp_path, number(18), number(5), number(7))
    says(tmp_path, "writer", number(5))
    writer = {"kind": "synthesis", "model": f"replay:{tmp_path / 'writer.jsonl'}"}
    record = ask(asked, gate=NEVER, waves=3, aggregator=writer).result(WAIT_S)
    assert (record["answer"], record["by"], record["asked"]) == (5, "synthesis", 4)


def test_the_output_is_the_whole_answer_where_that_is_wanted(tmp_path: Path) -> None:
    run = ask(experts(tmp_path, number(18), number(18)), output=SCHEMA, whole=True, details=False)
    assert run.result(WAIT_S) == {"answer": "18", "reasoning": "It follows."}


def test_an_expert_stops_writing_once_its_answer_is_complete(tmp_path: Path) -> None:
    prose = "And so on. " * 2000
    run = ask(
        experts(tmp_path, number(18, prose=prose), number(18, prose=prose), tokens_per_s=200), gate=MARGIN
    )
    record = run.result(WAIT_S)
    assert record["answer"] == 18
    assert record["tokens"] < 100
    assert next(iter(record)) == "answer"
    assert all(record.values())  # what says nothing is left out


def test_later_rounds_see_the_earlier_answers(tmp_path: Path) -> None:
    says(tmp_path, "first", number(18), match="How many?")
    says(tmp_path, "first", number(5), match="This is what was answered")
    asked = [
        {"name": "first", "model": f"replay:{tmp_path / 'first.jsonl'}"},
        {"name": "second", "model": says(tmp_path, "second", number(5))},
    ]
    record = ask(asked, preset="debate").result(WAIT_S)
    assert (record["answer"], record["rounds"], record["by"]) == (5, 2, "gate")


def test_the_best_of_several_samples_is_the_one_that_the_verifier_scores_most(tmp_path: Path) -> None:
    says(tmp_path, "judge", json.dumps({"support": 0.2}), match="This was answered")
    says(tmp_path, "judge", json.dumps({"support": 0.9}), match='begins\n{"answer": "7"')
    asked = experts(tmp_path, number(18), number(18), number(7))
    verifier = {"model": f"replay:{tmp_path / 'judge.jsonl'}"}
    record = ask(asked, preset="best-of-n", samples=1, verifier=verifier).result(WAIT_S)
    assert (record["answer"], record["by"]) == (7, "rank")


def test_a_race_is_won_by_the_first_valid_answer(tmp_path: Path) -> None:
    asked = experts(tmp_path, "I cannot help with that.", number(18))
    asked.append({"name": "slow", "model": says(tmp_path, "slow", number(5), tokens_per_s=0.2)})
    record = ask(asked, preset="race").result(WAIT_S)
    cut = [said["expert"] for said in record["calls"] if said.get("is_cut")]
    assert record["answer"] == 18
    assert "slow" in cut  # who refuses may be heard before the winner, or not at all


def test_it_goes_on_without_experts_that_fail(tmp_path: Path) -> None:
    asked = experts(tmp_path, number(18), "no number here", "", "I cannot help with that.")
    asked.append({"name": "gone", "model": f"replay:{tmp_path / 'nothing.jsonl'}"})
    record = ask(asked, waves=5).result(WAIT_S)
    assert (record["answer"], record["by"]) == (18, "weighted")
    told = {said["expert"]: said.get("problems") or said.get("failed") for said in record["calls"]}
    assert told["e1"] == ["unreadable"]
    assert told["e3"] == ["refused"]
    assert "nothing.jsonl" in told["gone"]


def test_a_mixture_whose_experts_all_fail_says_why(tmp_path: Path) -> None:
    run = ask(experts(tmp_path, "no number here", "I cannot help with that."))
    with pytest.raises(RunFailed, match=r"no answer of its experts counts: e0: unreadable; e1: refused"):
        run.result(WAIT_S)


def test_a_deadline_gives_the_best_answer_so_far(tmp_path: Path) -> None:
    asked = experts(tmp_path, number(18))
    asked.append({"name": "slow", "model": says(tmp_path, "slow", number(5), tokens_per_s=0.2)})
    record = ask(asked, waves=2, deadline="1s").result(WAIT_S)
    assert (record["answer"], record["by"], record["is_best_so_far"]) == (18, "deadline", True)


def test_a_deadline_that_has_passed_already_fails_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="the deadline of 0 s has passed"):
        ask(experts(tmp_path, number(18), number(18)), deadline=0).result(WAIT_S)


def test_a_budget_of_nothing_asks_nobody(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="the budget holds no call"):
        ask(experts(tmp_path, number(18), number(18)), budget={"tokens": 0}).result(WAIT_S)


def test_a_mixture_runs_again_with_all_of_its_experts(tmp_path: Path) -> None:
    run = ask(experts(tmp_path, number(18), number(18)), gate=MARGIN)
    assert run.result(WAIT_S)["answer"] == 18
    run.rerun("answer")
    record = run.result(WAIT_S)
    assert (record["answer"], record["asked"]) == (18, 2)
