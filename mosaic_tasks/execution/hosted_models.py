"""The models that a GPU worker hosts: started before it takes its first message, reported each second, ended with it.

How many calls such a worker runs at once follows its engines: what they have no memory for stays in the queue, where
other workers see it.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import structlog
from celery import Celery, bootsteps
from celery.worker import state as worker_state
from redis.exceptions import RedisError

from mosaic_queues.collector import end_loading
from mosaic_queues.errors import ConfigurationError, MosaicError
from mosaic_routing.inventory import EngineReport, conflict, engines, publish, withdraw
from mosaic_routing.queues import direct_queue, hosting_queues
from mosaic_tasks.engines.hosted import HostedEngine, HostedSpec, hosted_engine
from mosaic_tasks.engines.protocol import EngineLoad
from mosaic_tasks.engines.registry import host
from mosaic_tasks.engines.simulated import SimulatedSpec
from mosaic_tasks.execution.bootsteps import MosaicStep
from mosaic_tasks.execution.machine import MachineStep
from mosaic_tasks.execution.placing.direct import DirectQueue
from mosaic_tasks.execution.process import Process, process_for

log = structlog.get_logger(__name__)

REPORT_S = 1.0
ROOM_S = 0.1
"""What an engine has no room for any more, or all when it died, stays in the queue after so long."""
LOOK_S = 0.2
"""While engines start, the worker looks so often whether it is to end."""
_PLACE = {"gpus", "tensor_parallel", "memory_gb", "kv_memory_gb", "max_running"}
"""Fields of a spec that say where the model is, and how much there is of it: one class needs more GPUs than another."""
SAMPLES, SAMPLE_BYTES = 64, 4096
"""So much of each file tells models apart."""
GAVE_UP = 1
"""Exit code of a worker whose engine is not started again."""


class HostedModel:
    """One engine of this worker.

    Attributes:
        queues: what a worker that hosts it consumes.
    """

    def __init__(self, process: Process, spec: HostedSpec, *, gpu_class: str) -> None:
        self._process, self.spec, self._class = process, spec, gpu_class
        self.queues = (*hosting_queues(gpu_class, spec.alias), direct_queue(process.facts.hostname))
        self.engine = hosted_engine(spec, on_give_up=_end_worker)
        self._fingerprint = fingerprint(spec)
        self._lock, self._is_gone = threading.Lock(), False

    @property
    def deployment(self) -> str:
        """Its name in the model pool."""
        return f"{self._class}/{self.spec.alias}"

    def report(self, load: EngineLoad) -> EngineReport:
        """What the inventory is told of the engine."""
        return EngineReport(
            holder=self._process.holder,
            queues=self.queues,
            model=self.spec.alias,
            fingerprint=self._fingerprint,
            gpu_class=self._class,
            at_ms=int(time.time() * 1000),
            engine=self.engine.name,
            state=self.engine.state,
            phase="" if self.engine.ready else self.engine.phase,
            **msgspec.structs.asdict(load),
        )

    def enter(self) -> None:
        """Says that this worker serves the model's queues.

        Raises:
            ConfigurationError: another worker serves one of them with another model.
        """
        self.publish(EngineLoad())
        others = [report for report in engines(self._process.client) if report.holder != self._process.holder]
        for queue in self.queues:
            if other := conflict(others, queue, self._fingerprint):
                raise ConfigurationError(
                    f"the worker {other} serves the queue {queue!r} with another model than "
                    f"this one, {self.spec.alias!r}; calls would be answered by either: give one of them another alias"
                )

    def publish(self, load: EngineLoad) -> None:
        """Renews what the inventory says, unless the engine has left it."""
        with self._lock:
            if not self._is_gone:
                publish(self._process.client, self.report(load))

    def leave(self) -> None:
        """Takes the engine out of the inventory, for good."""
        with self._lock:
            self._is_gone = True
            withdraw(self._process.client, self.report(EngineLoad()))


class ModelsStep(bootsteps.StartStopStep):  # type: ignore[misc, unused-ignore]
    """Starts the engines of a worker before it consumes, and ends them after it has drained."""

    requires = (MosaicStep, MachineStep)  # a machine is seen while its engines load
    specs: ClassVar[Sequence[HostedSpec]] = ()
    gpu_class: ClassVar[str] = "cpu"
    hosting: ClassVar[Sequence[str]] = ()
    """Queues of the models; `MosaicStep` refuses those of others."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._models: list[HostedModel] = []
        self._direct: DirectQueue | None = None
        parent.app.amqp.queues.select_add(direct_queue(parent.hostname))

    def start(self, parent: Any) -> None:
        """Returns when every engine has given a token; ends the worker where one cannot."""
        loop = parent.pool.loop
        self._direct = DirectQueue(process_for(parent.app))
        self._direct.enter()
        # Those that still start are told of too: nobody else may serve their queues with something else meanwhile.
        reports = asyncio.run_coroutine_threadsafe(
            _report(self._models, parent.pool.slots, self._direct), loop
        )
        reports.add_done_callback(_tell_end)
        try:
            for spec in self.specs:
                self._start_model(parent, spec)
        except BaseException:
            _stop_started(parent)
            raise
        end_loading()

    def _start_model(self, parent: Any, spec: HostedSpec) -> None:
        try:
            model = HostedModel(process_for(parent.app), spec, gpu_class=self.gpu_class)
            self._models.append(model)
            model.enter()
            _await(model.engine.start(_progress(spec.alias)), parent.pool.loop)
            _await(_host(model.engine, spec.alias), parent.pool.loop)
        except (MosaicError, RedisError, OSError) as error:
            log.error("engine.refused", what="the worker does not start", error=str(error))
            raise SystemExit(GAVE_UP) from None

    def stop(self, _parent: Any) -> None:
        """Nobody shall count on these engines any more; the pool closes them once nothing runs on them."""
        for model in self._models:
            try:
                model.leave()
            except RedisError as error:
                log.info("engine.leaving", what="its report expires by itself", error=str(error))
        if self._direct is not None:
            self._direct.leave()

    terminate = stop


def host_models(app: Celery, specs: Sequence[HostedSpec], *, gpu_class: str) -> None:
    """Has the workers of an app host these models."""
    queues = [queue for spec in specs for queue in hosting_queues(gpu_class, spec.alias)]
    named = {"specs": tuple(specs), "gpu_class": gpu_class, "hosting": tuple(queues)}
    app.steps["worker"].add(type("HostedModels", (ModelsStep,), named))


def fingerprint(spec: HostedSpec) -> str:
    """The same wherever the same model is hosted in a way that answers the same."""
    said = _answers_of(spec)
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:16]


def _answers_of(spec: HostedSpec) -> dict[str, Any]:
    """What decides on the answers: of a simulated GPU the recordings, and not its pace."""
    if isinstance(spec, SimulatedSpec):
        return {"simulated": _contents(spec.recordings.expanduser())}
    said = spec.model_dump(mode="json", exclude=_PLACE)
    if spec.folder is not None:
        said["model"] = _contents(spec.folder)
    said["adapters"] = {name: _contents(folder.expanduser()) for name, folder in spec.adapters.items()}
    return said


def _contents(path: Path) -> list[tuple[str, int, str]]:
    """Name, size and a sample of a file, or of each one in a folder: all of the weights would take minutes to read."""
    files = [path] if path.is_file() else [file for file in sorted(path.glob("*")) if file.is_file()]
    return [(file.name, file.stat().st_size, _sample(file)) for file in files]


def _sample(file: Path) -> str:
    """A hash of pieces from all over a file."""
    found, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as opened:
        for piece in range(SAMPLES):
            opened.seek(size * piece // SAMPLES)
            found.update(opened.read(SAMPLE_BYTES))
    return found.hexdigest()


def room(loads: Sequence[EngineLoad], *, most: int) -> int:
    """How many calls a worker may have at once: what its engines hold, and what they can hold beside."""
    return min(most, sum(load.running + load.waiting + load.slots for load in loads))


async def _host(engine: HostedEngine, alias: str) -> None:
    host(engine, alias)


async def _report(models: Sequence[HostedModel], slots: Any, direct: DirectQueue) -> None:
    """Tells the pool at once, and the inventory each second, what the engines do; takes calls that wait elsewhere."""
    most, reported_at = slots.limit, 0.0
    while True:
        loads = {model: model.engine.load() for model in models}  # here: they change on this loop
        slots.limit = room(list(loads.values()), most=most)
        if time.monotonic() - reported_at >= REPORT_S:
            reported_at = time.monotonic()
            await asyncio.to_thread(_publish, loads)
        if slots.free:
            await asyncio.to_thread(_take_waiting, models, direct, slots.free)
        await asyncio.sleep(ROOM_S)


def _take_waiting(models: Sequence[HostedModel], direct: DirectQueue, free: int) -> None:
    try:
        for model in models:
            if model.engine.ready:
                direct.take_waiting(model.deployment, most=free)
    except (MosaicError, RedisError, OSError) as error:
        log.info("direct.not_taken", what="what waits elsewhere is left there", error=str(error))


def _publish(loads: Mapping[HostedModel, EngineLoad]) -> None:
    try:
        for model, load in loads.items():
            model.publish(load)
    except RedisError as error:
        log.info("engine.report", what="the next report goes out in a second", error=str(error))


def _tell_end(reports: Future[None]) -> None:
    """Reports end with the loop only."""
    if not reports.cancelled() and (error := reports.exception()) is not None:
        log.error("engine.report_failed", what="the engines are not reported any more", exc_info=error)
        _end_worker(f"its engines cannot be reported: {type(error).__name__}: {error}")


def _await(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    """Runs a coroutine on the pool's loop, unless the worker is to end."""
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    while not future.done():
        wait([future], LOOK_S)
        for wish in (worker_state.should_stop, worker_state.should_terminate):
            if wish is not None and wish is not False:
                future.cancel()
                raise SystemExit(wish)
    future.result()


def _stop_started(worker: Any) -> None:
    """Ends what a worker has started so far; Celery does not, as long as that is not all of it."""
    for step in reversed(worker.steps[: worker.blueprint.started]):
        step.stop(worker)


def _progress(alias: str) -> Callable[[str], None]:
    return lambda line: log.info("engine.starting", what=line, model=alias)


def _end_worker(reason: str) -> None:
    log.critical("worker.given_up", what="the worker ends", reason=reason)
    worker_state.should_stop = GAVE_UP
