"""What is shown of mixtures on a real server with a real worker: while they ask, once they have decided, and after runs
went on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner

from mosaic_queues.errors import InputError
from mosaic_queues.keys import Keys
from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.cli import application
from mosaic_tasks.observability.tallies import counted
from tests.integration.mixture_runs import ask, experts, number, says
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

WAIT_S = 60.0
KEYS = Keys("mosaic")
QUEUES = ("mosaic.cpu", "mosaic.api.replay")
MARGIN = {"kind": "margin", "margin": 2, "confidence": None}


@pytest.fixture(autouse=True)
def worker(workers: Workers) -> None:
    workers.start("mosaic_tasks.app", queues=QUEUES, concurrency=32, pool="async").wait_ready()


def mosaic(*words: str) -> str:
    answer = CliRunner().invoke(application, list(words), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def slow(folder: Path, name: str) -> dict[str, Any]:
    """An expert that would write for hours."""
    text = json.dumps({"reasoning": "It takes long. " * 1000, "answer": "5"})
    return {"name": name, "model": says(folder, name, text, tokens_per_s=0.2)}


def await_event(run: Run, kind: str, *calls: str) -> None:
    """Waits until this happened to all of these calls."""
    left = set(calls)
    for event in run.events(follow=True):
        left -= set(event.calls) if event.kind == kind else set()
        if not left:
            return
    raise AssertionError(f"the run ended without {kind} of {left}")


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Run]:
    """A mixture that has one answer of two, and waits for the other."""
    run = ask([*experts(tmp_path, number(18)), slow(tmp_path, "slow"), slow(tmp_path, "late")], gate=MARGIN)
    await_event(run, "claimed", "2.0")
    await_event(run, "done", "1.0")
    yield run
    run.cancel()


def test_a_mixture_that_waits_says_for_whom(waiting: Run) -> None:
    explained = mosaic("explain", waiting.id)
    assert "answer: asks 2 of 3 experts, has 1 answer, waits for 1 more: slow (running)" in explained
    assert "answer.slow: it runs in process" in explained
    assert "late" not in explained
    assert waiting.mixture("answer") is None
    assert waiting.view().counts() == {"running": 1}


@pytest.fixture
def decided(tmp_path: Path) -> Run:
    """A run that is done: two agreed, one was cut off, one and the aggregator were not asked."""
    asked = [*experts(tmp_path, number(18), number(18)), slow(tmp_path, "slow"), slow(tmp_path, "late")]
    writer = {"kind": "synthesis", "model": says(tmp_path, "writer", number(5))}
    run = ask(asked, gate=MARGIN, waves=3, aggregator=writer)
    run.result(WAIT_S)
    return run


def test_what_a_mixture_came_to_is_shown_everywhere(decided: Run) -> None:
    head, told = mosaic("explain", decided.id).splitlines()
    assert head.endswith("1 node done")
    assert told.startswith("answer: '18' by its gate, confidence 0.")
    assert "cut off: slow; not asked: late; its aggregator was not needed; about" in told

    status = mosaic("status", decided.id)
    assert re.search(r"^ {2}answer\.slow +cut +.* 0/1 \(1 cut off\)", status, re.M)
    assert "late" not in status + mosaic("timeline", decided.id)
    assert re.search(r"^ {2}answer\.slow \|.* cut$", mosaic("timeline", decided.id), re.M)

    events = mosaic("events", decided.id)
    assert re.search(r"cut +answer\.slow\[0\] +not needed any more", events)
    assert re.search(r"decided +answer +'18' by its gate, confidence 0\.", events)


def test_each_call_of_a_mixture_is_shown(decided: Run) -> None:
    shown = mosaic("explain", decided.id, "--node", "answer")
    assert re.search(r"^e0 +1 +18 ", shown, re.M)
    assert re.search(r"^slow +1 +cut off", shown, re.M)
    assert re.search(r"^18 +2 +0\.", shown, re.M)
    document = json.loads(mosaic("explain", decided.id, "--node", "answer", "--json"))
    assert document["node"]["record"]["votes"][0]["votes"] == 2
    assert [each["node"] for each in document["explanations"]] == ["answer"]
    assert mosaic("explain", decided.id, "--node", "answer.e0").startswith("answer.e0: done after ")


def test_programs_get_the_record(decided: Run) -> None:
    record = decided.mixture("answer")
    assert record is not None
    assert (record.shown, record.by, record.cut, record.unasked, record.skipped_aggregator) == (
        "18",
        "gate",
        1,
        1,
        True,
    )
    assert asyncio.run(decided.amixture("answer")) == record


def test_whom_a_mixture_asks_has_no_output_of_its_own(decided: Run) -> None:
    told = f"the mixture 'answer' hears it; .* mosaic explain {decided.id} --node answer"
    with pytest.raises(InputError, match=told):
        decided.stream("answer.e0")
    with pytest.raises(InputError, match=told):
        decided.node_output("answer.e0")
    with pytest.raises(
        InputError, match=r"'answer\.e0' of workflow 'mixes' is no mixture; its mixtures are: answer"
    ):
        decided.mixture("answer.e0")
    with pytest.raises(InputError, match="has no node 'anwser'; did you mean 'answer'"):
        decided.mixture("anwser")


def test_a_node_that_runs_again_leaves_mixtures_before_it_alone(tmp_path: Path) -> None:
    asked = [*experts(tmp_path, number(18), number(18)), slow(tmp_path, "late")]
    mixture = {
        "prompt": "How many?",
        "answer": {"form": "number", "field": "answer"},
        "experts": asked,
        "gate": MARGIN,
    }
    after = {"tool": "tests.integration.stream_tools:double", "with": {"x": "${answer}"}}
    nodes = {"answer": {"mixture": mixture}, "twice": after}
    run = submit(Workflow.from_data({"name": "mixes", "nodes": nodes, "output": "twice"}))
    assert run.result(WAIT_S) == 36
    run.rerun("twice")
    assert run.result(WAIT_S) == 36
    assert [event.calls for event in run.events() if event.kind == "redo"] == [("1",)]


def test_a_mixture_without_an_answer_says_why_by_expert_and_is_counted(
    tmp_path: Path, redis_client: Redis, workers: Workers
) -> None:
    asked = experts(tmp_path, "no number here", "I cannot help with that.")
    mixture = {"prompt": "How many?", "answer": {"form": "number", "field": "answer"}, "experts": asked}
    node = {"mixture": mixture, "on_failure": "skip"}
    run = submit(Workflow.from_data({"name": "mixes", "nodes": {"answer": node}, "output": "answer"}))
    assert run.result(WAIT_S) is None
    reasons = "no answer of its experts counts: e0: unreadable; e1: refused"
    assert mosaic("explain", run.id).endswith(f"answer: {reasons}\n")
    record = run.mixture("answer")
    assert record is not None
    assert [said.problems for said in record.calls] == [("unreadable",), ("refused",)]
    workers.stop()  # what a process has counted is there at the latest when it has ended
    found = {
        (tally.figure, *tally.values): tally.amount
        for tally in counted(redis_client, KEYS)
        if tally.figure.startswith("mixture_")
    }
    assert found == {
        ("mixture_decided", "mixes", "answer", "failed"): 1,
        ("mixture_experts_asked", "mixes", "answer"): 2,
    }
