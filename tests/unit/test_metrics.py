"""What `mosaic metrics` tells of queues and groups, and what `mosaic probe` makes of reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer import BadParameter

from mosaic_queues.liveness import LiveProcess
from mosaic_queues.work import Work
from mosaic_routing.inventory import EngineReport, EngineState
from mosaic_tasks.cli.metrics import Figures, exposition, listening, queues_of, served, together
from mosaic_tasks.cli.probing import not_ready

HOSTING = ("mosaic.gpu.m", "mosaic.l4.m", "mosaic.direct.w@h")


def process(*queues: str, name: str = "h/1/a") -> LiveProcess:
    return LiveProcess(name=name, host="h", pid=1, started_ms=0, queues=queues)


def engine(state: EngineState = "ready", phase: str = "") -> EngineReport:
    return EngineReport(
        holder="h/1/a",
        queues=HOSTING,
        engine="vllm",
        model='a "model"',
        fingerprint="f",
        gpu_class="l4",
        at_ms=1500,
        state=state,
        phase=phase,
    )


@contextmanager
def answering(read: Callable[[], Figures]) -> Iterator[str]:
    with listening("127.0.0.1", 0, read) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


FIGURES = Figures({"q": Work(3, 2)}, {"a.b": Work(3, 2)}, {"q": 1}, [engine()])


def test_the_queues_of_a_group_are_its_own_and_those_of_its_workers_alone() -> None:
    shared = HOSTING[:2]
    others = [process(*HOSTING), process("mosaic.cpu", "mosaic.direct.x@h"), process("mosaic.gpu.m")]
    assert queues_of(shared, others) == [*HOSTING]


def test_the_work_of_a_group_is_that_of_all_its_queues() -> None:
    work = {"a": Work(1, 2), "b": Work(10, 20)}
    assert together({"one": ["a", "b"], "two": ["a"], "none": []}, work) == {
        "one": Work(11, 22),
        "two": Work(1, 2),
        "none": Work(0, 0),
    }
    assert served([process("a", "b"), process("a"), process()]) == {"a": 2, "b": 1}


def test_figures_can_be_read_by_prometheus() -> None:
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition(FIGURES))
        for sample in family.samples
    }
    assert samples["mosaic_queue_waiting", "q"] == 3
    assert samples["mosaic_queue_running", "q"] == 2
    assert samples["mosaic_group_work", "a.b"] == 5
    assert samples["mosaic_engine_reported_timestamp_seconds", 'a "model"', "l4", "h/1/a"] == 1.5


def test_a_page_that_is_none_is_not_found_and_a_server_that_is_away_is_told() -> None:
    def away() -> Figures:
        raise ConnectionError("no server")

    with answering(lambda: FIGURES) as root:
        for path in ("/", "/metrics/x", "/work", "/work/", "/work/none", "/work/a.b/c"):
            with pytest.raises(HTTPError, match="404"):
                urlopen(root + path)
        with urlopen(f"{root}/work/a.b?x=1") as answer:
            assert answer.read() == b'{"waiting":3,"running":2,"work":5}'
    with answering(away) as root, pytest.raises(HTTPError, match="503"):
        urlopen(f"{root}/metrics")


def test_an_address_that_cannot_be_had_is_told() -> None:
    with (
        answering(lambda: FIGURES) as root,
        pytest.raises(BadParameter, match=r"cannot listen on 127\.0\.0\.1:"),
    ):
        listening("127.0.0.1", int(root.rpartition(":")[2]), lambda: FIGURES)


@pytest.mark.parametrize(
    ("here", "reports", "reason"),
    [
        ([], [], "no worker here takes calls"),
        ([process("mosaic.cpu")], [], ""),
        ([process(*HOSTING)], [], "the model of the queue 'mosaic.gpu.m' has not reported yet"),
        ([process(*HOSTING)], [engine()], ""),
        ([process(*HOSTING)], [engine("loading", "reading weights")], "is loading: reading weights"),
        ([process("mosaic.cpu", name="h/2/b")], [engine("loading")], ""),
    ],
)
def test_a_worker_is_ready_once_all_of_its_models_are(
    here: list[LiveProcess], reports: list[EngineReport], reason: str
) -> None:
    found = not_ready(here, reports)
    assert reason in found
    assert bool(reason) == bool(found)
