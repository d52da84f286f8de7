"""Beats of their own processes on a real server, with a clock that the test moves: what starts, and what it gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from made_repository import Repo
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_tasks import Workflow, get_run
from mosaic_tasks.app import app
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.scheduling.schedules import Schedules
from mosaic_tasks.scheduling.starting import put_schedule
from mosaic_tasks.scheduling.turns import AT_ONCE
from tests.integration.schedule_beats import (
    LOCK,
    Beats,
    Clock,
    add,
    check_one_run_a_tick,
    noted,
    run_ids,
    ticks,
)
from tests.services import READY_S, Workers, key_events

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="a schedule stays until somebody removes it, and nobody sweeps"),
]
BERLIN = "Europe/Berlin"
ROOT = Path(__file__).parents[2]


def seconds(text: str, zone: str = BERLIN) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def shown(at: Sequence[int], zone: str = BERLIN) -> list[str]:
    return [f"{datetime.fromtimestamp(each, ZoneInfo(zone)):%d. %H:%M%z}" for each in at]


@pytest.mark.parametrize(
    ("cron", "begin", "expected"),
    [
        (
            "30 2 * * *",
            "2026-03-26",
            ["26. 02:30+0100", "27. 02:30+0100", "28. 02:30+0100", "29. 03:00+0200"]
            + [f"{day} 02:30+0200" for day in ("30.", "31.", "01.")],
        ),
        (
            "30 2 * * *",
            "2026-10-22",
            [f"{day} 02:30+0200" for day in ("22.", "23.", "24.", "25.")]
            + [f"{day} 02:30+0100" for day in ("26.", "27.", "28.")],
        ),
        (
            "*/30 2 * * SUN",
            "2026-10-22",
            ["25. 02:00+0200", "25. 02:30+0200", "25. 02:00+0100", "25. 02:30+0100"],
        ),
    ],
)
def test_a_week_in_which_the_clocks_change_has_one_run_a_tick_though_a_beat_is_killed(
    beats: Beats, redis_client: Redis, clock: Clock, cron: str, begin: str, expected: list[str]
) -> None:
    add(redis_client, "n", cron=cron, zone=BERLIN, catch_up="all")
    at = seconds(begin)
    clock.begin("n", at)
    first = beats.beat()
    first.wait_said("Acquired lock")
    beats.beat()
    for half_day in range(1, 15):
        clock.move(at + half_day * 43_200)
        is_past = [tick for tick in _expected(at, expected) if tick <= at + half_day * 43_200]
        clock.await_ticks("n", len(is_past))
        if half_day == 7:
            first.kill()
    assert shown(ticks(redis_client, "n")) == expected
    check_one_run_a_tick(redis_client, "n", ticks(redis_client, "n"))


def _expected(begin: int, told: list[str]) -> list[int]:
    """The moments that are told."""
    found, at = [], begin
    while len(found) < len(told):
        if shown([at]) == [told[len(found)]]:
            found.append(at)
        at += 60
    return found


def test_each_run_knows_its_tick_and_the_one_before_that_ran(
    beats: Beats, workers: Workers, redis_client: Redis, clock: Clock
) -> None:
    add(
        redis_client,
        "n",
        cron="0 7 * * MON",
        zone=BERLIN,
        inputs={"text": "{{ tick.previous }} {{ tick.time }}"},
    )
    clock.begin("n", seconds("2026-03-20"))
    beats.beat()
    clock.move(seconds("2026-03-23T07:00"))
    clock.await_ticks("n", 1)
    clock.move(seconds("2026-04-07"))  # that of the 30th was missed
    clock.await_ticks("n", 2)
    workers.start("mosaic_tasks.app", ["mosaic.cpu"])
    first, second = (get_run(each["run"]).result(READY_S) for each in noted(redis_client, "n"))
    assert first == "2026-03-16t07:00:00+01:00 2026-03-23t07:00:00+01:00"
    assert second == "2026-03-23t07:00:00+01:00 2026-04-06t07:00:00+02:00"


def test_after_a_break_policies_decide(beats: Beats, redis_client: Redis, clock: Clock) -> None:
    begin = seconds("2026-06-01")
    for policy in ("latest", "all", "skip"):
        add(redis_client, policy, cron="0 * * * *", catch_up=policy, catch_up_limit=3)
        clock.begin(policy, begin)
    clock.move(begin + 9 * 3600 + 120)
    beats.beat()
    clock.await_ticks("all", 3)
    clock.await_ticks("latest", 1)
    clock.move(begin + 10 * 3600)
    clock.await_ticks("skip", 1)
    clock.await_ticks("latest", 2)
    clock.await_ticks("all", 4)
    hours = {
        name: [(tick - begin) // 3600 for tick in ticks(redis_client, name)]
        for name in ("latest", "all", "skip")
    }
    assert hours == {"latest": [9, 10], "all": [7, 8, 9, 10], "skip": [10]}
    assert len(run_ids(redis_client)) == 7


def test_a_paused_schedule_starts_nothing_and_leaves_out_the_ticks_of_its_pause(
    beats: Beats, redis_client: Redis, clock: Clock
) -> None:
    schedules = Schedules(redis_client, Keys("mosaic"))
    begin = seconds("2026-06-01")
    for name in ("paused", "other"):
        add(redis_client, name, cron="0 * * * *", catch_up="all")
        clock.begin(name, begin)
    schedules.pause("paused")
    clock.move(begin + 3600)
    beats.beat()
    clock.await_ticks("other", 1)
    schedules.resume("paused")
    assert schedules.get("paused").last > begin
    clock.begin("paused", begin + 3600)
    clock.move(begin + 7200)
    clock.await_ticks("paused", 1)
    assert ticks(redis_client, "paused") == [begin + 7200]


def test_a_clock_that_is_set_back_is_told_and_resuming_goes_on_from_now(
    beats: Beats, redis_client: Redis, clock: Clock
) -> None:
    schedules, begin = Schedules(redis_client, Keys("mosaic")), seconds("2026-06-01")
    add(redis_client, "n", cron="0 * * * *")
    clock.begin("n", begin)
    clock.move(begin + 365 * 86_400)
    beat = beats.beat()
    clock.await_ticks("n", 1)
    clock.move(begin)
    beat.wait_said("clock was set back")
    assert "mosaic schedule resume n" in schedules.get("n").problem
    schedules.pause("n")
    schedules.resume("n")
    clock.begin("n", begin)
    clock.move(begin + 3600)
    assert clock.await_ticks("n", 2)[-1] == begin + 3600
    assert schedules.get("n").problem == ""


def test_a_schedule_that_is_paused_while_it_catches_up_stops(
    beats: Beats, redis_client: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year of minutes was missed; at its first tick somebody pauses it, and the others go on."""
    begin = seconds("2026-06-01")
    for name in ("a", "b"):
        add(redis_client, name, cron="* * * * *", catch_up="all", catch_up_limit=1000)
        clock.begin(name, begin)
    clock.move(begin + 365 * 86_400)
    beats.beat()
    clock.await_ticks("b", 1)
    assert len(ticks(redis_client, "a")) <= 2 * AT_ONCE, "each has its turn"
    Schedules(redis_client, Keys("mosaic")).pause("a")
    Schedules(redis_client, Keys("mosaic")).pause("b")
    assert int(redis_client.hget("mosaic:schedule:a", "last") or 0) < begin + 365 * 86_400


def test_nonsense_stops_neither_the_beat_nor_the_other_schedules(
    beats: Beats, redis_client: Redis, clock: Clock
) -> None:
    begin = seconds("2026-06-01")
    bad = ["bad-plan", "bad-said", "bad-timing", "bad-type", "bad-zone", "unfit"]
    for name in [*bad, "good"]:
        add(redis_client, name, cron="0 * * * *")
        clock.begin(name, begin)
    redis_client.hset("mosaic:schedule:bad-plan", "plan", b"\x00")
    redis_client.hset("mosaic:schedule:bad-said", "said", b"{")
    redis_client.hset("mosaic:schedule:bad-timing", "timing", b'{"cron": "0 0 30 2 *"}')
    redis_client.hset(
        "mosaic:schedule:bad-zone", "timing", b'{"cron": "0 * * * *", "zone": "Europe/Atlantis"}'
    )
    redis_client.hset(
        "mosaic:schedule:unfit",
        "said",
        b'{"workflow": "w", "plan": "p", "inputs": {"tex": "{{ tick.time }}"}}',
    )
    redis_client.delete("mosaic:schedule:bad-type")
    redis_client.set("mosaic:schedule:bad-type", "x")
    clock.move(begin + 3600)
    beat = beats.beat()
    assert clock.await_ticks("good", 1) == [begin + 3600]
    for name in bad:
        beat.wait_said(f"schedule={name}")
    clock.move(begin + 7200)
    assert clock.await_ticks("good", 2) == [begin + 3600, begin + 7200]
    told = {each.name: each.problem for each in Schedules(redis_client, Keys("mosaic")).all()}
    assert "tex" in told["unfit"]
    assert "Europe/Atlantis" in told["bad-zone"]
    assert all(told[name] for name in bad)
    assert beat.log.count("schedule=unfit") == 1, "the same is told once"
    assert beat.returncode is None
    redis_client.delete("mosaic:schedule:bad-type")

    add(redis_client, "unfit", cron="0 * * * *")  # mended; what was due is not lost
    assert clock.await_ticks("unfit", 1) == [begin + 7200]
    assert {each.name: each.problem for each in Schedules(redis_client, Keys("mosaic")).all()}["unfit"] == ""


def test_told_to_end_a_beat_gives_back_the_lock_and_leaves_nothing(
    beats: Beats, redis_client: Redis, tmp_path: Path
) -> None:
    with key_events(redis_client, "g") as heard:
        beat = beats.beat()
        for _ in range(2):  # it is set, and then extended: by a beat that knows that it has it
            next(key for event, key in heard if (event, key) == ("expire", LOCK))
    beat.stop()
    assert (beat.returncode, redis_client.exists(LOCK)) == (0, 0)
    assert list(tmp_path.iterdir()) == []


def test_the_weekly_report_comes_on_monday(
    beats: Beats, workers: Workers, redis_client: Redis, clock: Clock, tmp_path: Path
) -> None:
    """The example as its file says it, but for the repository."""
    data = (ROOT / "examples" / "weekly_report" / "workflow.yaml").read_text("utf-8")
    workflow = Workflow.from_yaml(data)
    spec = workflow.schedules["weekly-report"]
    repository = Repo(tmp_path / "repository", start=datetime(2026, 3, 25, 10, tzinfo=ZoneInfo(BERLIN)))
    repository.commit("Add the parser", {"parser.py": "x = 1\n"})
    told = {**spec.inputs, "repo": str(repository.folder)}
    monday = workflow.model_copy(
        update={"schedules": {"weekly-report": spec.model_copy(update={"inputs": told})}}
    )
    put_schedule(Schedules(redis_client, Keys("mosaic")), "weekly-report", monday)
    clock.begin("weekly-report", seconds("2026-03-24"))
    beats.beat()
    clock.move(seconds("2026-03-30T06:59", spec.zone))
    workers.start("mosaic_tasks.app", ["mosaic.cpu"])
    clock.move(seconds("2026-03-30T07:00", spec.zone))
    assert clock.await_ticks("weekly-report", 1) == [seconds("2026-03-30T07:00", spec.zone)]
    (run,) = noted(redis_client, "weekly-report")
    report = get_run(run["run"]).result(60)
    assert "Add the parser" in json.dumps(report)
    process = process_for(app)
    inputs = process.payloads.unpack(run["run"], process.ledger.outputs(run["run"], ["in"])[0] or b"")
    assert inputs["since"].startswith("2026-03-23T07:00:00")
