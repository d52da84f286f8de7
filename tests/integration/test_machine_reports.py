"""Machines in the server: what workers announce, when, and what `mosaic infra` shows of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from made_machines import engine, fleet, gpu, hgx, report
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from typer.testing import CliRunner

from mosaic_queues.keys import Keys
from mosaic_queues.settings import Settings
from mosaic_routing.gpus import Gpus
from mosaic_routing.inventory import publish
from mosaic_routing.machines import REPORTS, MachineReport, machines
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.execution.machine import Announcer, GpuReader, Pace, hosted_class
from tests.services import Workers, key_events

KEYS = Keys("mosaic")
QUICK = Pace(look_s=0.01, heartbeat_s=1_000.0, round_trips_s=0.0, first_s=10.0, hung_s=0.05)
COMMAND = [sys.executable, "-m", "mosaic_tasks.cli"]
pytestmark = pytest.mark.integration

Announce = Callable[..., Announcer]
Told = Iterator[MachineReport]


@pytest.fixture
def announce(redis_client: Redis) -> Iterator[Announce]:
    """Announces machines; all are ended after the test."""
    started: list[Announcer] = []

    def start(
        known: MachineReport | None = None, *, read: Callable[[], Gpus] = Gpus, **more: Any
    ) -> Announcer:
        made = Announcer(redis_client, KEYS, known or report(), read_gpus=read, **{"pace": QUICK} | more)
        made.start()
        started.append(made)
        return made

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def told(redis_client: Redis) -> Iterator[Told]:
    """The reports of all workers, whenever one is written."""
    with key_events(redis_client, "$") as events:
        yield (each for _ in events for each in REPORTS.all(redis_client, keys=KEYS))


def until(found: Iterator[MachineReport], is_it: Callable[[MachineReport], bool]) -> MachineReport:
    return next(each for each in found if is_it(each))


class TestReports:
    def test_how_old_a_report_is_goes_by_the_servers_clock(
        self, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("time.time", lambda: 1.0)
        REPORTS.publish(redis_client, report(), keys=KEYS)
        redis_client.zincrby("mosaic:machines", -5_000, "mosaic:machine:one/w")
        [(found, age_s)] = REPORTS.aged(redis_client, keys=KEYS)
        assert found == report()
        assert 5.0 <= age_s < 65.0

    def test_one_that_is_silent_is_gone(self, redis_client: Redis) -> None:
        with key_events(redis_client, "x") as events:
            REPORTS.publish(redis_client, report(), keys=KEYS, expiry_s=0.05)
            assert next(events) == ("expired", "mosaic:machine:one/w")
        assert REPORTS.all(redis_client, keys=KEYS) == []


class TestAnnouncer:
    def test_a_change_is_told_at_once_and_the_end_too(
        self, redis_client: Redis, told: Told, announce: Announce
    ) -> None:
        has = Gpus(gpus=(gpu(),))
        announcer = announce(read=lambda: has)
        seen = until(told, lambda each: each.gpus == has)
        assert (seen.worker, seen.round_trip_s is not None) == ("w@one", True)
        # a model of somebody else moves in
        has = Gpus(gpus=(gpu(free_bytes=1 << 30),))
        until(told, lambda each: each.gpus == has)
        # the GPU falls off the bus, and is there again
        has = Gpus(gpus=(gpu(problem="GPU is lost"),))
        until(told, lambda each: each.gpus == has)
        has = Gpus(gpus=(gpu(),))
        until(told, lambda each: each.gpus == has)
        announcer.stop()
        assert REPORTS.all(redis_client, keys=KEYS) == []

    def test_a_heartbeat_comes_without_any_change(self, told: Told, announce: Announce) -> None:
        announce(pace=QUICK._replace(heartbeat_s=0.0))
        assert next(told).worker == next(told).worker == next(told).worker

    def test_a_driver_that_hangs_holds_up_nothing_and_is_told(self, told: Told, announce: Announce) -> None:
        hangs, goes_on = threading.Event(), threading.Event()

        def read() -> Gpus:
            if hangs.is_set():
                goes_on.wait(30.0)
            return hgx(2)

        announce(read=read)
        until(told, lambda each: each.gpus == hgx(2))
        hangs.set()
        seen = until(told, lambda each: each.gpus != hgx(2))
        assert {each.problem for each in seen.gpus.gpus} == {"the driver does not answer"}
        hangs.clear()
        goes_on.set()
        until(told, lambda each: each.gpus == hgx(2))

    def test_a_driver_that_never_answers_does_not_hide_the_machine(
        self, told: Told, announce: Announce
    ) -> None:
        goes_on = threading.Event()

        def read() -> Gpus:
            goes_on.wait(30.0)
            return Gpus()

        announce(read=read, pace=QUICK._replace(first_s=0.01))
        assert next(told).gpus == Gpus(why="the driver does not answer")
        goes_on.set()

    def test_a_reading_that_fails_is_told_and_tried_again(self, told: Told, announce: Announce) -> None:
        goes_on = threading.Event()
        answers = iter([ValueError("odd")])

        def read() -> Gpus:
            for error in answers:
                raise error
            goes_on.wait(30.0)
            return hgx(1)

        announce(read=read, pace=QUICK._replace(hung_s=1_000.0))
        until(told, lambda each: each.gpus.why == "they cannot be read: ValueError: odd")
        goes_on.set()
        until(told, lambda each: each.gpus == hgx(1))

    def test_a_server_that_is_away_is_told_when_it_is_back(
        self, told: Told, announce: Announce, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused = threading.Event()

        def away(*_arguments: Any, **_options: Any) -> None:
            refused.set()
            raise RedisConnectionError("away")

        with monkeypatch.context() as patched:
            patched.setattr(REPORTS, "publish", away)
            announce()
            assert refused.wait(10.0)
        assert next(told).worker == "w@one"

    def test_machines_measure_each_other(self, redis_client: Redis, told: Told, announce: Announce) -> None:
        pace = QUICK._replace(heartbeat_s=0.0)
        announce(report("one"), address="127.0.0.1", pace=pace)
        announce(report("two"), pace=pace)
        seen = until(told, lambda each: bool(each.round_trips))
        assert (seen.host, list(seen.round_trips)) == ("two", ["one"])
        assert all(0 < seconds < 10 for seconds in seen.round_trips.values())
        assert {each.address.partition(":")[0] for each in REPORTS.all(redis_client, keys=KEYS)} == {
            "127.0.0.1",
            "",
        }

    def test_an_address_that_cannot_be_used_is_told_and_costs_only_the_echoes(
        self, told: Told, announce: Announce, capsys: pytest.CaptureFixture[str]
    ) -> None:
        announce(address="0.0.0.0")
        assert next(told).address == ""
        assert "MOSAIC_MACHINE_ADDRESS='0.0.0.0' is no address of this machine" in "".join(
            capsys.readouterr()
        )


def test_the_class_is_that_of_what_the_worker_hosts() -> None:
    class Hosting:
        gpu_class = "h100"

    assert hosted_class([object, Hosting]) == "h100"
    assert hosted_class([object]) == "cpu"


def test_this_machine_can_be_read() -> None:
    found = GpuReader()()
    assert bool(found.gpus) != bool(found.why)


def test_a_worker_announces_its_machine_and_takes_it_out_when_it_ends(
    workers: Workers, told: Told, redis_client: Redis
) -> None:
    env = {"MOSAIC_MACHINE_ADDRESS": "127.0.0.1"}
    worker = workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="prefork", env=env)
    seen = until(told, lambda each: each.round_trip_s is not None)
    assert (seen.worker, seen.queues, seen.gpu_class) == (worker.name, ("mosaic.cpu",), "cpu")
    assert seen.address.startswith("127.0.0.1:")
    assert seen.resources.cpus > 0
    assert bool(seen.gpus.gpus) != bool(seen.gpus.why)
    worker.wait_ready().signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert REPORTS.all(redis_client, keys=KEYS) == []
    assert "machine." not in worker.log


# -- mosaic infra ------------------------------------------------------------------------------------------------


@pytest.fixture
def published(redis_client: Redis, mosaic_process: Settings) -> None:
    keys = Keys(mosaic_process.namespace)
    for each, _ in fleet():
        REPORTS.publish(redis_client, each, keys=keys, expiry_s=60.0)
    publish(redis_client, engine("gpu1/w"), keys=keys, expiry_s=60.0)


def mosaic(*words: str) -> Any:
    return CliRunner().invoke(application, words, catch_exceptions=False)


def test_nothing_is_there_before_a_worker_is(mosaic_process: Settings) -> None:
    for option in ((), ("--draw",)):
        assert "start one with: mosaic worker" in mosaic("infra", *option).stdout


@pytest.mark.usefixtures("published")
class TestInfra:
    def test_machines_and_gpus_are_shown_in_tables(self) -> None:
        lines = [line.split() for line in mosaic("infra").stdout.splitlines()]
        assert lines[0][:3] == ["MACHINE", "WORKERS", "CPUS"]
        row = next(line for line in lines if line[0] == "gpu1")
        assert row[1:7] == ["1", "8", "1.5", "64.0", "GiB", "32.0"]
        assert row[-3:] == ["8", "h100", "llama-3.1-8b"]
        assert ["l4s", "1", "l4", "22.0", "GiB", "2.0", "GiB", "GPU", "is", "lost"] in lines
        assert lines[-1] == ["no", "GPU", "on", "plain:", "no", "driver"]

    def test_json_has_all_of_it(self) -> None:
        found = json.loads(mosaic("infra", "--json").stdout)
        assert [each["host"] for each in found["machines"]] == ["gpu1", "gpu2", "l4s", "plain"]
        assert found["machines"][2]["gpus"][1]["problem"] == "GPU is lost"
        assert [each["model"] for each in found["engines"]] == ["llama-3.1-8b"]

    def test_it_is_drawn(self) -> None:
        drawn = mosaic("infra", "--draw").stdout
        assert "gpu1" in drawn
        assert "each to each: 18 NVLinks through a switch" in drawn

    def test_it_is_written_as_svg(self, tmp_path: Path) -> None:
        file = tmp_path / "fleet.svg"
        assert mosaic("infra", "--svg", str(file)).stdout == f"written: {file}\n"
        assert ElementTree.parse(file).getroot().tag.endswith("svg")

    def test_it_is_followed_line_by_line(self, redis_client: Redis) -> None:
        words = [*COMMAND, "infra", "--follow", "--json"]
        following = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert following.stdout is not None
        lines = map(json.loads, following.stdout)
        assert len(next(lines)["machines"]) == 4
        REPORTS.withdraw(redis_client, report("l4s"))
        assert len(next(found for found in lines if len(found["machines"]) < 4)["machines"]) == 3
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=30)
        assert following.returncode == ExitCode.INTERRUPTED

    @pytest.mark.parametrize("more", ["--json", "--draw", "--follow"])
    def test_a_file_is_written_once_and_alone(self, more: str, tmp_path: Path) -> None:
        assert mosaic("infra", "--svg", str(tmp_path / "x.svg"), more).exit_code == ExitCode.USAGE

    def test_a_drawing_is_no_json(self) -> None:
        assert mosaic("infra", "--draw", "--json").exit_code == ExitCode.USAGE


def test_a_fleet_that_shrinks_to_nothing_returns(redis_client: Redis) -> None:
    for each, _ in fleet():
        REPORTS.publish(redis_client, each, keys=KEYS)
    assert len(machines(REPORTS.aged(redis_client, keys=KEYS))) == 4
    for each, _ in fleet():
        REPORTS.withdraw(redis_client, each, keys=KEYS)
    assert machines(REPORTS.aged(redis_client, keys=KEYS)) == []
    back = msgspec.structs.replace(report("gpu1"), holder="gpu1/again")
    REPORTS.publish(redis_client, back, keys=KEYS)
    assert [each.host for each in machines(REPORTS.aged(redis_client, keys=KEYS))] == ["gpu1"]
