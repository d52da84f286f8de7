"""Beats are killed and frozen at each step, and their server is restarted: each tick has one run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from celery.schedules import schedule as every
from redbeat import RedBeatSchedulerEntry  # type: ignore[import-untyped]
from redis import Redis

from mosaic_queues.connection import connect, urls_of
from mosaic_queues.server import EmbeddedServer
from mosaic_tasks.app import app
from tests.chaos.test_faults import server_process
from tests.integration.schedule_beats import (
    LOCK,
    PLACES,
    Beats,
    Clock,
    add,
    check_one_run_a_tick,
    moving_clock,
    noted,
    run_ids,
    ticks,
)
from tests.services import READY_S, Workers, key_events

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="a schedule stays until somebody removes it, and nobody sweeps"),
]
BEGIN, HOUR = 1_767_225_600, 3600
OURS = [
    place
    for place in PLACES
    if place not in ("before_send", "before_reserve", "after_reserve", "before_close")
]
ENTRY = "mosaic:beat:each-second"


def hours(*counts: int) -> list[int]:
    return [BEGIN + count * HOUR for count in counts]


@pytest.mark.parametrize("place", OURS)
def test_a_beat_killed_at_any_step_loses_no_tick_and_doubles_none(
    beats: Beats, redis_client: Redis, clock: Clock, tmp_path: Path, place: str
) -> None:
    add(redis_client, "n", cron="0 * * * *", catch_up="all", inputs={"text": "{{ tick.previous }}"})
    clock.begin("n", BEGIN)
    clock.move(BEGIN + 2 * HOUR)
    killed = beats.beat(at=place)
    assert killed.wait(READY_S) == -signal.SIGKILL
    beats.beat(at=place)  # it has happened, so this one lives
    clock.move(BEGIN + 3 * HOUR)
    clock.await_ticks("n", 3)
    check_one_run_a_tick(redis_client, "n", hours(1, 2, 3))
    assert redis_client.llen("mosaic.cpu") == 3


@pytest.mark.parametrize("place", ["before_start", "after_open", "before_note", "after_note"])
def test_a_beat_frozen_past_its_lock_changes_nothing_when_it_goes_on(
    beats: Beats, redis_client: Redis, clock: Clock, tmp_path: Path, place: str
) -> None:
    add(redis_client, "n", cron="0 * * * *")
    clock.begin("n", BEGIN)
    frozen = beats.beat(at=place, signal="SIGSTOP")
    frozen.wait_said("Acquired lock")
    other = beats.beat()
    clock.move(BEGIN + HOUR)
    other.wait_said("Acquired lock")
    assert (tmp_path / "interrupted").exists()
    clock.await_ticks("n", 1)
    clock.move(BEGIN + 2 * HOUR)
    clock.await_ticks("n", 2)
    before = redis_client.hgetall("mosaic:schedule:n")
    frozen.signal(signal.SIGCONT)
    assert frozen.wait(READY_S) == 1
    assert redis_client.hgetall("mosaic:schedule:n") == before
    check_one_run_a_tick(redis_client, "n", hours(1, 2))
    assert other.returncode is None


@pytest.mark.parametrize("place", ["before_start", "before_note"])
def test_told_to_end_in_the_middle_of_a_tick_a_beat_does_it_first(
    beats: Beats, redis_client: Redis, clock: Clock, place: str
) -> None:
    add(redis_client, "n", cron="0 * * * *")
    clock.begin("n", BEGIN)
    clock.move(BEGIN + HOUR)
    assert beats.beat(at=place, signal="SIGTERM").wait(READY_S) == 0
    assert not redis_client.exists(LOCK)
    check_one_run_a_tick(redis_client, "n", hours(1))


def test_a_server_that_is_killed_and_comes_back_costs_no_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded server: restarted by its supervisor, its data in the append-only file. The beat goes on."""
    with EmbeddedServer(tmp_path / "home") as server, connect(server.redis_url) as client:
        with Beats(urls_of(server.redis_url), tmp_path) as started:
            with moving_clock(client) as clock:
                add(client, "n", cron="0 * * * *", catch_up="all")
                clock.begin("n", BEGIN)
                beat = started.beat()
                clock.move(BEGIN + HOUR)
                clock.await_ticks("n", 1)
            server_process(server).kill()
            with moving_clock(client) as clock:
                clock.move(BEGIN + 3 * HOUR)
                clock.await_ticks("n", 3)
            assert beat.returncode is None
            check_one_run_a_tick(client, "n", hours(1, 2, 3))
        server.stop(wait_s=15)


# -- entries of RedBeat -----------------------------------------------------------------------------------------------

WORKFLOW = """
name: echo
nodes: {first: {tool: "string:capwords", with: {s: hello}}}
output: first
"""


def entry(tmp_path: Path) -> None:
    """One that submits a workflow, and is due."""
    (tmp_path / "echo.yaml").write_text(WORKFLOW)
    told = {"workflow": str(tmp_path / "echo.yaml")}
    made = RedBeatSchedulerEntry("each-second", "mosaic.submit", every(HOUR), kwargs=told, app=app)
    made.last_run_at = made.last_run_at.replace(year=2026, month=1, day=1)
    made.save()


def sent_ids(client: Redis) -> list[str]:
    """The task ids of the messages."""
    raws: Any = client.lrange("mosaic.cpu", 0, -1)
    return [
        json.loads(raw)["headers"]["id"]
        for raw in raws
        if json.loads(raw)["headers"]["task"] == "mosaic.submit"
    ]


@pytest.mark.parametrize("place", ["before_send", "before_reserve", "after_reserve"])
def test_what_an_entry_sends_is_not_lost_and_starts_one_run_though_its_beat_is_killed(
    beats: Beats, workers: Workers, redis_client: Redis, tmp_path: Path, place: str
) -> None:
    entry(tmp_path)
    assert beats.beat(at=place).wait(READY_S) == -signal.SIGKILL
    with key_events(redis_client, "h") as heard:
        beat = beats.beat(at=place)
        if place != "after_reserve":
            next(key for _, key in heard if key == ENTRY)
        else:
            beat.wait_said("Acquired lock")
    assert json.loads(redis_client.hget(ENTRY, "meta") or "")["total_run_count"] == 1
    found = sent_ids(redis_client)
    assert (len(found), len(set(found))) == (2 if place == "before_reserve" else 1, 1)
    with key_events(redis_client, "t") as heard:
        workers.start("mosaic_tasks.app", ["mosaic.cpu"])
        next(key for _, key in heard if key.endswith(":end"))
    assert len(run_ids(redis_client)) == 1


def test_a_beat_frozen_while_it_sends_notes_nothing_for_the_one_that_went_on(
    beats: Beats, redis_client: Redis, tmp_path: Path
) -> None:
    entry(tmp_path)
    frozen = beats.beat(at="before_reserve", signal="SIGSTOP")
    with key_events(redis_client, "h") as heard:
        frozen.wait_said("Acquired lock")
        beats.beat()
        next(key for _, key in heard if key == ENTRY)
    before = redis_client.hgetall(ENTRY)
    frozen.signal(signal.SIGCONT)
    assert frozen.wait(READY_S) == 1
    assert redis_client.hgetall(ENTRY) == before
    assert len(set(sent_ids(redis_client))) == 1


def test_an_entry_that_can_never_be_sent_waits_for_its_next_time(beats: Beats, redis_client: Redis) -> None:
    made = RedBeatSchedulerEntry(
        "each-second", "mosaic.submit", every(HOUR), kwargs={"workflow": "x"}, app=app
    )
    made.options = {"serializer": "none such"}
    made.last_run_at = made.last_run_at.replace(year=2026, month=1, day=1)
    made.save()
    with key_events(redis_client, "h") as heard:
        beat = beats.beat()
        next(key for _, key in heard if key == ENTRY)
    beat.wait_said("Message Error")
    assert sent_ids(redis_client) == []


def test_a_beat_without_the_lock_ends(beats: Beats, redis_client: Redis, clock: Clock) -> None:
    add(redis_client, "n", cron="0 * * * *")
    clock.begin("n", BEGIN)
    beat = beats.beat()
    beat.wait_said("Acquired lock")
    redis_client.delete(LOCK)
    assert beat.wait(READY_S) == 1
    clock.move(BEGIN + HOUR)
    assert (ticks(redis_client, "n"), noted(redis_client, "n")) == ([], [])
