"""What a run waits for, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import made_runs as made
import pytest
from msgspec.structs import replace

from mosaic_queues.liveness import LiveProcess
from mosaic_queues.transitions import CallState, LiveCall
from mosaic_routing.inventory import EngineReport, EngineState
from mosaic_routing.queues import ROUTED
from mosaic_tasks.definition.plan import Batch, Plan, link
from mosaic_tasks.inspection.explaining import Explanation, explain
from mosaic_tasks.inspection.progress import project
from mosaic_tasks.inspection.said import NOTHING, Said

WORKER = LiveProcess(name="host/1/a", host="host", pid=1, started_ms=0, queues=("mosaic.cpu",), slots=2)
NOW_MS = made.START_MS + 10_000


def live(call: str, state: CallState = "ready", **fields: Any) -> LiveCall:
    known = {
        "fence": 1,
        "failures": 0,
        "losses": 0,
        "queue": "mosaic.cpu",
        "at_ms": made.START_MS,
        "holder": "",
    }
    return LiveCall(call, state, **{**known, **fields})


def told(
    story: made.Story,
    *calls: LiveCall,
    processes: list[LiveProcess] | None = None,
    plan: Plan | None = None,
    said: Said = NOTHING,
    engines: Sequence[EngineReport] = (),
) -> dict[str, str]:
    plan = plan or made.report_plan()
    view = project(plan, story.events)
    alive = [WORKER] if processes is None else processes
    found = explain(plan, view, calls, alive, now_ms=NOW_MS, said=said, engines=engines)
    return {explanation.node: explanation.text for explanation in found}


def test_a_waiting_node_names_the_producers_that_are_not_done() -> None:
    texts = told(
        made.opened().run("0", 1, 2).tell(3, "claimed", "1", holder="host/1/a"),
        live("1", "claimed", holder="host/1/a"),
    )
    assert texts["sections"] == "waits for 'people' (running)"
    assert texts["report"] == "waits for 'sections' (waiting) and 'tickets' (ready)"
    assert "commits" not in texts


def test_many_producers_are_named_in_part() -> None:
    plan = link(
        "wide", [*(made.node(f"n{number}") for number in range(9)), made.node("end", *range(9))], output=9
    )
    texts = told(made.Story().tell(0, "opened"), plan=plan)
    assert texts["end"].endswith("'n4' (waiting) and 4 more")


def test_a_queue_without_worker_is_named_with_the_command_that_helps() -> None:
    texts = told(made.opened(), live("3", queue="mosaic.tickets"))
    assert texts["tickets"] == (
        "it waits in queue 'mosaic.tickets', which no worker serves; "
        "start one with: mosaic worker --queues mosaic.tickets"
    )


def test_a_queue_of_a_hosted_model_is_told_with_the_worker_that_hosts_it() -> None:
    texts = told(made.opened(), live("3", queue="mosaic.gpu.tiny"))
    assert "start one with: mosaic worker --class CLASS --model SPEC" in texts["tickets"]
    assert "the alias 'tiny'" in texts["tickets"]


HOST = LiveProcess(
    name="host/2/b", host="host", pid=2, started_ms=0, queues=("mosaic.gpu.tiny", "mosaic.l4.tiny"), slots=9
)


def test_an_alias_like_one_that_is_hosted_is_told_with_that() -> None:
    text = told(made.opened(), live("3", queue="mosaic.gpu.tinny"), processes=[WORKER, HOST])["tickets"]
    assert text.endswith("(the model with the alias 'tinny'); did you mean 'tiny'?")
    assert (
        "did you mean"
        not in told(made.opened(), live("3", queue="mosaic.gpu.llama"), processes=[HOST])["tickets"]
    )


def test_an_engine_that_is_not_ready_is_told_with_what_it_is_at() -> None:
    def with_engine(state: EngineState, phase: str = "") -> str:
        queues = ("mosaic.gpu.tiny", "mosaic.l4.tiny")
        report = EngineReport(
            holder="host/2/b",
            queues=queues,
            model="tiny",
            fingerprint="f",
            gpu_class="l4",
            at_ms=0,
            slots=9,
            state=state,
            phase=phase,
        )
        ready = live("3", queue="mosaic.gpu.tiny")
        return told(made.opened(), ready, processes=[HOST], engines=[report])["tickets"]

    waits = "it waits in queue 'mosaic.gpu.tiny': the engine of host/2/b is"
    assert with_engine("loading", "loading weights") == f"{waits} loading (loading weights)"
    assert with_engine("restarting", "it died") == f"{waits} restarting (it died)"
    assert with_engine("ready").endswith("which 1 worker with 9 slots serves: it starts when a slot is free")


def test_a_queue_with_workers_tells_how_many_and_since_when() -> None:
    texts = told(made.opened(), live("0", at_ms=made.START_MS + 9_000))
    assert texts["commits"].startswith(
        "it waits in queue 'mosaic.cpu' since 10.0 s, which 1 worker with 2 slots serves"
    )


def test_a_retry_tells_attempt_due_time_and_error() -> None:
    story = made.fanned_out().tell(9_000, "claimed", "2.1", holder="host/1/a")
    story.tell(9_500, "retry", "2.1", detail="ToolError: no", pause_ms=2_500)
    texts = told(story, live("2.1", "delayed", failures=1, at_ms=made.START_MS + 12_000))
    assert texts["sections"] == (
        "0 of 3 items done, 3 left; attempt 2 of 2 of item 1 is due in 2.0 s, after: ToolError: no"
    )


def test_an_overdue_retry_without_any_worker_says_so() -> None:
    texts = told(made.opened(), live("0", "delayed", failures=1, at_ms=made.START_MS), processes=[])
    assert texts["commits"].startswith("attempt 2 of 1 is due since 10.0 s")
    assert texts["commits"].endswith("no worker is alive to start it: mosaic worker --queues mosaic.cpu")


def test_a_running_call_names_its_process_and_since_when() -> None:
    texts = told(
        made.opened().tell(4_000, "claimed", "0", holder="host/1/a"),
        live("0", "claimed", holder="host/1/a", at_ms=made.START_MS + 4_000),
    )
    assert texts["commits"] == "it runs in process host/1/a since 6.0 s"


def test_a_running_call_names_its_attempt_and_its_timeout() -> None:
    plan = link("one", [made.node("slow", timeout_s=60.0)], output=0)
    story = made.Story().tell(9_000, "claimed", "0", holder="host/1/a")
    texts = told(
        story, live("0", "claimed", holder="host/1/a", failures=1, at_ms=made.START_MS + 9_000), plan=plan
    )
    assert texts["slow"] == "it runs in process host/1/a since 1.0 s, attempt 2 of 1, its timeout is 60 s"


def test_a_call_that_was_taken_over_tells_so() -> None:
    story = made.opened().tell(9_000, "claimed", "0", holder="host/1/a")
    texts = told(story, live("0", "claimed", holder="host/1/a", losses=1, at_ms=made.START_MS + 9_000))
    assert texts["commits"] == "it runs in process host/1/a since 1.0 s, after 1 process died with it"


def test_what_waits_for_a_hosted_model_waits_for_the_slots_of_its_engine() -> None:
    host = replace(WORKER, queues=("mosaic.cpu", "mosaic.l4.sage"), slots=256)
    facts = {"fingerprint": "f", "gpu_class": "l4", "at_ms": 0, "slots": 1, "running": 3}
    report = EngineReport(holder="host/1/a", queues=("mosaic.l4.sage",), model="sage", **facts)
    waits = live("3", queue="mosaic.l4.sage")
    text = told(made.opened(), waits, processes=[host], engines=[report])["tickets"]
    assert "which 1 worker with 4 slots serves" in text
    text = told(made.opened(), live("3"), processes=[host], engines=[report])["tickets"]
    assert "which 1 worker with 256 slots serves" in text


def test_items_are_counted_by_process_and_by_queue() -> None:
    story = made.fanned_out(6).run("2.0", 40, 50).tell(60, "claimed", "2.1", "2.2", holder="host/1/a")
    claims = [live(call, "claimed", holder="host/1/a") for call in ("2.1", "2.2")]
    texts = told(story, *claims, *(live(f"2.{item}") for item in (3, 4, 5)))
    first, second, third = texts["sections"].split("; ", 2)
    assert first == "1 of 6 items done, 5 left"
    assert second == "2 items run in process host/1/a"
    assert third.startswith("3 items wait in queue 'mosaic.cpu'")


def test_calls_that_were_sent_apart_are_told_by_queue_the_fullest_first() -> None:
    queues = ["mosaic.direct.a", "mosaic.cpu", "mosaic.cpu", "mosaic.direct.b", "mosaic.direct.c"]
    text = told(made.fanned_out(5), *(live(f"2.{item}", queue=queue) for item, queue in enumerate(queues)))
    _, first, _, second, third, rest = text["sections"].replace(": it starts", "; it starts").split("; ", 5)
    assert first.startswith("2 items wait in queue 'mosaic.cpu' since")
    assert second.startswith("1 item waits in queue 'mosaic.direct.a'")
    assert third.startswith("start one with")
    assert rest.endswith("1 more call in 1 other queue")


def routed_plan() -> Plan:
    return link("asks", [made.node("answer", queue=ROUTED)], output=0)


def test_what_was_sent_to_a_worker_that_is_gone_needs_no_worker_of_that_name() -> None:
    story, gone = made.Story().tell(0, "opened", detail="asks"), live("0", queue="mosaic.direct.gone")
    text = told(story, gone, plan=routed_plan())["answer"]
    assert text == (
        "it waits in queue 'mosaic.direct.gone', which no worker serves any more; a live worker has it sent elsewhere"
    )
    text = told(story, gone, plan=routed_plan(), processes=[])["answer"]
    assert "start one with: mosaic worker --queues mosaic.api.PROVIDER, or" in text


def test_what_ran_in_a_worker_that_is_gone_needs_no_worker_of_that_name() -> None:
    story = made.Story().tell(0, "opened", detail="asks")
    held = live("0", "claimed", holder="gone/7/x", queue="mosaic.direct.gone")
    text = told(story, held, plan=routed_plan(), processes=[])["answer"]
    assert "to take over; start one with: mosaic worker --queues mosaic.api.PROVIDER, or" in text


def test_the_call_of_a_dead_process_tells_who_takes_over() -> None:
    story = made.opened().tell(5, "claimed", "0", holder="gone/7/x")
    text = told(story, live("0", "claimed", holder="gone/7/x"))["commits"]
    assert text == (
        "it was running in process gone/7/x, which is dead; "
        "the sweeper of a live worker takes over within 0.5 s"
    )


def test_the_call_of_a_dead_process_tells_when_nobody_can_take_over() -> None:
    story = made.opened().tell(5, "claimed", "0", holder="gone/7/x")
    text = told(story, live("0", "claimed", holder="gone/7/x"), processes=[])["commits"]
    assert text.endswith("no worker is alive to take over; start one with: mosaic worker --queues mosaic.cpu")


@pytest.mark.parametrize(
    ("call", "words"),
    [("2", "reading its list waits"), ("2.c", "collecting them waits"), ("2.0", "1 item waits")],
)
def test_a_fan_out_tells_which_of_its_steps_waits(call: str, words: str) -> None:
    assert words in told(made.fanned_out(), live(call))["sections"]


def test_a_finished_run_is_told_in_one_line() -> None:
    view = project(made.report_plan(), made.finished().events)
    assert explain(made.report_plan(), view, [], [], now_ms=NOW_MS) == [
        Explanation("", "the run is done after 400 ms: 5 nodes done")
    ]


def test_a_failed_run_tells_node_and_error() -> None:
    story = made.opened().tell(5, "claimed", "0").tell(9, "failed", "0", detail="ToolError: no")
    texts = told(story.tell(9, "closed", detail="failed: ToolError: no"))
    assert texts == {"": "the run failed in node 'commits' after 9 ms: ToolError: no"}


def test_a_cancelled_run_tells_the_reason() -> None:
    assert told(made.opened().tell(9, "closed", detail="cancelled: enough")) == {
        "": "the run was cancelled after 9 ms: enough"
    }


def test_every_unfinished_node_is_explained_at_every_moment() -> None:
    events = made.finished().events
    for length in range(1, len(events)):
        view = project(made.report_plan(), events[:length])
        calls = [
            live(str(number), "claimed", holder="host/1/a")
            for number, found in enumerate(view.nodes)
            if found.state == "running"
        ]
        names = {found.node for found in explain(made.report_plan(), view, calls, [WORKER], now_ms=NOW_MS)}
        assert names == {found.name for found in view.nodes if not found.is_over}


def streams(story: made.Story, *calls: LiveCall, said: Said = NOTHING, min_items: int = 1) -> dict[str, str]:
    return told(story, *calls, plan=made.stream_plan(min_items=min_items), said=said)


def test_an_idle_mailbox_names_its_producer_and_what_that_said_so_far() -> None:
    texts = streams(made.streaming(), live("7.m", "idle"), said=Said({"6": 1204}))
    assert texts["tone"] == "waits for chunks of 'prose' (running, 1,204 characters so far)"


def test_an_idle_mailbox_of_items_tells_their_number_and_its_least_batch() -> None:
    story = made.streaming().run("2", 1, 2)
    texts = streams(story, live("3.m", "idle"), said=Said({"0": 2}), min_items=5)
    assert (
        texts["totals"]
        == "waits for chunks of 'numbers' (running, 2 items so far); it reads at least 5 items at a time"
    )


def test_the_batch_of_a_text_is_told_in_characters() -> None:
    plan = made.stream_plan()
    batched = [
        replace(each, batch=Batch(min_items=2)) if each.name == "tone" else each for each in plan.nodes
    ]
    texts = told(made.streaming(), live("7.m", "idle"), plan=replace(plan, nodes=tuple(batched)))
    assert texts["tone"].endswith("; it reads at least 2 characters at a time")


def test_an_idle_mailbox_that_reads_a_fan_out_tells_how_many_of_its_items_are_done() -> None:
    texts = streams(made.streaming().run("1.2", 20, 30), live("8.m", "idle"), said=Said({"1": 3}))
    assert texts["sums"] == "waits for chunks of 'each' (running, 1 item so far)"


def test_an_idle_mailbox_whose_producer_closed_reads_the_end() -> None:
    texts = streams(made.streaming().tell(20, "skipped", "6"), live("7.m", "idle"))
    assert texts["tone"] == "reads the end of its streams any moment"


def test_a_mailbox_that_has_not_begun_names_what_it_waits_for_first() -> None:
    assert streams(made.streaming())["totals"] == "waits for 'mark' (waiting)"


def test_a_mailbox_at_work_says_that_it_reads() -> None:
    story = made.streaming().tell(9_000, "claimed", "7.m", holder="host/1/a")
    texts = streams(story, live("7.m", "claimed", holder="host/1/a", at_ms=made.START_MS + 9_000))
    assert texts["tone"] == "it reads its streams in process host/1/a since 1.0 s"


def test_a_fan_out_that_grows_tells_its_items_so_far_and_what_its_list_waits_for() -> None:
    story = made.streaming().run("1.0", 12, 13).tell(14, "claimed", "1.1", holder="host/1/a")
    calls = [live("1.m", "idle"), live("1.1", "claimed", holder="host/1/a"), live("1.2")]
    first, second, third, last = streams(story, *calls, said=Said({"0": 3}))["each"].split("; ")
    assert first == "1 of 3 items so far done, its list still grows"
    assert second == "1 item runs in process host/1/a"
    assert third.startswith("1 item waits in queue 'mosaic.cpu'")
    assert last == "waits for chunks of 'numbers' (running, 3 items so far)"


def test_a_fan_out_that_grows_has_no_item_at_first() -> None:
    story = made.Story().tell(0, "claimed", "0", holder="host/1/a")
    assert streams(story, live("1.m", "idle"))["each"] == (
        "no item so far, its list still grows; waits for chunks of 'numbers' (running, 0 items so far)"
    )


@pytest.mark.parametrize(
    ("state", "words"),
    [("claimed", "it reads its list in process host/1/a"), ("ready", "reading its list waits in queue")],
)
def test_a_fan_out_that_grows_tells_when_its_list_is_read(state: CallState, words: str) -> None:
    assert words in streams(made.streaming(), live("1.m", state, holder="host/1/a"))["each"]


def test_a_process_that_reads_a_list_and_runs_its_items_is_told_for_both() -> None:
    calls = [live(call, "claimed", holder="host/1/a") for call in ("1.0", "1.m", "1.1")]
    told_of = streams(made.streaming(), *calls)["each"].split("; ")[1:]
    assert told_of == [
        "2 items run in process host/1/a",
        "it reads its list in process host/1/a since 10.0 s",
    ]


def test_a_batch_that_is_tried_again_is_no_item() -> None:
    story = made.streaming().tell(20, "claimed", "1.m").tell(30, "retry", "1.m", detail="no", pause_ms=20_000)
    texts = streams(story, live("1.m", "delayed", failures=1, at_ms=made.START_MS + 20_030))
    assert "attempt 2 of 1 is due in 10.0 s, after: no" in texts["each"]


def test_a_field_that_is_missing_is_named_with_those_that_are_there() -> None:
    story = made.streaming().tell(20, "claimed", "4", holder="host/1/a")
    said = Said(announced={"4:revenue", "4:risk.level"})
    assert streams(story, said=said)["ratios"] == (
        "waits for the field 'profit' of 'extract', which is running and has announced revenue and risk.level"
    )


def test_several_fields_are_missing_of_a_producer_that_has_said_nothing() -> None:
    assert streams(made.streaming())["ratios"] == (
        "waits for the fields 'revenue', 'risk.level' and 'profit' of 'extract', "
        "which is waiting and has announced nothing yet"
    )


def test_a_node_whose_fields_are_all_there_is_ready_any_moment() -> None:
    said = Said(announced={"4:revenue", "4:risk.level", "4:profit"})
    assert streams(made.streaming(), said=said)["ratios"] == "becomes ready any moment"


def test_a_producer_that_was_cancelled_at_an_earlier_end_is_named() -> None:
    story = made.opened().tell(5, "failed", "3", detail="no").tell(5, "closed", detail="failed: no")
    assert told(story.tell(9, "redo", "3", "4", detail="1"))["report"] == (
        "waits for 'sections' (cancelled) and 'tickets' (waiting)"
    )


def test_the_end_of_an_epoch_is_told_with_its_own_time() -> None:
    assert told(made.again()) == {"": "the run is done in epoch 1 after 300 ms: 5 nodes done"}


def test_a_producer_that_failed_is_named_by_the_end() -> None:
    story = made.streaming().tell(20, "failed", "6", detail="node 'prose': no")
    texts = streams(story.tell(20, "closed", detail="failed: node 'prose': no"))
    assert texts == {"": "the run failed after 20 ms: node 'prose': no"}
