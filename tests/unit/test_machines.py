"""What is news of a machine, and how reports make up machines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from made_machines import GIB, engine, fleet, gpu, hgx, report

from mosaic_routing.gpus import Gpus
from mosaic_routing.machines import MachineReport, Way, is_news, machines, measured_ways, unanswered, way
from mosaic_routing.reports import Aged
from mosaic_routing.resources import Resources

WITH_GPU = Gpus(gpus=(gpu(),))


def changed(**facts: Any) -> MachineReport:
    return report(gpus=Gpus(gpus=(gpu(**facts),)))


@pytest.mark.parametrize(
    "told",
    [
        changed(free_bytes=20 * GIB),
        changed(free_bytes=None),
        changed(problem="GPU is lost"),
        changed(is_sliced=True),
        report(gpus=Gpus(why="NVML does not answer")),
        report(gpus=hgx(2)),
        report(gpus=WITH_GPU, address="127.0.0.1:7"),
        report(gpus=WITH_GPU, resources=Resources(cpus=8, memory_bytes=64 * GIB, available_bytes=3 * GIB)),
    ],
)
def test_a_change_that_others_go_by_is_news(told: MachineReport) -> None:
    assert is_news(told, report(gpus=WITH_GPU))
    assert is_news(told, None)


@pytest.mark.parametrize(
    "told",
    [
        changed(),
        changed(free_bytes=60 * GIB + 1000),
        changed(use=0.9, temperature_c=80, power_w=600),
        report(gpus=WITH_GPU, round_trip_s=0.1, round_trips={"two": 0.1}),
        report(
            gpus=WITH_GPU,
            resources=Resources(cpus=8, load=9, memory_bytes=64 * GIB, available_bytes=32 * GIB + 1000),
        ),
    ],
)
def test_what_changes_all_the_time_waits_for_the_heartbeat(told: MachineReport) -> None:
    assert not is_news(told, report(gpus=WITH_GPU))


def test_gpus_of_a_driver_that_is_silent_are_there_and_have_a_problem() -> None:
    left = unanswered(hgx(2))
    assert [(each.gpu_class, each.free_bytes, each.problem) for each in left.gpus] == [
        ("h100", None, "the driver does not answer")
    ] * 2
    assert (left.links, left.why) == (hgx(2).links, "")
    assert unanswered(Gpus()).why == "the driver does not answer"


def test_a_report_outlives_its_way_through_the_server() -> None:
    for each, _ in fleet():
        assert msgspec.json.decode(msgspec.json.encode(each), type=MachineReport) == each


def test_workers_of_one_host_are_one_machine_and_the_youngest_report_counts() -> None:
    old = report(worker="a", gpus=hgx(8), round_trip_s=0.5, round_trips={"two": 0.1, "three": 0.2})
    young = report(worker="b", gpus=hgx(4), round_trip_s=0.7, round_trips={"two": 0.3})
    [found] = machines([Aged(young, 0.1), Aged(old, 3.0)])
    assert [each.worker for each in found.workers] == ["a@one", "b@one"]
    assert (len(found.gpus), found.age_s, found.round_trip_s) == (4, 0.1, 0.5)
    assert found.round_trips == {"two": 0.3, "three": 0.2}


def test_a_way_is_measured_or_goes_through_the_server() -> None:
    first, second, third, last = machines(fleet())
    assert way(first, second) == Way("gpu1", "gpu2", 0.00004, is_measured=True)
    assert way(second, first) == Way("gpu2", "gpu1", 0.00004, is_measured=True)
    assert way(first, third) == Way("gpu1", "l4s", pytest.approx(0.0152), is_measured=False)
    assert way(first, first) == Way("gpu1", "gpu1", 0.0, is_measured=True)
    assert way(first, last) is None
    assert measured_ways([first, second, third, last]) == [Way("gpu1", "gpu2", 0.00004, is_measured=True)]


def test_engine_reports_name_the_worker_of_a_machine() -> None:
    [found] = machines([Aged(report(), 0.0)])
    assert engine("one/w").holder == found.workers[0].holder
