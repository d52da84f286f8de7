"""The pool: hands Celery's requests to the loop or to threads, and ends them in the thread of Celery's event loop.

Three kinds of threads: the *hub's*, in which Celery receives messages and all callbacks of requests are made; the
*loop's*, which runs coroutines and never waits for anything else; *threads*, for what blocks. Work goes from the hub to
the loop through a queue with one wake-up for all that gathered, and comes back through the `Bridge` likewise.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol

import structlog
from billiard.einfo import ExceptionInfo
from celery import bootsteps
from celery.concurrency.base import BasePool
from celery.utils.nodenames import gethostname
from celery.worker import state as worker_state

from mosaic_queues.intake import LATE_S, Intake, install_intake
from mosaic_tasks.pool.bridge import Bridge
from mosaic_tasks.pool.jobs import Job
from mosaic_tasks.pool.looping import LoopThread
from mosaic_tasks.pool.slots import Slots
from mosaic_tasks.pool.tracing import Tracer, runs_on_loop

log = structlog.get_logger(__name__)

SYNC_THREADS = 16
"""Tasks at once that are no coroutines."""
RECORD_THREADS = 8
"""For what blocks around coroutines: results, links."""
GRACE_S = 5.0
"""A cancelled coroutine that has not ended after so long is forgotten."""
END_S = 30.0
"""The loop may take so long to end what runs on it besides tasks, such as engines."""
LOOK_S = 0.2
"""A shutdown looks so often whether it is to be a cold one."""


class Hosted(Protocol):
    """What else runs on the pool's loop and ends with the worker."""

    def drain(self, timeout_s: float | None = None) -> object:
        """Warm shutdown: returns when all that runs is over and recorded; called in a thread of its own."""

    def abandon(self) -> None:
        """Cold shutdown: cancels what runs and records nothing of it."""


class TaskPool(BasePool):  # type: ignore[misc, unused-ignore]
    """Runs coroutine tasks on one event loop, and other tasks in threads.

    Args:
        limit: tasks at once, Celery's `--concurrency`.

    Attributes:
        slots: what runs, and what may; shared with whatever else runs on the loop.
        hosted: what else is to end with the worker.
    """

    signal_safe = False
    body_can_be_buffer = True

    def __init__(self, limit: int | None = None, *args: Any, **options: Any) -> None:
        self._bridge = Bridge()
        self.slots = Slots(limit or 1, on_free=self._on_free)
        super().__init__(limit or 1, *args, **options)
        self.hosted: Hosted | None = None
        _app, self._hostname = self.options.get("initargs") or (None, gethostname())
        self._jobs: set[Job] = set()
        self._waiting: deque[Job] = deque()
        self._tracers: dict[str, tuple[Any, Tracer | None]] = {}
        self._loop = LoopThread()
        self._sync = ThreadPoolExecutor(SYNC_THREADS, "mosaic-pool-task")
        self._recording = ThreadPoolExecutor(RECORD_THREADS, "mosaic-pool-record")
        self._caller: threading.Thread | None = None
        self._intake: Intake | None = None
        self._hub: Any = None
        self._look: Any = None
        self._is_draining = self._is_stopped = False
        self.app.steps["consumer"].add(JoinConsumer)

    @property
    def limit(self) -> int:
        """Tasks at once."""
        return self.slots.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self.slots.limit = limit

    @property
    def num_processes(self) -> int:
        """What Celery bounds its prefetch by."""
        return self.slots.limit

    @property
    def loop(self) -> Any:
        """The asyncio loop, once the pool has started."""
        return self._loop.loop

    def at_end(self, last: Callable[[], Awaitable[object]]) -> None:
        """Has a coroutine function awaited on the loop before that ends, when nothing else runs there any more."""
        self._loop.at_end.append(last)

    def call_in_hub(self, function: Callable[[], object]) -> None:
        """Has a function called in the thread that ends requests and acknowledges messages, within `LATE_S`; from any
        thread."""
        self._bridge.leave(function)
        if self._is_awaited:
            self._bridge.wake()

    # -- Celery's side: in the thread of the hub -----------------------------------------------------------------------

    def on_start(self) -> None:
        """Starts the loop."""
        self._loop.start()
        if self.options.get("threads"):  # no hub to be called in
            self._caller = threading.Thread(target=self._call, name="mosaic-pool-calls", daemon=True)
            self._caller.start()

    def register_with_event_loop(self, hub: Any) -> None:
        """Has the hub make the calls; again after each loss of the broker."""
        hub.add_reader(self._bridge.fileno(), self._on_woken)

    def join_consumer(self, consumer: Any) -> None:
        """Has a consumer take what there are free slots for; again after each loss of the broker."""
        if consumer.hub is None:
            return
        # Requests end in the thread of the hub, so nothing is to be put off to its next turn.
        consumer.call_soon_ack = _call_now
        consumer.controller.wait_for_soft_shutdown = self._drain_softly
        self._hub = consumer.hub
        self._stop_looking()
        self._hub.on_tick.discard(self._on_tick)
        self._intake = install_intake(
            consumer.task_consumer.channel,
            self._free,
            ahead=lambda: self.slots.ahead,
            wake=self._bridge.wake,
        )
        if self._intake is not None:
            self._hub.on_tick.add(self._on_tick)
        self._bridge.wake()  # for what was left since the broker was lost, and with it who was to look

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        timeout_callback: Any = None,
        **_options: Any,
    ) -> Job:
        """Runs a request, at once or when a slot is free."""
        job = Job(
            args,
            trace=partial(target, *args, **kwargs or {}),
            accept=accept_callback,
            report=callback,
            time_out=timeout_callback,
            limits=self._limits(args[0], args[2]),
            pid=os.getpid(),
            stop=self._stop_job,
        )
        if not self._waiting and self.slots.take_free():
            self._begin(job)
        else:
            self._waiting.append(job)
            self._bridge.wake()  # a slot may have become free meanwhile
        return job

    def terminate_job(self, _pid: int, _signal: int | None = None) -> None:
        """Each job has the same process; `Job.terminate` follows. Ends first what is over by now."""
        if self._caller is None:
            self._pump()

    def grow(self, n: int = 1) -> None:
        """Celery's `pool_grow`; by a negative number it shrinks."""
        self.slots.limit = max(self.slots.limit + n, 1)

    def shrink(self, n: int = 1) -> None:
        """Celery's `pool_shrink`: what runs goes on, and one slot is left."""
        self.grow(-n)

    def flush(self) -> None:
        """The broker was lost: what has not begun comes again."""
        self._waiting.clear()

    def on_stop(self) -> None:
        """Warm shutdown: all that runs ends and is acknowledged; or a cold one, when that was asked for."""
        if self._is_stopped:
            return
        if not _is_cold():
            self._drain(None)
        if self._is_stopped:  # a signal's handler made it a cold one meanwhile
            return
        if _is_cold():
            self._abandon()
        else:
            self._close()

    def on_terminate(self) -> None:
        """Cold shutdown: what runs is cancelled, and its messages go back to their queues."""
        if not self._is_stopped:
            self._abandon()

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        used = {"running": self.slots.used, "free": self.slots.free, "waiting": len(self._waiting)}
        return {**info, "max-concurrency": self.slots.limit, "processes": [os.getpid()], **used}

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def _free(self) -> int:
        return 0 if self._waiting or self._is_draining else self.slots.room

    def _limits(self, name: str, headers: Mapping[str, Any]) -> tuple[float | None, float | None]:
        """Soft and hard limit in seconds: of the message, the task as it is now, or the worker."""
        task, (hard_s, soft_s) = self.app.tasks[name], headers.get("timelimit") or (None, None)
        return (
            soft_s or task.soft_time_limit or self.options.get("soft_timeout"),
            hard_s or task.time_limit or self.options.get("timeout"),
        )

    def _begin(self, job: Job) -> None:
        job.has_slot = True
        self._jobs.add(job)
        tracer = self._tracer(job.name)
        if tracer is None:
            self._sync.submit(self._run_in_thread, job)
            return
        job.accept(job.pid, time.monotonic())
        self._loop.submit(partial(self._start_on_loop, job, tracer))

    def _begin_waiting(self) -> None:
        while self._waiting and self.slots.take_free():
            job = self._waiting.popleft()
            if job.is_revoked:
                self.slots.give()
            else:
                self._begin(job)

    def _tracer(self, name: str) -> Tracer | None:
        """What runs the coroutines of a task; None for one that runs in a thread."""
        task = self.app.tasks[name]
        known = self._tracers.get(name)
        if known is None or known[0] is not task:
            on_loop = runs_on_loop(task)
            tracer = Tracer(task, threads=self._recording, hostname=self._hostname) if on_loop else None
            known = self._tracers[name] = task, tracer
        return known[1]

    def _run_in_thread(self, job: Job) -> None:
        """Runs Celery's own tracer, as its threads pool does."""
        self._bridge.call(partial(job.accept, job.pid, time.monotonic()))
        try:
            reported = job.trace()
        except BaseException:  # noqa: BLE001  the request makes something of it, in the hub's thread
            reported = 1, ExceptionInfo(), None
        self._bridge.call(partial(self._end, job, reported))

    def _end(self, job: Job, reported: Any) -> None:
        self._jobs.discard(job)
        self._give_slot(job)
        if not job.is_over:
            job.report(reported)

    def _give_slot(self, job: Job) -> None:
        if job.has_slot:
            job.has_slot = False
            self.slots.give()

    def _stop_job(self, job: Job) -> None:
        if job.has_slot and not job.is_over:
            job.is_over = True
            self._loop.submit(partial(self._cancel, job))

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _start_on_loop(self, job: Job, tracer: Tracer) -> None:
        job.task = self.loop.create_task(self._run_on_loop(job, tracer))

    async def _run_on_loop(self, job: Job, tracer: Tracer) -> None:
        soft_s, hard_s = job.limits
        timers = [self.loop.call_later(soft_s, self._exceed_soft, job, soft_s)] if soft_s else []
        timers += [self.loop.call_later(hard_s, self._exceed_hard, job, hard_s)] if hard_s else []
        try:
            reported = await tracer.run(job)
        finally:
            for timer in timers:
                timer.cancel()
        self._bridge.call(partial(self._end, job, reported))

    def _exceed_soft(self, job: Job, limit_s: float) -> None:
        if job.interrupt():
            job.exceeded_soft_limit = True
            self._bridge.call(partial(job.time_out, True, limit_s))

    def _exceed_hard(self, job: Job, limit_s: float) -> None:
        if not job.is_over and job.interrupt():
            job.is_over = True
            self._bridge.call(partial(job.time_out, False, limit_s))
            self.loop.call_later(GRACE_S, self._forget, job)

    def _cancel(self, job: Job) -> None:
        if job.interrupt():
            self.loop.call_later(GRACE_S, self._forget, job)
        elif job.task is None:  # in a thread
            log.warning(
                "pool.unstoppable", what="a task in a thread cannot be stopped", task=job.id, name=job.name
            )

    def _forget(self, job: Job) -> None:
        if job.task is not None and not job.task.done():
            what = f"a coroutine did not end {GRACE_S:g} s after it was cancelled, and is forgotten"
            log.warning("pool.forgotten", what=what, task=job.id, name=job.name)
            job.forget()
            self._bridge.call(partial(self._give_slot, job))

    # -- the calls of other threads ------------------------------------------------------------------------------------

    @property
    def _is_awaited(self) -> bool:
        """Whether the hub's thread is to be woken for a call or a free slot: somebody waits for it, or it would not
        look soon."""
        waits = self._intake is None or self._intake.awaits_room or bool(self._waiting)
        return waits or self._look is None or self._is_draining

    def _on_free(self) -> None:
        if self._is_awaited:
            self._bridge.wake()

    def _on_woken(self) -> None:
        self._bridge.awake()
        self._pump()

    def _on_tick(self) -> None:
        """Before the hub waits. For how long, and whether for messages, it may have decided before this."""
        looked = self._look
        self._pump()
        intake = self._intake
        if self._look is not looked or (intake is not None and intake.awaits_room and intake.can_consume()):
            self._bridge.wake()

    def _pump(self) -> None:
        """Makes the calls, begins what waits for slots, notes what is due, and takes more messages."""
        self._bridge.run()
        self._begin_waiting()
        if self._intake is not None and not self._is_stopped:
            self._intake.turn()
            if self._look is None and self._intake.is_owing and not self._is_draining:
                self._look = self._hub.call_later(LATE_S, self._on_look)

    def _on_look(self) -> None:
        """Acknowledgements do not wake the hub: it looks for them, while there are any to come."""
        self._look = None
        self._pump()

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _call(self) -> None:
        """Makes the calls where there is no hub."""
        while not self._is_stopped:
            self._bridge.wait(LOOK_S)
            self._pump_safely()

    def _pump_safely(self) -> None:
        try:
            self._pump()
        except Exception:  # a request's callback failed; the others are to be made
            log.exception("pool.callback", what="a callback of a request failed")

    # -- shutting down -------------------------------------------------------------------------------------------------

    def _drain(self, timeout_s: float | None) -> None:
        """Waits until all that runs is over, or the time is, or the shutdown becomes a cold one."""
        self._is_draining = True
        self.flush()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        rest = self._recording.submit(self._tell_hosted, "drain", timeout_s) if self.hosted else None
        while self._jobs or (rest is not None and not rest.done()):
            self._bridge.wait(LOOK_S)
            if _is_cold() or self._is_stopped or (until is not None and time.monotonic() > until):
                return
            self._pump_safely()
        self._settle()

    def _settle(self) -> None:
        """Ends what is over, and acknowledges all of it."""
        self._pump_safely()
        if self._intake is not None and not self._is_stopped:
            with suppress(*self._intake.channel.connection_errors):  # it comes again
                self._intake.note()

    def _tell_hosted(self, what: Literal["drain", "abandon"], *arguments: Any) -> None:
        try:
            if self.hosted is not None:
                getattr(self.hosted, what)(*arguments)
        except Exception:
            log.exception(
                "pool.hosted", what=f"what else runs on the loop failed to {what}; the worker ends anyway"
            )

    def _drain_softly(self) -> None:
        """A cold shutdown's `worker_soft_shutdown_timeout`; over as soon as nothing runs."""
        timeout_s = float(self.app.conf.worker_soft_shutdown_timeout or 0)
        if timeout_s > 0:
            log.warning(
                "pool.soft_shutdown", what=f"waits up to {timeout_s:g} s for what runs", jobs=len(self._jobs)
            )
            self._drain(timeout_s)

    def _abandon(self) -> None:
        """Ends what is over, and cancels the rest without a word to its requests."""
        self.flush()
        self._settle()
        for job in list(self._jobs):
            self._stop_job(job)
        self._tell_hosted("abandon")
        until = time.monotonic() + GRACE_S
        while any(job.task is not None for job in self._jobs) and time.monotonic() < until:
            self._bridge.wait(LOOK_S)
            self._pump_safely()
        self._close()

    def _close(self) -> None:
        self._is_stopped = True
        self._stop_looking()
        self._loop.stop(END_S)
        for threads in (self._sync, self._recording):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._caller is not None:
            self._caller.join()
        self._bridge.close()


class JoinConsumer(bootsteps.StartStopStep):  # type: ignore[misc, unused-ignore]
    """Tells the pool of a worker which consumer it works for."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        """Only in workers with this pool."""
        return isinstance(consumer.pool, TaskPool)

    def start(self, consumer: Any) -> None:
        """Whenever there is a new connection."""
        consumer.pool.join_consumer(consumer)


def _call_now(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    function(*args, **kwargs)


def _is_cold() -> bool:
    return worker_state.should_terminate is not None and worker_state.should_terminate is not False
