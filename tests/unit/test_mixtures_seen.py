"""What is shown of mixtures: whom they ask, whom they cut off, what they came to."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import made_mixtures as made
import msgspec
import pytest
from made_observers import Sums, observer
from made_runs import START_MS, Story, report_plan
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from typer.testing import CliRunner

from mosaic_queues.liveness import LiveProcess
from mosaic_queues.transitions import CallState, LiveCall
from mosaic_tasks.cli import application
from mosaic_tasks.cli.live import Lines, render
from mosaic_tasks.definition.drawing import mermaid, text
from mosaic_tasks.inspection.arranging import arranged
from mosaic_tasks.inspection.decisions import (
    DECIDED_BY,
    answers,
    call_rows,
    in_full,
    in_short,
    totals,
    vote_rows,
)
from mosaic_tasks.inspection.explaining import explain
from mosaic_tasks.inspection.progress import NodeView, Progress, RunView, project
from mosaic_tasks.inspection.telling import Teller
from mosaic_tasks.inspection.timeline import Timeline, draw_svg, draw_text, timeline
from mosaic_tasks.mixtures.mixture import ChoiceBy, Mixture
from mosaic_tasks.mixtures.recording import Record, Said
from mosaic_tasks.observability.exposition import exposition
from mosaic_tasks.observability.gathering import Figures

WORKER = LiveProcess(
    name="host/1/a", host="host", pid=1, started_ms=0, queues=("mosaic.cpu", "mosaic.api.openai"), slots=2
)
IN_SHORT = "'18' by its gate, confidence 0.88"


def view_of(story: Story) -> RunView:
    return project(made.plan(), story.events, run_id="r")


def node_of(story: Story, name: str) -> NodeView:
    return next(node for node in view_of(story).nodes if node.name == name)


def states(story: Story) -> dict[str, str]:
    return {node.name.removeprefix("answer."): node.state for node in view_of(story).nodes}


# -- the state of a run ------------------------------------------------------------------------------------------


def test_whom_a_mixture_asks_has_the_calls_that_it_made() -> None:
    found = {node.name: (node.calls, node.calls_done, node.asked_by) for node in view_of(made.asking()).nodes}
    assert found["answer.a"] == (1, 1, "answer")
    assert found["answer.slow"] == (1, 0, "answer")
    assert found["answer.late"] == found["answer.aggregator"] == (0, 0, "answer")
    assert found["answer"] == (1, 0, "")


def test_whom_a_mixture_asks_is_part_of_it_in_the_counts() -> None:
    assert view_of(made.asking()).counts() == {"done": 1, "running": 1, "waiting": 1}
    assert view_of(made.over()).counts() == {"done": 3}


def test_an_expert_is_done_while_nobody_asks_it_and_may_be_asked_again() -> None:
    assert states(made.asking())["a"] == "done"
    again = made.asking().tell(65, "ready", "3.1", detail="mosaic.api.openai")
    assert (node_of(again, "answer.a").state, node_of(again, "answer.a").ended_ms) == ("ready", None)
    found = node_of(again.run("3.1", 70, 95), "answer.a")
    assert (found.state, found.calls, found.calls_done, found.ended_ms) == ("done", 2, 2, START_MS + 95)


def test_an_expert_whose_call_is_not_needed_is_cut() -> None:
    found = node_of(made.decided(), "answer.slow")
    assert (found.state, found.calls, found.calls_cut, found.calls_running) == ("cut", 1, 1, 0)
    assert found.ended_ms == START_MS + 80


def test_a_call_that_is_cut_leaves_an_expert_that_has_answered_done() -> None:
    story = made.asking().tell(65, "ready", "3.1", detail="q").tell(70, "cut", "3.1")
    assert node_of(story, "answer.a").state == "done"


def test_a_decision_ends_whom_the_mixture_asked_and_the_run_ends_with_nobody_waiting() -> None:
    asked = {"a": "done", "b": "done", "slow": "cut", "late": "skipped", "aggregator": "skipped"}
    assert states(made.decided()) == {"first": "done", "answer": "running", "last": "waiting", **asked}
    assert states(made.over()) == {"first": "done", "answer": "done", "last": "done", **asked}
    assert node_of(made.over(), "answer.a").ended_ms == START_MS + 60


def test_a_decision_tells_its_record_and_why_answers_do_not_count() -> None:
    record = made.with_calls(
        Said("3.0", "a", problems=("refused", "schema")), Said("4.0", "b", failed="no such model")
    )
    assert node_of(made.decided(record), "answer").record == record
    a, b = (node_of(made.decided(record), f"answer.{name}") for name in "ab")
    assert (a.state, a.error, b.state, b.error) == ("done", "refused, schema", "failed", "no such model")


@pytest.mark.parametrize(("kind", "state"), [("skipped", "skipped"), ("failed", "failed")])
def test_a_mixture_that_ends_without_a_decision_ends_whom_it_asks(kind: str, state: str) -> None:
    story = made.asking().tell(90, kind, "1.m", detail="no")  # type: ignore[arg-type]
    assert states(story) | {"a": "done", "slow": "cancelled", "late": "skipped", "answer": state} == states(
        story
    )


def test_a_run_that_is_cancelled_cancels_whom_it_asks() -> None:
    assert states(made.asking().tell(90, "closed", detail="cancelled: enough"))["slow"] == "cancelled"


def test_a_mixture_that_runs_again_has_decided_nothing() -> None:
    story = made.over().tell(200, "redo", *"1234567", detail="1")
    assert node_of(story, "answer").record is None
    assert states(story)["late"] == "waiting"
    assert [node.name for node in arranged(view_of(story).nodes)] == ["first", "answer", "last"]


def test_experts_stand_below_their_mixture_without_those_that_were_not_asked() -> None:
    names = [node.name for node in arranged(view_of(made.over()).nodes)]
    assert names == ["first", "answer", "answer.a", "answer.b", "answer.slow", "last"]


def test_what_changed_names_all_that_a_decision_ended() -> None:
    progress = Progress(made.plan())
    touched = [progress.apply(event) for event in made.decided().events]
    assert touched[-1] == [1, 3, 4, 5, 6, 7]


# -- words -------------------------------------------------------------------------------------------------------


def mixture() -> Mixture:
    found = made.plan().nodes[1].mixture
    assert found is not None
    return found


def test_a_record_in_full_says_why_it_stopped_who_was_spared_and_what_was_saved() -> None:
    assert in_full(mixture(), made.RECORD) == (
        f"{IN_SHORT}; {made.WHY}; votes: 2 for '18' (0.88) and 1 for '5' (0.10); cut off: slow; "
        "not asked: 2 calls more; its aggregator was not needed; about 27 tokens, 0.001200 USD and 1.5 s saved"
    )


def test_a_record_in_full_says_whose_answers_do_not_count() -> None:
    calls = (Said("3.0", "a", problems=("refused",)), Said("4.0", "b", failed="no such model"))
    record = made.with_calls(*calls, unasked=0)
    assert "; not counted: a (refused) and b (no such model); " in in_full(mixture(), record)


def test_what_several_calls_of_an_expert_fail_by_is_told_once() -> None:
    calls = tuple(Said(f"3.{n}", "a", failed="no such model") for n in range(3))
    record = made.with_calls(*calls, unasked=0)
    assert "; not counted: a (no such model); " in in_full(mixture(), record)


def test_a_record_in_full_says_what_was_given_up_under_load() -> None:
    relief = "under load (2.00 of what the targets can take): asked 3 instead of 5 experts"
    record = msgspec.structs.replace(made.RECORD, relief=relief)
    assert f"; {relief}; its aggregator" in in_full(mixture(), record)


def test_experts_that_were_not_asked_are_named() -> None:
    calls = tuple(Said(f"{n}.0", name) for n, name in enumerate(("a", "b", "late"), 3))
    assert "not asked: slow" in in_full(mixture(), made.with_calls(*calls, unasked=1))


def test_a_mixture_without_an_answer_says_why() -> None:
    record = Record(failure="no answer counts: " + "a: refused\x1b[31m; " * 50, unasked=2)
    assert in_short(record).startswith("no answer counts: a: refused?[31m; a: refused")
    assert in_short(record).endswith("...")
    assert in_full(mixture(), record).count("a: refused") == 50
    assert in_full(mixture(), record).endswith("; not asked: 2 calls more")


def test_every_way_to_decide_has_words() -> None:
    assert set(DECIDED_BY) == set(get_args(ChoiceBy))


def test_a_record_as_tables() -> None:
    assert call_rows(made.RECORD) == [
        ("a", "1", "18", "", "9", "0.5000 USD", "100 ms"),
        ("b", "1", "18", "", "9", "", "200 ms"),
        ("slow", "1", "", "cut off", "", "", ""),
    ]
    assert vote_rows(made.RECORD) == [("18", "2", "0.88"), ("5", "1", "0.10")]
    assert totals(made.RECORD) == "3 calls, 18 tokens, 250 ms"


def test_of_each_expert_its_last_answer_is_told_or_why_it_has_none() -> None:
    calls = (
        Said("3.0", "a", answer="5"),
        Said("3.1", "a", round=2, answer="18"),
        Said("4.0", "b", problems=("schema",)),
        Said("5.0", "slow", is_cut=True),
        Said("6.0", "verifier", kind="verifier", answer="right"),
    )
    assert answers(made.with_calls(*calls)) == {"a": "'18'", "b": "schema", "slow": "cut off"}


def test_answers_change_no_terminal_and_stay_on_their_line() -> None:
    said = Said("3.0", "a", answer="x\x1b[2J\n" + "y" * 10_000, problems=("schema", "entity"))
    (row,) = call_rows(made.with_calls(said))
    assert row[2] == "x?[2J " + "y" * 31 + "..."
    assert row[3] == "schema, entity"


# -- explain -----------------------------------------------------------------------------------------------------


def live(call: str, state: CallState, **fields: object) -> LiveCall:
    known = {
        "fence": 1,
        "failures": 0,
        "losses": 0,
        "queue": "mosaic.api.openai",
        "at_ms": START_MS,
        "holder": "",
    }
    return LiveCall(call, state, **{**known, **fields})  # type: ignore[arg-type]


def explained(story: Story, *calls: LiveCall) -> dict[str, str]:
    found = explain(made.plan(), view_of(story), calls, [WORKER], now_ms=START_MS + 1_000)
    return {explanation.node: explanation.text for explanation in found}


HELD = {"holder": "host/1/a"}


def test_a_mixture_says_whom_it_asks_and_whom_it_waits_for() -> None:
    found = explained(made.asking(), live("1.m", "idle"), live("5.0", "claimed", **HELD))
    assert found["answer"] == "asks 3 of 4 experts, has 2 answers, waits for 1 more: slow (running)"
    assert found["answer.slow"].startswith("it runs in process host/1/a")
    assert list(found) == ["answer", "answer.slow", "last"]


def test_a_mixture_that_asks_its_aggregator_says_so() -> None:
    story = made.asking().tell(70, "done", "5.0").tell(80, "ready", "7.0", detail="q")
    assert explained(story, live("1.m", "idle"))["answer"] == (
        "asks 3 of 4 experts and its aggregator, has 3 answers, waits for 1 more: aggregator (ready)"
    )


def test_a_mixture_with_all_answers_is_about_to_decide() -> None:
    found = explained(made.asking().tell(70, "done", "5.0"), live("1.m", "idle"))
    assert found["answer"].endswith("has 3 answers, decides any moment")
    assert "reads the answers" in explained(made.asking(), live("1.m", "claimed", **HELD))["answer"]


def test_several_calls_to_one_expert_are_told_together() -> None:
    story = made.asking().tell(65, "ready", "6.0", "6.1", detail="mosaic.api.openai")
    waiting = [live("6.0", "ready"), live("6.1", "ready")]
    found = explained(story, live("1.m", "idle"), *waiting)
    assert found["answer.late"].startswith("2 calls wait in queue 'mosaic.api.openai'")
    assert "asks 4 of 4 experts in 5 calls, has 2 answers, waits for 3 more at most: slow" in found["answer"]
    running = [live(call, "claimed", **HELD) for call in ("6.0", "6.1")]
    assert explained(story, *running)["answer.late"] == "2 calls run in process host/1/a"


def test_a_call_of_an_expert_that_is_tried_again_is_no_item() -> None:
    later = live("5.0", "delayed", failures=1, at_ms=START_MS + 3_000)
    assert explained(made.asking(), later)["answer.slow"].startswith("attempt 2 of 1 is due in 2.0 s")


def test_what_a_mixture_came_to_is_told_while_the_run_goes_on_and_after_it() -> None:
    full = in_full(mixture(), made.RECORD)
    assert explained(made.decided(), live("1.m", "claimed", **HELD))["answer"] == full
    assert explained(made.over()) == {"": "the run is done after 110 ms: 3 nodes done", "answer": full}


def test_a_failure_that_ended_the_run_is_told_once() -> None:
    record = Record(failure="no answer counts: a: refused")
    story = made.decided(record).tell(
        90, "failed", "1.m", detail="node 'answer': no answer counts: a: refused"
    )
    story.tell(90, "closed", detail="failed: node 'answer': no answer counts: a: refused")
    assert list(explained(story)) == [""]


# -- events, live view, timeline ---------------------------------------------------------------------------------


def told(story: Story) -> list[str]:
    teller = Teller(made.plan(), START_MS)
    return [" ".join(line.split()) for event in story.events for line in teller.lines(event)]


def test_events_of_a_mixture_have_words() -> None:
    lines = told(made.over())
    assert "15 ms claimed answer (reads the answers) [host/1/a]" in lines
    assert "20 ms idle answer (waits for answers)" in lines
    assert "80 ms cut answer.slow[0] not needed any more [host/1/a]" in lines
    assert f"80 ms decided answer {IN_SHORT}" in lines


def console() -> Console:
    return Console(file=io.StringIO(), width=200, markup=False, highlight=False)


def lines_of(shown: Console) -> list[str]:
    assert isinstance(shown.file, io.StringIO)
    return [" ".join(line.split()) for line in shown.file.getvalue().splitlines()]


def test_lines_tell_experts_as_nodes_and_the_decision_in_the_end() -> None:
    shown = console()
    display = Lines(made.plan(), "r", shown)
    for event in made.over().events:
        display.show(event)
    lines = lines_of(shown)
    assert "60 ms answer.a: done after 30 ms" in lines
    assert "80 ms answer.slow: cut after 50 ms (not needed any more)" in lines
    assert f"90 ms answer: done after 75 ms ({IN_SHORT})" in lines
    assert not [line for line in lines if "late" in line or "aggregator" in line]


def board(story: Story, rows: int = 20) -> list[str]:
    progress, shown = Progress(made.plan(), run_id="r"), console()
    for event in story.events:
        progress.apply(event)
    shown.print(render(progress, progress.view().nodes, START_MS + 9_999, rows))
    return lines_of(shown)


def test_the_table_has_experts_below_their_mixture_and_comes_to_all_of_the_nodes() -> None:
    lines = board(made.over())
    assert [line.split()[1] for line in lines[:-1]] == [
        "first",
        "answer",
        "answer.a",
        "answer.b",
        "answer.slow",
        "last",
    ]
    assert lines[1] == f"✓ answer done 75 ms {IN_SHORT}"
    assert lines[4] == "× answer.slow cut 50 ms not needed any more"
    assert lines[-1] == "mixes r: done, 110 ms: 3 done"
    assert board(made.asking())[-1].endswith("1 running, 1 done, 1 waiting")


def test_the_table_says_which_answers_do_not_count() -> None:
    record = made.with_calls(Said("3.0", "a", problems=("refused",)), Said("4.0", "b", answer="5"))
    assert board(made.over(record))[2].endswith("30 ms not counted: refused")


def chart(story: Story) -> Timeline:
    return timeline(made.plan(), story.events, now_ms=START_MS + 500)


def test_a_timeline_has_experts_below_their_mixture_and_marks_those_that_were_cut() -> None:
    lanes = chart(made.over()).lanes
    assert [lane.name for lane in lanes] == ["first", "answer", "answer.a", "answer.b", "answer.slow", "last"]
    drawn = draw_text(chart(made.over()), width=90, ascii_only=True).splitlines()
    assert drawn[6].startswith("  answer.slow |")
    assert drawn[6].endswith("50 ms cut")
    assert drawn[-1] == f"answer: {IN_SHORT}"
    assert "confidence 0.88</title>" in draw_svg(chart(made.over()))


def test_a_timeline_of_epochs_has_experts_below_the_mixture_that_asked_them() -> None:
    story = (
        made.over().tell(200, "redo", *"1234567", detail="1").tell(200, "ready", "1.m", detail="mosaic.cpu")
    )
    story.tell(210, "claimed", "1.m").tell(220, "ready", "3.0", detail="q").run("3.0", 230, 240)
    lanes = [(lane.name, lane.epoch) for lane in chart(story).lanes]
    assert lanes[1:5] == [("answer", 0), ("answer.a", 0), ("answer.b", 0), ("answer.slow", 0)]
    assert lanes[6:8] == [("answer", 1), ("answer.a", 1)]


# -- graph, validate, metrics ------------------------------------------------------------------------------------


def test_a_graph_shows_experts_gate_and_aggregator() -> None:
    drawn = text(made.workflow())
    assert "answer  mixture of a, b, slow, 2 x late  gate margin 2  aggregator synthesis openai:big" in drawn
    assert "2 x late<br/>gate margin 2<br/>aggregator synthesis openai:big" in mermaid(made.workflow())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"preset": "best-of-n", "verifier": {"model": "openai:v"}},
            "no gate  verifier openai:v  aggregator rank",
        ),
        ({}, "gate probability 0.95  aggregator weighted"),
        ({"gate": "posterior"}, "gate posterior 0.95  aggregator weighted"),
        ({"gate": {"kind": "cost"}}, "gate cost  aggregator weighted"),
        ({"gate": {"kind": "quorum", "quorum": 0.8}}, "gate quorum 0.8  aggregator weighted"),
    ],
)
def test_each_gate_is_drawn_with_what_is_enough(fields: dict[str, object], words: str) -> None:
    told = {"prompt": "x", "experts": [{"model": "openai:a"}, {"model": "openai:b"}], **fields}
    whole = {"name": "w", "nodes": {"n": {"mixture": told}}, "output": "n"}
    assert words in text(made.Workflow.from_data(whole))


def test_files_are_told_with_their_own_nodes(tmp_path: Path) -> None:
    def answered(*words: str) -> str:
        path = tmp_path / "mixes.yaml"
        path.write_text(made.WORKFLOW)
        return (
            CliRunner().invoke(application, [words[0], str(path), *words[1:]], catch_exceptions=False).stdout
        )

    assert "3 nodes and 5 models that mixtures ask, for" in answered("validate")
    assert json.loads(answered("validate", "--json"))["nodes"] == ["first", "answer", "last"]
    nodes = json.loads(answered("graph", "--json"))["nodes"]
    assert {node["name"]: node["asked_by"] for node in nodes}["answer.late"] == "answer"
    assert nodes[0]["asked_by"] is None


def test_mixtures_are_counted_by_workflow_and_node() -> None:
    failed = Record(failure="nobody answered", unasked=3)
    sums = Sums()
    seen = observer(sums)
    seen.decided(made.RECORD, workflow='m "1"', node="answer")
    seen.decided(failed, workflow="n", node="a")
    seen.flush()
    page = exposition(Figures({}, {}, {}, [], sums.tallies()))
    found = {
        (sample.name, sample.labels["workflow"], sample.labels.get("by", "")): sample.value
        for family in text_string_to_metric_families(page)
        if family.name.startswith("mosaic_mixture_")
        for sample in family.samples
    }
    assert found["mosaic_mixture_decided_total", 'm "1"', "gate"] == 1
    assert found["mosaic_mixture_decided_total", "n", "failed"] == 1
    assert found["mosaic_mixture_experts_unasked_total", "n", ""] == 3
    figures = (
        "experts_asked",
        "experts_cut",
        "experts_unasked",
        "aggregators_skipped",
        "tokens_saved",
        "usd_saved",
    )
    told = [found[f"mosaic_mixture_{figure}_total", 'm "1"', ""] for figure in figures]
    assert told == [3, 1, 2, 1, 27, 0.0012]


def test_runs_without_mixtures_are_shown_as_before() -> None:
    names: Sequence[str] = [node.name for node in arranged(project(report_plan(), []).nodes)]
    assert names == ["commits", "people", "sections", "tickets", "report"]
