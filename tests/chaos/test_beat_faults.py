"""Beats whose server is full, frozen, or set back to what it was, and whose schedules change while they are frozen."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from tests.integration.schedule_beats import (
    CLOCK,
    LOCK,
    Beats,
    Clock,
    add,
    check_one_run_a_tick,
    moving_clock,
    run_ids,
    ticks,
)
from tests.own_server import OwnServer
from tests.services import READY_S, Worker

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="a schedule stays until somebody removes it, and nobody sweeps"),
]
BEGIN, HOUR = 1_767_225_600, 3600


@pytest.mark.parametrize("place", ["after_key", "after_index"])
def test_a_schedule_that_changes_while_its_beat_is_frozen_in_a_tick_has_one_run_for_it(
    beats: Beats, redis_client: Redis, clock: Clock, place: str
) -> None:
    add(redis_client, "n", cron="0 * * * *", inputs={"text": "before"})
    clock.begin("n", BEGIN)
    clock.move(BEGIN + HOUR)
    frozen = beats.beat(at=place, signal="SIGSTOP")
    await_stop(frozen)
    add(redis_client, "n", cron="0 * * * *", inputs={"text": "after"})
    redis_client.delete(LOCK)  # it has lapsed
    beats.beat()
    clock.await_ticks("n", 1)
    frozen.signal(signal.SIGCONT)
    assert frozen.wait(READY_S) == 1
    check_one_run_a_tick(redis_client, "n", [BEGIN + HOUR])


def test_a_tick_that_is_due_while_the_server_is_full_starts_once_there_is_room(
    beats: Beats, redis_client: Redis, clock: Clock
) -> None:
    add(redis_client, "n", cron="0 * * * *")
    clock.begin("n", BEGIN)
    beat = beats.beat()
    beat.wait_said("Acquired lock")
    with full(redis_client, at=BEGIN + HOUR):
        beat.wait_said("is full")
        assert ticks(redis_client, "n") == []
    assert clock.await_ticks("n", 1) == [BEGIN + HOUR]
    check_one_run_a_tick(redis_client, "n", [BEGIN + HOUR])


def test_a_beat_that_starts_while_the_server_is_full_leads_once_there_is_room(
    beats: Beats, redis_client: Redis, clock: Clock
) -> None:
    add(redis_client, "n", cron="0 * * * *")
    clock.begin("n", BEGIN)
    with full(redis_client, at=BEGIN + HOUR):
        beat = beats.beat()
        beat.wait_said("is full")
    assert clock.await_ticks("n", 1) == [BEGIN + HOUR]


@contextmanager
def full(client: Redis, *, at: int) -> Iterator[None]:
    """The server takes nothing more, from a time of the beats' clock on."""
    with client.pipeline() as pipe:
        pipe.set(CLOCK, str(at), px=int(READY_S * 10_000))
        pipe.config_set("maxmemory", "1")
        pipe.execute()
    try:
        yield
    finally:
        client.config_set("maxmemory", "0")


@pytest.fixture
def own_client(own_server: OwnServer) -> Iterator[Redis]:
    with Redis.from_url(own_server.urls.redis_url, retry=Retry(ConstantBackoff(0.01), 500)) as client:
        yield client


def test_a_beat_that_starts_while_the_server_is_away_leads_once_it_is_back(
    own_server: OwnServer, own_client: Redis, tmp_path: Path
) -> None:
    add(own_client, "n", cron="* * * * *")
    own_client.hset("mosaic:schedule:n", "last", "0")
    own_client.save()
    own_server.kill()
    with Beats(own_server.urls, tmp_path) as beats:
        beat = beats.beat()
        beat.wait_said("it is waited for")
        own_server.start()
        beat.wait_said("schedule.started")


def test_a_tick_that_the_server_lost_again_has_one_run_there(
    own_server: OwnServer, own_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_LIVENESS_S", "30")  # the beat keeps its lock
    add(own_client, "n", cron="0 * * * *")
    with Beats(own_server.urls, tmp_path) as beats:
        with moving_clock(own_client) as clock:
            clock.begin("n", BEGIN)
            beat = beats.beat()
            beat.wait_said("Acquired lock")
            own_client.save()
            clock.move(BEGIN + HOUR)
            clock.await_ticks("n", 1)
            lost = run_ids(own_client)
        own_server.kill()
        own_server.start()
        with moving_clock(own_client) as clock:
            clock.move(BEGIN + HOUR)
            clock.await_ticks("n", 1)
        check_one_run_a_tick(own_client, "n", [BEGIN + HOUR])
        assert not lost & run_ids(own_client)
        assert beat.returncode is None


@pytest.mark.parametrize("place", ["before_start", "before_close"])
def test_told_to_end_a_beat_does_not_wait_for_a_server_that_is_frozen(
    own_server: OwnServer, own_client: Redis, tmp_path: Path, place: str
) -> None:
    add(own_client, "n", cron="* * * * *")
    own_client.hset("mosaic:schedule:n", "last", "0")
    with Beats(own_server.urls, tmp_path) as beats:
        beat = beats.beat(at=place, signal="SIGSTOP")
        if place == "before_close":
            beat.wait_said("schedule.started")
            beat.signal(signal.SIGTERM)
        await_stop(beat)
        own_server.signal(signal.SIGSTOP)
        beat.signal(signal.SIGTERM)
        beat.signal(signal.SIGCONT)
        assert beat.wait(READY_S) == 1
        beat.wait_said("without giving back its lock")


def await_stop(beat: Worker) -> None:
    """Until it has stopped itself: only who started a process is told, which may be a helper of ours."""
    deadline, process = time.monotonic() + READY_S, psutil.Process(beat.pid)
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, beat.log
        time.sleep(0.01)
