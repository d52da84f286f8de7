"""The models of a GPU worker, with stand-ins for their engines: `tests/engine` hosts real ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from celery.worker import state as worker_state

from mosaic_queues.errors import EngineError
from mosaic_routing.inventory import EngineReport
from mosaic_tasks.engines.protocol import EngineLoad
from mosaic_tasks.engines.vllm.spec import ModelSpec
from mosaic_tasks.execution import hosted_models
from mosaic_tasks.execution.hosted_models import GAVE_UP, ModelsStep, fingerprint, room
from mosaic_tasks.pool.looping import LoopThread
from mosaic_tasks.pool.slots import Slots

WAIT_S = 10.0


class Engine:
    """In the place of a supervised engine; a test says what its start does."""

    on_start: ClassVar[Callable[[], Any]] = staticmethod(lambda: None)
    load_now: ClassVar[EngineLoad] = EngineLoad(slots=5)
    name, ready, state, phase = "vllm", False, "loading", "loading weights"

    def __init__(self, spec: ModelSpec, *, on_give_up: Callable[[str], None]) -> None:
        self.spec, self.on_give_up = spec, on_give_up

    async def start(self, _progress: Callable[[str], None]) -> None:
        await asyncio.sleep(0)
        if (more := self.on_start()) is not None:
            await more
        self.ready, self.state = True, "ready"

    def load(self) -> EngineLoad:
        asyncio.get_running_loop()  # what it is read from changes on the loop
        return self.load_now


class Direct:
    """In the place of the worker's own queue, to which nothing comes."""

    def __init__(self, _process: Any) -> None:
        pass

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def take_waiting(self, _deployment: str, *, most: int) -> int:
        return min(most, 0)


class Inventory:
    """In the place of the server."""

    def __init__(self) -> None:
        self.reports: dict[tuple[str, str], EngineReport] = {}
        self.states: list[tuple[str, str]] = []
        self.published = 0
        self.enough = threading.Event()

    def publish(self, _client: Any, report: EngineReport) -> None:
        self.reports[report.holder, report.model] = report
        self.states.append((report.state, report.phase))
        self.published += 1
        if self.published >= 5:
            self.enough.set()

    def withdraw(self, _client: Any, report: EngineReport) -> None:
        self.reports.pop((report.holder, report.model), None)

    def engines(self, _client: Any) -> list[EngineReport]:
        return list(self.reports.values())


@pytest.fixture
def inventory(monkeypatch: pytest.MonkeyPatch) -> Inventory:
    made = Inventory()
    for name in ("publish", "withdraw", "engines"):
        monkeypatch.setattr(hosted_models, name, getattr(made, name))
    process = SimpleNamespace(client=None, holder="here/1/a", facts=SimpleNamespace(hostname="w@here"))
    monkeypatch.setattr(hosted_models, "process_for", lambda _app: process)
    monkeypatch.setattr(hosted_models, "hosted_engine", Engine)
    monkeypatch.setattr(hosted_models, "DirectQueue", Direct)
    for pause in ("REPORT_S", "ROOM_S"):
        monkeypatch.setattr(hosted_models, pause, 0.01)
    for wish in ("should_stop", "should_terminate"):
        monkeypatch.setattr(worker_state, wish, None)
    return made


class Worker:
    """As much of Celery's worker as the step sees."""

    hostname = "w@here"

    def __init__(self, loop: asyncio.AbstractEventLoop, *models: ModelSpec) -> None:
        self.queues: list[str] = []
        self.app = SimpleNamespace(
            amqp=SimpleNamespace(queues=SimpleNamespace(select_add=self.queues.append))
        )
        self.pool = SimpleNamespace(loop=loop, slots=Slots(256))
        named = {"specs": models}
        self.step = type("Step", (ModelsStep,), named)(self)
        self.stopped: list[str] = []
        first = SimpleNamespace(stop=lambda _worker: self.stopped.append("first"))
        last = SimpleNamespace(stop=lambda _worker: self.stopped.append("last"))
        self.steps = [first, self.step, last]
        self.blueprint = SimpleNamespace(started=2)


@pytest.fixture
def loop(inventory: Inventory) -> Iterator[asyncio.AbstractEventLoop]:
    thread = LoopThread()
    thread.start()
    yield thread.loop
    thread.stop(WAIT_S)


def spec(alias: str = "tiny") -> ModelSpec:
    return ModelSpec(model="some/model", alias=alias)


class TestStart:
    def test_a_model_is_reported_before_and_after_it_has_started(
        self, loop: asyncio.AbstractEventLoop, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reported = staticmethod(lambda: asyncio.to_thread(inventory.enough.wait, WAIT_S))
        monkeypatch.setattr(Engine, "on_start", reported)
        worker = Worker(loop, spec(), spec("other"))
        worker.step.start(worker)
        assert inventory.enough.is_set()
        assert {model for _, model in inventory.reports} == {"tiny", "other"}
        assert inventory.states[0] == ("loading", "loading weights")
        worker.step.stop(worker)
        before = inventory.published
        inventory.enough.clear()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result(WAIT_S)
        assert (inventory.reports, inventory.published) == ({}, before)

    def test_one_that_cannot_start_ends_what_the_worker_has_started(
        self, loop: asyncio.AbstractEventLoop, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            raise EngineError("no such folder")

        monkeypatch.setattr(Engine, "on_start", staticmethod(fail))
        worker = Worker(loop, spec())
        with pytest.raises(SystemExit) as ended:
            worker.step.start(worker)
        assert (ended.value.code, worker.stopped, inventory.reports) == (GAVE_UP, ["first"], {})

    def test_another_model_on_its_queue_is_named(
        self, loop: asyncio.AbstractEventLoop, inventory: Inventory, capsys: pytest.CaptureFixture[str]
    ) -> None:
        queues = ("mosaic.gpu.tiny",)
        other = EngineReport(
            holder="there/2/b", queues=queues, model="tiny", fingerprint="x", gpu_class="l4", at_ms=1
        )
        inventory.reports["there/2/b", "tiny"] = other
        worker = Worker(loop, spec())
        with pytest.raises(SystemExit):
            worker.step.start(worker)
        assert list(inventory.reports.values()) == [other]
        said = capsys.readouterr()
        assert "the worker there/2/b serves the queue 'mosaic.gpu.tiny'" in said.out + said.err

    @pytest.mark.parametrize("wish", ["should_stop", "should_terminate"])
    def test_a_worker_that_is_told_to_end_waits_for_no_engine(
        self, loop: asyncio.AbstractEventLoop, wish: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cancelled = threading.Event()

        async def start() -> None:
            monkeypatch.setattr(worker_state, wish, 0)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        monkeypatch.setattr(Engine, "on_start", staticmethod(start))
        worker = Worker(loop, spec())
        with pytest.raises(SystemExit) as ended:
            worker.step.start(worker)
        assert (ended.value.code, worker.stopped) == (0, ["first"])
        assert cancelled.wait(WAIT_S)


class TestRunning:
    def test_the_slots_follow_the_engines(
        self, loop: asyncio.AbstractEventLoop, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = Worker(loop, spec())
        worker.step.start(worker)
        assert inventory.enough.wait(WAIT_S)
        assert worker.pool.slots.limit == 5

    def test_an_engine_that_is_given_up_ends_the_worker(
        self, loop: asyncio.AbstractEventLoop, inventory: Inventory
    ) -> None:
        hosted_models.HostedModel(
            SimpleNamespace(facts=SimpleNamespace(hostname="w@here")), spec(), gpu_class="cpu"
        ).engine.on_give_up("it died 4 times")
        assert worker_state.should_stop == GAVE_UP

    def test_an_engine_that_has_started_is_reported_as_ready(
        self, loop: asyncio.AbstractEventLoop, inventory: Inventory
    ) -> None:
        worker = Worker(loop, spec())
        worker.step.start(worker)
        assert inventory.enough.wait(WAIT_S)
        assert inventory.states[-1] == ("ready", "")

    def test_reports_that_fail_end_the_worker(
        self, loop: asyncio.AbstractEventLoop, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended = threading.Event()
        monkeypatch.setattr(hosted_models, "_end_worker", lambda reason: ended.set())
        monkeypatch.setattr(hosted_models, "publish", lambda *_: [][0])
        monkeypatch.setattr(hosted_models.HostedModel, "enter", lambda _model: None)
        worker = Worker(loop, spec())
        worker.step.start(worker)
        assert ended.wait(WAIT_S)


def test_room_is_what_the_engines_hold_and_can_hold() -> None:
    loads = [EngineLoad(running=3, waiting=2, slots=4), EngineLoad(slots=1)]
    assert room(loads, most=256) == 10
    assert room(loads, most=8) == 8
    assert room([EngineLoad()], most=8) == 0


class TestFingerprint:
    def model(self, folder: Path, weights: bytes = b"abc") -> ModelSpec:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(weights)
        return ModelSpec(model=str(folder), alias="tiny")

    def test_a_copy_elsewhere_is_the_same_model(self, tmp_path: Path) -> None:
        assert fingerprint(self.model(tmp_path / "a")) == fingerprint(self.model(tmp_path / "b"))

    @pytest.mark.parametrize("weights", [b"abcd", b"abd"])
    def test_other_weights_are_another_model(self, tmp_path: Path, weights: bytes) -> None:
        assert fingerprint(self.model(tmp_path / "a")) != fingerprint(self.model(tmp_path / "b", weights))

    def test_weights_of_the_same_size_that_differ_somewhere_are_another_model(self, tmp_path: Path) -> None:
        zeros = bytes(1 << 20)
        tuned = zeros[:600_000] + bytes([1]) * 20_000 + zeros[620_000:]
        one, other = self.model(tmp_path / "a", zeros), self.model(tmp_path / "b", tuned)
        assert fingerprint(one) != fingerprint(other)

    def test_another_adapter_of_the_same_name_makes_another_model(self, tmp_path: Path) -> None:
        found = set()
        for weights in (b"abc", b"abd"):
            adapter = self.model(tmp_path / weights.decode(), weights).folder
            found.add(fingerprint(ModelSpec(model="a/b", adapters={"tone": adapter})))
        assert len(found) == 2

    @pytest.mark.parametrize(
        ("changed", "same"),
        [
            ({"max_running": 3}, True),
            ({"kv_memory_gb": 2}, True),
            ({"tensor_parallel": 2, "gpus": (0, 1)}, True),
            ({"max_length": 9}, False),
        ],
    )
    def test_memory_says_nothing_about_answers(self, changed: dict[str, Any], same: bool) -> None:
        one, other = ModelSpec(model="a/b"), ModelSpec(model="a/b", **changed)
        assert (fingerprint(one) == fingerprint(other)) is same
