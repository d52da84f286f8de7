"""The models that a GPU worker hosts: started before it takes its first message, reported each second, ended with it.

How many calls such a worker runs at once follows its engines: what they have no memory for stays in the queue, where
other workers see it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import TimeoutError as NotYet
from typing import Any, ClassVar

import msgspec
import structlog
from celery import Celery, bootsteps
from celery.worker import state as worker_state
from redis.exceptions import RedisError

from mosaic_queues.errors import ConfigurationError, MosaicError
from mosaic_routing.inventory import EngineReport, conflict, engines, publish, withdraw
from mosaic_routing.queues import hosting_queues
from mosaic_tasks.engines.protocol import EngineLoad
from mosaic_tasks.engines.registry import host
from mosaic_tasks.engines.vllm.spec import ModelSpec
from mosaic_tasks.engines.vllm.supervisor import Supervisor
from mosaic_tasks.execution.bootsteps import MosaicStep
from mosaic_tasks.execution.process import Process, process_for

log = structlog.get_logger(__name__)

REPORT_S = 1.0
LOOK_S = 0.2
"""While engines start, the worker looks so often whether it is to end."""
GAVE_UP = 1
"""Exit code of a worker whose engine is not started again."""


class HostedModel:
    """One engine of this worker.

    Attributes:
        queues: what a worker that hosts it consumes.
    """

    def __init__(self, process: Process, spec: ModelSpec, *, gpu_class: str) -> None:
        self._process, self.spec, self._class = process, spec, gpu_class
        self.queues = tuple(hosting_queues(gpu_class, spec.alias))
        self.supervisor = Supervisor(spec, on_give_up=_end_worker)
        self._fingerprint = fingerprint(spec)

    def report(self) -> EngineReport:
        """What the engine does at the moment."""
        return EngineReport(
            holder=self._process.holder,
            queues=self.queues,
            model=self.spec.alias,
            fingerprint=self._fingerprint,
            gpu_class=self._class,
            at_ms=int(time.time() * 1000),
            **msgspec.structs.asdict(self.supervisor.load()),
        )

    def enter(self) -> None:
        """Says that this worker serves the model's queues.

        Raises:
            ConfigurationError: another worker serves one of them with another model.
        """
        self.publish()
        others = [report for report in engines(self._process.client) if report.holder != self._process.holder]
        for queue in self.queues:
            if other := conflict(others, queue, self._fingerprint):
                self.leave()
                raise ConfigurationError(
                    f"the worker {other} serves the queue {queue!r} with another model than "
                    f"{self.spec.model!r}; calls would be answered by either: give one of them another alias"
                )

    def publish(self) -> None:
        """Renews what the inventory says."""
        publish(self._process.client, self.report())

    def leave(self) -> None:
        """Takes the engine out of the inventory."""
        withdraw(self._process.client, self.report())


class ModelsStep(bootsteps.StartStopStep):  # type: ignore[misc, unused-ignore]
    """Starts the engines of a worker before it consumes, and ends them after it has drained."""

    requires = (MosaicStep,)
    specs: ClassVar[Sequence[ModelSpec]] = ()
    gpu_class: ClassVar[str] = "cpu"

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._models: list[HostedModel] = []

    def start(self, parent: Any) -> None:
        """Returns when every engine has given a token; ends the worker where one cannot."""
        process, loop = process_for(parent.app), parent.pool.loop
        try:
            for spec in self.specs:
                model = HostedModel(process, spec, gpu_class=self.gpu_class)
                model.enter()
                self._models.append(model)
                _await(model.supervisor.start(_progress(spec.alias)), loop)
                _await(_host(model.supervisor, spec.alias), loop)
        except MosaicError as error:
            log.error("engine.refused", what="the worker does not start", error=str(error))
            self.stop(parent)
            raise SystemExit(GAVE_UP) from None
        loads = asyncio.run_coroutine_threadsafe(_report(self._models, parent.pool.slots), loop)
        loads.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def stop(self, _parent: Any) -> None:
        """Nobody shall count on these engines any more; the pool closes them once nothing runs on them."""
        models, self._models = self._models, []
        for model in models:
            try:
                model.leave()
            except RedisError as error:
                log.info("engine.leaving", what="its report expires by itself", error=str(error))

    terminate = stop


def host_models(app: Celery, specs: Sequence[ModelSpec], *, gpu_class: str) -> None:
    """Has the workers of an app host these models."""
    named = {"specs": tuple(specs), "gpu_class": gpu_class}
    app.steps["worker"].add(type("HostedModels", (ModelsStep,), named))


def fingerprint(spec: ModelSpec) -> str:
    """The same wherever the same model is hosted in a way that answers the same."""
    said = spec.model_dump(mode="json", exclude={"gpus", "memory_gb", "kv_memory_gb", "max_running"})
    folder = spec.folder
    if folder is not None:
        said["model"] = [
            (file.name, file.stat().st_size) for file in sorted(folder.glob("*")) if file.is_file()
        ]
    said["adapters"] = sorted(spec.adapters)
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:16]


def room(loads: Sequence[EngineLoad], *, most: int) -> int:
    """How many calls a worker may have at once: what its engines hold, and what they can hold beside."""
    return min(most, sum(load.running + load.waiting + load.slots for load in loads))


async def _host(supervisor: Supervisor, alias: str) -> None:
    host(supervisor, alias)


async def _report(models: Sequence[HostedModel], slots: Any) -> None:
    """Tells the inventory and the pool, each second, what the engines do."""
    most = slots.limit
    while True:
        slots.limit = room([model.supervisor.load() for model in models], most=most)
        for model in models:
            try:
                await asyncio.to_thread(model.publish)
            except RedisError as error:
                log.info("engine.report", what="the next report goes out in a second", error=str(error))
        await asyncio.sleep(REPORT_S)


def _await(coroutine: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Runs a coroutine on the pool's loop, unless the worker is to end."""
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    while True:
        try:
            future.result(LOOK_S)
            return
        except NotYet:
            if future.done():
                raise
            _raise_if_ended(future)


def _raise_if_ended(future: Any) -> None:
    for wish in (worker_state.should_stop, worker_state.should_terminate):
        if wish is not None and wish is not False:
            future.cancel()
            raise SystemExit(0)


def _progress(alias: str) -> Any:
    return lambda line: log.info("engine.starting", what=line, model=alias)


def _end_worker(reason: str) -> None:
    log.critical("engine.given_up", what="the worker ends", reason=reason)
    worker_state.should_stop = GAVE_UP
