"""Runs the calls of many messages together on one event loop: what a worker with the async pool does.

Three kinds of threads share the work. The *clerk* alone talks to the ledger: it claims what slots are free for, records
what ended, and publishes what that made ready; whatever gathered while it was busy goes into its next transition, so
that the cost of a transition is shared by as many calls as there are at that time. The *loop* runs the calls. A few
*threads* run what blocks, as a worker without a loop would.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import ClaimLost, UnknownRun
from mosaic_queues.transitions import Claim
from mosaic_tasks.execution.driver import STUCK_EXIT, drive, known
from mosaic_tasks.execution.hosted_run import Flight, HostedRun, Ticket
from mosaic_tasks.execution.outcomes import Outcome, Work, failure, timed_out
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.running import GRACE_S
from mosaic_tasks.execution.warming import Warmer

log = structlog.get_logger(__name__)

TICK_S = 0.1
"""The clerk looks so often at what takes too long."""
CLAIMS_EVERY_S = 1.0
"""And so often whether the claims of what runs still count."""
AGAIN_S = 0.5
"""Pause before a server that does not answer is asked again."""
BLOCKED_S = 30.0
"""A loop that does nothing for so long is blocked by a call."""
THREADS = 4
"""Calls that block and run beside those of the loop."""
COLLECT_MOST = 2048


class Slots(Protocol):
    """How many calls a worker runs at once; shared with what fetches messages."""

    @property
    def limit(self) -> int:
        """At most so many."""

    @property
    def used(self) -> int:
        """So many are taken."""

    def take(self, count: int) -> None:
        """So many more calls are here. It may exceed the limit: a message may bring more than there is room for."""

    def give(self, count: int) -> None:
        """So many calls are over."""


class _Given(NamedTuple):
    run_id: str
    calls: list[str]
    done: Callable[[], object]


class _Ended(NamedTuple):
    run: HostedRun
    flight: Flight
    outcome: Callable[[], Outcome]


class Host:
    """The calls that one process runs on its loop.

    Args:
        loop: runs in a thread of its own.
        slots: calls at once, those that wait here included.
    """

    def __init__(self, process: Process, *, loop: asyncio.AbstractEventLoop, slots: Slots) -> None:
        self._process, self._loop, self._slots = process, loop, slots
        self._inbox: SimpleQueue[_Given | _Ended | None] = SimpleQueue()
        self._runs: OrderedDict[str, HostedRun] = OrderedDict()
        self._in_flight = 0
        self._blocking = 0
        self._retry_at = 0.0
        self._ticked = self._looked = self._beat = time.monotonic()
        self._drains, self._closed = False, False
        self._quiet = threading.Event()
        self._warmer = Warmer(self._beside)
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(THREADS, "mosaic-blocking")
        self._clerk = threading.Thread(target=self._work, name="mosaic-clerk", daemon=True)
        self._clerk.start()

    # -- for the pool ----------------------------------------------------------------------------------------------

    def take(self, run_id: str, calls: Sequence[str], done: Callable[[], object]) -> None:
        """Takes up a message.

        Args:
            done: called from any thread once none of its calls needs the message any more.
        """
        self._slots.take(len(calls))
        self._inbox.put(_Given(run_id, list(calls), done))

    def has_room(self) -> bool:
        """Whether half of the slots are free."""
        return 2 * self._in_flight <= self._slots.limit

    def drain(self, timeout_s: float | None = None) -> bool:
        """Hands back what has not begun and waits until all that runs is recorded. False: it was not, in time."""
        self._drains = True
        self._inbox.put(None)
        is_quiet = self._quiet.wait(timeout_s)
        if is_quiet:
            self._stop()
        return is_quiet

    def abandon(self) -> None:
        """Cancels what runs, and has it run again elsewhere; its messages are not done."""
        self._stop()
        for run in list(self._runs.values()):
            for flight in list(run.flights.values()):
                self._cancel(flight, ClaimLost("the worker stops"))
                self._process.let_go(run.run_id, flight.work.holder)
            self._process.let_go(run.run_id, run.claimant)

    def close(self) -> None:
        """Ends its threads."""
        self._stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _stop(self) -> None:
        self._closed = True
        self._inbox.put(None)
        if self._clerk is not threading.current_thread():
            self._clerk.join()

    # -- the clerk ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closed:
            try:
                for run_id in self._collected():
                    self._serve(run_id)
                self._tick(time.monotonic())
            except Exception:
                log.exception("host.error", what="the clerk goes on")

    def _collected(self) -> list[str]:
        """Waits for something to do; the runs that have something, longest untouched first."""
        item = self._next(TICK_S if self._runs else None)
        for _ in range(COLLECT_MOST):
            if isinstance(item, _Given):
                self._given(item)
            elif isinstance(item, _Ended):
                self._ended(item)
            if (item := self._next(0.0)) is None:
                break
        return list(self._runs)

    def _next(self, timeout_s: float | None) -> _Given | _Ended | None:
        try:
            return self._inbox.get_nowait() if timeout_s == 0.0 else self._inbox.get(timeout=timeout_s)
        except Empty:
            return None

    def _given(self, given: _Given) -> None:
        ticket = Ticket(given.calls, given.done)
        run = self._run(given.run_id)
        calls = known(given.calls, run.plan, given.run_id) if run is not None else []
        self._leave(ticket, [call for call in given.calls if call not in calls])
        if run is None:
            return
        run.give([call for call in calls if run.runs_here(call)], ticket, time.monotonic())
        if blocking := [call for call in calls if not run.runs_here(call)]:
            self._blocking += 1
            self._threads.submit(self._run_blocking, given.run_id, blocking, ticket)

    def _leave(self, ticket: Ticket, calls: Sequence[str]) -> None:
        if calls:
            self._slots.give(len(calls))
            ticket.close(calls)

    def _run(self, run_id: str) -> HostedRun | None:
        """What is held of a run; None when the run cannot be had. Its calls stay ready: the sweeper publishes those of
        a run that goes on."""
        run = self._runs.get(run_id)
        if run is None:
            try:
                run = HostedRun(self._process, run_id, self._process.plan_of(run_id))
            except (UnknownRun, RedisError) as error:
                log.info(
                    "host.gone", what="message of a run that cannot be read", run=run_id, error=str(error)
                )
                return None
            self._runs[run_id] = run
        return run

    def _run_blocking(self, run_id: str, calls: Sequence[str], ticket: Ticket) -> None:
        try:
            drive(self._process, run_id, calls)
        finally:
            self._blocking -= 1
            self._leave(ticket, calls)
            self._inbox.put(None)

    def _ended(self, ended: _Ended) -> None:
        run, flight, outcome = ended
        if not flight.is_left:
            self._land(run, flight)
            run.landed.append((flight, outcome))

    def _land(self, run: HostedRun, flight: Flight) -> None:
        run.flights.pop(flight.work.claim, None)
        self._in_flight -= 1

    def _serve(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is None or time.monotonic() < self._retry_at:
            return
        try:
            self._advance(run)
        except RedisError as error:
            self._retry_at = time.monotonic() + AGAIN_S
            log.warning("host.lost", what="server does not answer, it is asked again", error=str(error))
        except Exception as error:
            log.exception("host.failed", what="internal error, the run is failed", run=run_id)
            with suppress(RedisError):
                message = f"internal error in a worker, see its log: {error!r}"
                self._process.ledger.end_run(run_id, "failed", message)
            self._forget(run)
        if run.is_idle:
            self._runs.pop(run_id, None)

    def _advance(self, run: HostedRun) -> None:
        """Transitions until nothing is left to record, and no slot is free or no call waits."""
        run.settle_landed(time.monotonic())
        self._start(run)
        while run.step(room=self._room()):
            self._slots.give(run.recorded())
            self._start(run)
        self._slots.give(run.recorded())
        if run.waiting:
            self._runs.move_to_end(run.run_id)  # others first, when a slot is free

    def _room(self) -> int:
        """Slots for calls that wait here; they are taken already."""
        waiting = sum(run.waiting for run in self._runs.values())
        return 0 if self._drains else self._slots.limit - self._slots.used + waiting

    def _start(self, run: HostedRun) -> None:
        """Runs what was claimed."""
        if not run.claimed:
            return
        run.execution.inputs.fetch([claim.call for claim in run.claimed])
        flights = []
        while run.claimed:
            claim = run.claimed[0]
            prepared = self._prepared(run, claim)
            if isinstance(prepared, Work):
                flight = run.flights[claim] = Flight(prepared, run.execution, time.monotonic())
                flights.append(partial(self._launch, run, flight))
            else:
                run.settle(claim, prepared, 0.0)
            run.claimed.popleft()
        if flights:
            self._in_flight += len(flights)
            self._loop.call_soon_threadsafe(self._launch_all, flights)

    def _prepared(self, run: HostedRun, claim: Claim) -> Outcome | Work:
        prepared = run.execution.prepare(claim, holder=run.claimant, opened=run.opened.pop(claim.call, None))
        run.settling.report_start(claim)
        if not run.has_ticket(claim.call):
            self._slots.take(1)
        return prepared

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _launch_all(self, launches: Sequence[Callable[[], None]]) -> None:
        for launch in launches:
            launch()

    def _launch(self, run: HostedRun, flight: Flight) -> None:
        flight.task = self._loop.create_task(self._fly(run, flight))
        self._warmer.while_running(run.plan, flight.work.node.number)
        if flight.ending is not None:
            flight.task.cancel()

    def _beside(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)  # the loop itself does not keep it
        task.add_done_callback(self._tasks.discard)

    async def _fly(self, run: HostedRun, flight: Flight) -> None:
        work = flight.work
        outcome: Callable[[], Outcome]
        try:
            outcome = await flight.execution.answered(work)
        except BaseException as error:  # noqa: BLE001 - whatever ends a call is its outcome
            outcome = partial(failure, work.node, work.claim, flight.ending or error)
        self._inbox.put(_Ended(run, flight, outcome))

    # -- what takes too long -----------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if now - self._ticked >= TICK_S:
            self._ticked = now
            self._hand_back(now)
            self._end_overdue(now)
            self._feel_loop(now)
        if now - self._looked >= CLAIMS_EVERY_S:
            self._looked = now
            self._end_lost()
        if self._drains and not (self._runs or self._blocking):
            self._quiet.set()

    def _hand_back(self, now: float) -> None:
        """Calls that wait for a slot for longer than a message's share of work may run elsewhere meanwhile."""
        patience_s = 0.0 if self._drains else 2 * self._process.settings.batch_s
        for run in [
            each for each in self._runs.values() if each.waiting and now - each.given_at > patience_s
        ]:
            try:
                run.hand_back()
                self._slots.give(run.recorded())
            except RedisError as error:
                log.warning("host.handing", what="calls cannot be handed back yet", error=str(error))

    def _flights(self) -> list[tuple[HostedRun, Flight]]:
        return [(run, flight) for run in self._runs.values() for flight in run.flights.values()]

    def _end_lost(self) -> None:
        """Cancels what runs for nothing: its run is over, or its claim was taken back."""
        held = {run_id: list(run.flights) for run_id, run in self._runs.items() if run.flights}
        if not held:
            return
        try:
            lost = self._process.ledger.lost(held)
        except RedisError:
            return  # told by the next transition
        for run_id, claims in zip(held, lost, strict=True):
            for claim in claims:
                flight = self._runs[run_id].flights[claim]
                self._cancel(flight, ClaimLost(f"call {claim.call!r} is over, or somebody else's"))

    def _cancel(self, flight: Flight, reason: Exception) -> None:
        if flight.ending is None:
            flight.ending = reason
            self._loop.call_soon_threadsafe(lambda: flight.task and flight.task.cancel())

    def _end_overdue(self, now: float) -> None:
        """Calls end by their own timeout; one that will not be cancelled is left behind."""
        for run, flight in self._flights():
            if now - flight.since <= _longest_s(flight) + GRACE_S:
                continue
            reason = timed_out(flight.work.node)
            log.error("host.left", what="a call will not end, its slot is free again", error=str(reason))
            self._cancel(flight, reason)
            flight.is_left = True
            self._land(run, flight)
            run.landed.append((flight, partial(failure, flight.work.node, flight.work.claim, reason)))
            self._inbox.put(None)

    def _feel_loop(self, now: float) -> None:
        """A loop that is blocked serves nobody; its process ends, and others go on with its calls."""
        if not self._in_flight:
            self._beat = now
            return
        self._loop.call_soon_threadsafe(self._mark_beat)
        if now - self._beat > BLOCKED_S:
            nodes = sorted({flight.work.node.name for _, flight in self._flights()})
            log.critical(
                "host.blocked",
                what=f"a call blocks the event loop for {BLOCKED_S:g} s, the process ends; "
                "await what waits, or make it a plain function",
                nodes=nodes,
            )
            os._exit(STUCK_EXIT)

    def _mark_beat(self) -> None:
        self._beat = time.monotonic()

    def _forget(self, run: HostedRun) -> None:
        self._slots.give(run.close())
        for flight in list(run.flights.values()):
            self._cancel(flight, ClaimLost("the run has failed"))
            flight.is_left = True
            self._land(run, flight)
        self._runs.pop(run.run_id, None)


def _longest_s(flight: Flight) -> float:
    """How long a call may take; a mailbox has as many batches as come."""
    timeout_s = flight.work.node.plan.timeout_s
    return float("inf") if timeout_s is None or flight.work.call.reads else timeout_s
