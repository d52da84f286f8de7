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
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import structlog
from celery.worker import state as worker_state
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mosaic_queues.advancing import OtherPlan, Transition
from mosaic_queues.connection import told_error
from mosaic_queues.errors import ClaimLost, ServerRefused, UnknownRun
from mosaic_queues.transitions import Advance, Claim
from mosaic_tasks.execution.blocking import Blocking, BlockingCalls
from mosaic_tasks.execution.driver import CLAIMS_EVERY_S, STUCK_EXIT, known
from mosaic_tasks.execution.holding import ServerAwayError
from mosaic_tasks.execution.hosted_run import Flight, HostedRun, Slots, Ticket, by_queue, runs_here
from mosaic_tasks.execution.outcomes import Outcome, Work, claim_lost, ended, failure, timed_out
from mosaic_tasks.execution.prepared import PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.running import GRACE_S
from mosaic_tasks.execution.sharing import Lengths, calls_ahead, patience_s
from mosaic_tasks.execution.together import Errand, go_together
from mosaic_tasks.execution.warming import Warmer

log = structlog.get_logger(__name__)

TICK_S = 0.1
"""The clerk looks so often at what takes too long."""
AGAIN_S = 0.5
"""Pause before a server that does not answer is asked again."""
BLOCKED_S = 30.0
"""A loop that does nothing for so long is blocked by a call."""
BLOCKING_PATIENCE_S = 1.0
"""Calls that block wait so long for a thread, where somebody else might run them."""
STOP_S = 2.0
"""A clerk that waits for the server is left behind after so long."""
COLLECT_MOST = 2048
_LONG_S = 10.0
"""Expected of a call, as long as none has ended."""
REFUSED_EXIT = 1
"""Exit code of a worker whose server denies it a right."""


class _Given(NamedTuple):
    run_id: str
    calls: list[str]
    done: Callable[[], object]
    plan: str = ""


class _Recalled(NamedTuple):
    run_id: str


class _Ended(NamedTuple):
    run: HostedRun
    flight: Flight
    outcome: Outcome | Callable[[], Outcome]


_Item = _Given | _Recalled | _Ended | BlockingCalls


class Host:
    """The calls that one process runs on its loop.

    Args:
        loop: runs in a thread of its own.
        slots: calls at once, those that wait here included.
    """

    def __init__(self, process: Process, *, loop: asyncio.AbstractEventLoop, slots: Slots) -> None:
        self._process, self._loop, self._slots = process, loop, slots
        self._inbox: SimpleQueue[_Item | None] = SimpleQueue()
        self._blocking = Blocking(process, ended=self._inbox.put)
        self._runs: dict[str, HostedRun] = {}
        self._touched: dict[str, HostedRun] = {}
        self._in_flight = 0
        self._waiting = self._keeping = 0
        self._length_s = _LONG_S
        self._retry_at = 0.0
        self._ticked = self._looked = time.monotonic()
        self._silence = Silence()
        self._drains, self._closed, self._is_refused = False, False, False
        self._quiet = threading.Event()
        self._warmer = Warmer(self._beside)
        self._tasks: set[asyncio.Task[None]] = set()
        process.recalls.add(self._recalled)
        self._clerk = threading.Thread(target=self._work, name="mosaic-clerk", daemon=True)
        self._clerk.start()

    # -- for the pool ----------------------------------------------------------------------------------------------

    def take(self, run_id: str, calls: Sequence[str], done: Callable[[], object], *, plan: str = "") -> None:
        """Takes up a message.

        Args:
            done: called from any thread once none of its calls needs the message any more.
            plan: content hash of the run's plan, as the message says, which the ledger compares.
        """
        named = list(dict.fromkeys(calls))
        self._slots.take(len(named))
        self._inbox.put(_Given(run_id, named, done, plan))

    def has_room(self) -> bool:
        """Whether half of the slots are free."""
        return 2 * self._in_flight <= self._slots.limit

    def drain(self, timeout_s: float | None = None) -> bool:
        """Hands back what has not begun and waits until all that runs is recorded. False: it was not, in time."""
        self._drains = True
        log.info("host.drains", what="what runs ends, what waits is handed back", running=self._in_flight)
        self._inbox.put(None)
        is_quiet = self._quiet.wait(timeout_s)
        if self._is_refused:
            self.abandon()
        elif is_quiet:
            self._stop()
        return is_quiet

    def abandon(self) -> None:
        """Cancels what runs, and has it run again elsewhere; its messages are not done. What has run is recorded, if
        the server answers."""
        self._stop()
        is_ours = not self._clerk.is_alive()
        if is_ours:
            self._collect(0.0)  # what ends from now on is nobody's result: it is handed back
        for _run, flight in self._flights():
            self._cancel(flight, ClaimLost("the worker stops"))
        for run in list(self._runs.values()) if is_ours else ():
            with suppress(RedisError):
                run.give_up(time.monotonic())

    def close(self) -> None:
        """Ends its threads."""
        self._stop()
        self._blocking.close()

    def _stop(self) -> None:
        self._process.recalls.discard(self._recalled)
        self._closed = True
        self._inbox.put(None)
        self._clerk.join(STOP_S)

    def _recalled(self, run_id: str, _calls: Sequence[str]) -> None:
        self._inbox.put(_Recalled(run_id))

    # -- the clerk ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closed:
            try:
                self._collect(TICK_S if self._is_busy else None)
                self._serve()
                if not self._closed:
                    self._tick(time.monotonic())
                if not self._is_busy:
                    self._process.reporter.flush()
            except Exception:
                log.exception("host.error", what="the clerk goes on")

    @property
    def _is_busy(self) -> bool:
        return bool(self._runs) or not self._blocking.is_idle

    def _collect(self, timeout_s: float | None) -> None:
        """Takes in what came; waits for it if there is nothing."""
        came = self._came(timeout_s)
        with suppress(RedisError):  # told of each run that cannot be read
            given = [item for item in came if isinstance(item, _Given)]
            self._process.learn_plans(item.run_id for item in given if self._named_plan(item) is None)
        for item in came:
            match item:
                case _Given():
                    self._given(item)
                case _Ended():
                    self._ended(item)
                case _Recalled():
                    self._end_lost([item.run_id])
                case BlockingCalls():
                    self._leave(item.ticket, item.calls)
                    self._blocking.go_on()

    def _came(self, timeout_s: float | None) -> list[_Item]:
        """All that is there, or comes next; nothing where it was only woken, or the time is over."""
        came = list[_Item | None]()
        with suppress(Empty):
            came.append(self._inbox.get(block=timeout_s != 0.0, timeout=timeout_s))
            while len(came) < COLLECT_MOST:
                came.append(self._inbox.get_nowait())
        return [item for item in came if item is not None]

    def _given(self, given: _Given) -> None:
        if not given.calls:
            given.done()
            return
        ticket = Ticket(given.calls, given.done)
        try:
            left = self._shared_out(given, ticket)
        except BaseException as error:  # noqa: BLE001  a tool's module may raise anything when it is imported
            self._fail(given.run_id, error)
            left = given.calls
        self._leave(ticket, left)

    def _shared_out(self, given: _Given, ticket: Ticket) -> Sequence[str]:
        """Gives the calls of a message to those that run them; the rest is answered."""
        run, now = self._run(given), time.monotonic()
        if run is None:
            return given.calls
        calls = known(given.calls, run.plan, given.run_id)
        here = {call for call in calls if runs_here(run.plan, call)}
        blocking = [call for call in calls if call not in here]
        if here:
            self._runs[run.run_id] = self._touched[run.run_id] = run
            run.give([call for call in calls if call in here], ticket, now)
        if blocking:
            self._blocking.give(BlockingCalls(run.run_id, run.plan, blocking, ticket, now))
        return [call for call in given.calls if call not in here and call not in blocking]

    def _leave(self, ticket: Ticket, calls: Sequence[str]) -> None:
        if calls:
            self._slots.give(len(calls))
            ticket.close(calls)

    def _named_plan(self, given: _Given) -> PreparedPlan | None:
        """The plan that a message names, with which its calls can begin: the first transition compares it."""
        plan = self._process.plan_at_hand(given.plan)
        try:
            fits = plan is not None and all(
                plan.knows(call) and runs_here(plan, call) for call in given.calls
            )
        except BaseException:  # noqa: BLE001  what a tool's module raises is told by whoever needs it
            return None
        return plan if fits else None

    def _run(self, given: _Given) -> HostedRun | None:
        """What is held of a run; None when the run cannot be had. Its calls stay ready: the sweeper publishes those of
        a run that goes on."""
        process, run_id, run = self._process, given.run_id, self._runs.get(given.run_id)
        if run is not None and (run.is_sure or run.plan.hash == given.plan):
            return run
        named = None if run is not None or process.knows_plan_of(run_id) else self._named_plan(given)
        try:
            plan = named or process.plan_of(run_id)
            if run is not None:
                if run.plan is plan:
                    return run
                self._withdraw(run)
            return HostedRun(process, run_id, plan, slots=self._slots, is_sure=named is None)
        except (UnknownRun, RedisError) as error:
            self._end_if_refused(error)
            log.info("host.gone", what="message of a run that cannot be read", run=run_id, error=str(error))
            return None

    def _ended(self, ended: _Ended) -> None:
        run, flight, outcome = ended
        if not flight.is_left:
            self._land(run, flight, outcome)

    def _land(self, run: HostedRun, flight: Flight, outcome: Outcome | Callable[[], Outcome]) -> None:
        del run.flights[flight.work.claim]
        self._in_flight -= 1
        self._look_ahead(time.monotonic() - flight.since)
        run.landed.append((flight, outcome))
        self._touched[run.run_id] = run

    def _look_ahead(self, length_s: float) -> None:
        """A call of some length ended: how many may wait here for the next slots that become free."""
        self._length_s += Lengths.WEIGHT * (length_s - self._length_s)
        batch_s = self._process.settings.batch_s
        self._slots.ahead = calls_ahead(self._slots.limit, length_s=self._length_s, batch_s=batch_s)

    def _serve(self) -> None:
        """Has all runs go on of which something came; what they ask the ledger goes there together."""
        now = time.monotonic()
        self._waiting, self._keeping = sum(run.waiting for run in self._touched.values()), 0
        runs = [run for run in self._touched.values() if now >= max(self._retry_at, run.retry_at)]
        errands = [_Serving(self, run) for run in runs]
        go_together(errands, self._ask)
        for errand in errands:
            errand.send()
            self._served(errand.run, errand.error)

    def _ask(self, asking: Sequence[_Serving]) -> None:
        """Gives all who ask the ledger something their answers, and publishes once all have begun what they claimed."""
        try:
            answers = self._answers([each.asked for each in asking if each.asked is not None])
        except RedisError as error:
            self._tell(asking, error)
        else:
            for each, answer in zip(asking, answers, strict=True):
                each.answered(answer)
        for each in asking:
            each.send()

    def _answers(self, transitions: Sequence[Transition]) -> Sequence[Advance | Exception]:
        """In one trip, unless one of them cannot be written or its answer read: that is to fail alone."""
        if len(transitions) > 1:
            try:
                return self._process.ledger.advance_together(transitions)
            except RedisError:
                raise
            except Exception:
                log.exception("host.together", what="a transition cannot be made, each is tried alone")
        return [self._alone(each) for each in transitions]

    def _alone(self, asked: Transition) -> Advance | Exception:
        try:
            return self._process.ledger.advance(asked.run_id, **asked.options())
        except (RedisConnectionError, RedisTimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - the run makes of it what it has to
            return error

    @staticmethod
    def _tell(asking: Sequence[_Serving], error: RedisError) -> None:
        """The first one may ask again, as long as that makes sense. If it has no answer either, the others need not."""
        first, *others = asking
        first.answered(error)
        is_away = isinstance(first.error, (RedisConnectionError, RedisTimeoutError))
        for each in others:
            each.answered(ServerAwayError(str(error)) if is_away else error)

    def _served(self, run: HostedRun, error: Exception | None) -> None:
        if isinstance(error, OtherPlan):
            self._withdraw(run)
            return
        if isinstance(error, RedisError):
            if _may_pass(error):
                self._put_off(run, error)
                return
            self._give_up(run, error)
        elif error is not None:  # the clerk goes on for the other runs
            self._fail(run.run_id, error)
            self._forget(run)
        del self._touched[run.run_id]
        if run.waiting:
            self._touched[run.run_id] = run  # others first, when a slot is free
        if run.is_idle:
            self._runs.pop(run.run_id, None)

    def _withdraw(self, run: HostedRun) -> None:
        """The run is gone, or has another plan than a message named: its calls are taken up again, without that."""
        log.warning("host.plan", what="the run has not the plan that a message names", run=run.run_id)
        self._runs.pop(run.run_id, None)
        self._touched.pop(run.run_id, None)
        for call, done in run.withdraw():
            self._inbox.put(_Given(run.run_id, [call], done))

    def _put_off(self, run: HostedRun, error: RedisError) -> None:
        """A server that is away is away for all runs; what else it says is about this one."""
        until = time.monotonic() + AGAIN_S
        if isinstance(error, (RedisConnectionError, RedisTimeoutError)):
            self._retry_at = until
        run.retry_at = until
        log.warning(
            "host.lost",
            what="server does not do it, it is asked again",
            run=run.run_id,
            error=str(error),
        )

    def _give_up(self, run: HostedRun, error: RedisError) -> None:
        """What the server denies, it denies for all runs; what else it will never do is about this one."""
        self._end_if_refused(error)
        if not self._is_refused:
            self._fail(run.run_id, error)
            self._forget(run)

    def _end_if_refused(self, error: Exception) -> None:
        """The worker ends, and others go on with its calls, where its user on the server lacks a right."""
        told = told_error(error)
        if isinstance(told, ServerRefused) and not self._is_refused:
            log.critical("worker.given_up", what="the worker ends", reason=str(told))
            self._is_refused = self._closed = True
            self._quiet.set()
            worker_state.should_stop = REFUSED_EXIT

    def _fail(self, run_id: str, error: BaseException) -> None:
        log.error("host.failed", what="internal error, the run is failed", run=run_id, exc_info=error)
        with suppress(RedisError):
            message = f"internal error in a worker, see its log: {type(error).__name__}: {error}"
            self._process.ledger.end_run(run_id, "failed", message)

    def _advancing(self, run: HostedRun) -> Generator[Transition, Advance, None]:
        """Transitions until nothing is left to record, and no slot is free or no call waits."""
        run.settle_landed(time.monotonic(), room=self._room)
        self._launch(run)
        while (yield from run.stepping(room=self._room)):
            run.close_recorded()
            self._launch(run)
        run.close_recorded()

    @property
    def _room(self) -> int:
        """Slots for calls that wait here, or that a run goes on to; those that wait have taken theirs."""
        return 0 if self._drains else self._slots.limit - self._slots.used + self._waiting - self._keeping

    def _launch(self, run: HostedRun) -> None:
        """Runs what was claimed."""
        if not run.claimed:
            return
        run.execution.inputs.fetch([claim.call for claim in run.claimed])
        flights: list[Flight] = []
        try:
            while run.claimed:
                claim = run.claimed[0]
                prepared = self._prepared(run, claim)
                run.claimed.popleft()  # before what it comes to may add others
                if isinstance(prepared, Work):
                    flights.append(self._flight(run, prepared))
                else:
                    self._settle_at_once(run, claim, prepared)
        finally:
            if flights:
                self._loop.call_soon_threadsafe(self._launch_all, run, flights)

    def _prepared(self, run: HostedRun, claim: Claim) -> Outcome | Work:
        opened = run.opened.pop(claim.call, None)
        prepared = run.execution.prepare(claim, holder=run.holder(claim), opened=opened)
        run.settling.report_start(claim)
        return prepared

    def _settle_at_once(self, run: HostedRun, claim: Claim, outcome: Outcome) -> None:
        try:
            run.settle(claim, outcome, 0.0)
        except RedisError:
            run.claimed.appendleft(claim)
            raise

    def _flight(self, run: HostedRun, work: Work) -> Flight:
        since = time.monotonic()
        flight = Flight(work, run.execution, since, since + _longest_s(work) + GRACE_S)
        run.flights[work.claim] = flight
        self._in_flight += 1
        return flight

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _launch_all(self, run: HostedRun, flights: Sequence[Flight]) -> None:
        for flight in flights:
            task = flight.task = self._loop.create_task(flight.execution.answered(flight.work))
            task.add_done_callback(partial(self._landed, run, flight))
            if flight.ending is not None:
                task.cancel()
        for number in {flight.work.node.number for flight in flights}:
            self._warmer.while_running(run.plan, number)

    def _beside(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)  # the loop itself does not keep it
        task.add_done_callback(self._tasks.discard)

    def _landed(self, run: HostedRun, flight: Flight, task: asyncio.Task[Callable[[], Outcome]]) -> None:
        """Called however a call ends, also when it is cancelled before its first step."""
        work = flight.work
        outcome: Outcome | Callable[[], Outcome]
        try:
            outcome = task.result()
        except BaseException as error:  # noqa: BLE001 - whatever ends a call is its outcome
            outcome = failure(work.node, work.claim, error)
        if flight.ending is not None:
            outcome = ended(work, flight.ending, flight.execution.spent(work))
        self._inbox.put(_Ended(run, flight, outcome))

    # -- what takes too long -----------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if now - self._ticked >= TICK_S:
            self._ticked = now
            self._hand_back(now)
            self._hand_back_blocking(now)
            self._end_overdue(now)
            if self._in_flight:
                self._process.listen_to_recalls()
            self._feel_loop(now)
            self._process.reporter.look(now)
        if now - self._looked >= CLAIMS_EVERY_S:
            self._looked = now
            self._end_lost(list(self._runs))
        if self._drains and not self._is_busy:
            self._quiet.set()

    def _hand_back(self, now: float) -> None:
        """Calls that wait for a slot for too long may run elsewhere meanwhile."""
        since = now - self._patience_s()
        for run in list(self._touched.values()):
            if run.hand_back_late(since):
                self._length_s, self._slots.ahead = _LONG_S, 0  # calls have become longer than they were

    def _patience_s(self) -> float:
        """How long calls wait here for a slot."""
        if self._drains:
            return 0.0
        process = self._process
        is_alone = all(process.slots(queue) <= 1 for queue in process.serves)
        length_s = self._length_s if is_alone and self._slots.ahead else 0.0
        return patience_s(length_s=length_s, batch_s=process.settings.batch_s)

    def _hand_back_blocking(self, now: float) -> None:
        """What waits for a thread may run elsewhere, if there is somebody."""
        for given in self._blocking.late(now if self._drains else now - BLOCKING_PATIENCE_S):
            groups = by_queue(given.plan, given.calls)
            if self._drains or any(self._process.slots(queue) > 1 for queue, _ in groups):
                self._process.publish(given.run_id, given.plan, groups)
                self._leave(given.ticket, given.calls)
            else:
                self._blocking.give(given._replace(since=now))

    def _flights(self) -> list[tuple[HostedRun, Flight]]:
        return [(run, flight) for run in list(self._runs.values()) for flight in list(run.flights.values())]

    def _end_lost(self, run_ids: Iterable[str]) -> None:
        """Cancels what runs for nothing: its run is over, or its claim was taken back."""
        runs = {run_id: self._runs[run_id] for run_id in run_ids if run_id in self._runs}
        held = {run_id: list(run.flights) for run_id, run in runs.items() if run.flights}
        if not held:
            return
        try:
            lost = self._process.ledger.lost(held)
        except RedisError:
            return  # told by the next transition
        for run_id, claims in zip(held, lost, strict=True):
            for claim in claims:
                flight = self._runs[run_id].flights[claim]
                self._cancel(flight, claim_lost(claim))

    def _cancel(self, flight: Flight, reason: Exception) -> None:
        if flight.ending is None:
            flight.ending = reason
            flight.ends_by = min(flight.ends_by, time.monotonic() + GRACE_S)
            self._loop.call_soon_threadsafe(lambda: flight.task and flight.task.cancel())

    def _end_overdue(self, now: float) -> None:
        """Calls end by their own timeout, or when they are cancelled; one that does not is left behind."""
        for run, flight in self._flights():
            if now <= flight.ends_by:
                continue
            reason = flight.ending or timed_out(flight.work.node)
            log.error(
                "host.left",
                what="a call will not end, its slot is free again",
                run=run.run_id,
                node=flight.work.node.name,
                call=flight.work.claim.call,
                error=str(reason),
            )
            self._cancel(flight, reason)
            flight.is_left = True
            self._land(run, flight, ended(flight.work, reason))

    def _feel_loop(self, now: float) -> None:
        """A loop that is blocked serves nobody; its process ends, and others go on with its calls."""
        if not self._in_flight or now < self._retry_at:  # a server that is away may keep it waiting
            self._silence.end()
        self._loop.call_soon_threadsafe(self._silence.end)
        if self._silence.lasts(now) > BLOCKED_S:
            nodes = sorted({flight.work.node.name for _, flight in self._flights()})
            log.critical(
                "host.blocked",
                what=f"a call blocks the event loop for {BLOCKED_S:g} s, the process ends; "
                "await what waits, or make it a plain function",
                nodes=nodes,
            )
            os._exit(STUCK_EXIT)

    def _forget(self, run: HostedRun) -> None:
        for holder in run.holders():
            self._process.let_go(
                run.run_id, holder
            )  # where the run goes on, since its end could not be recorded
        for flight in list(run.flights.values()):
            self._cancel(flight, ClaimLost("the run has failed"))
            flight.is_left = True
        self._in_flight -= len(run.flights)
        run.flights.clear()
        run.close()


class _Serving(Errand[Transition, Advance]):
    """A run that goes on. Between two of its steps others take theirs, so what it has of the host's calls and slots is
    counted with each."""

    def __init__(self, host: Host, run: HostedRun) -> None:
        super().__init__(host._advancing(run))
        self._host, self.run = host, run

    def _go_on(self, step: Callable[[], Transition]) -> None:
        waited, kept = self.run.waiting, self._keeps
        self._host._keeping -= kept
        super()._go_on(step)
        self._host._waiting += self.run.waiting - waited
        self._host._keeping += self._keeps

    def send(self) -> None:
        """Publishes what others may run."""
        try:
            self.run.send_all()
        except Exception as error:  # noqa: BLE001 - told as what else goes wrong with the run
            self.error = self.error or error

    @property
    def _keeps(self) -> int:
        return 0 if self.asked is None else self.asked.keep


class Silence:
    """How long an event loop has not answered, while somebody listened: neither a process that was stopped nor a
    listener that was kept waiting makes it longer."""

    MOST_S = 1.0
    """Between two questions at most so much counts."""

    def __init__(self) -> None:
        self._asked = time.monotonic()
        self._length_s = 0.0

    def end(self) -> None:
        """It answers."""
        self._length_s = 0.0

    def lasts(self, now: float) -> float:
        """Its length in seconds, at a monotonic time."""
        self._length_s += min(now - self._asked, self.MOST_S)
        self._asked = now
        return self._length_s


def _may_pass(error: RedisError) -> bool:
    """Whether the server may do later what it does not do now. Most states have a class of their own in redis-py."""
    told = told_error(error)
    if told is not None:
        return not isinstance(told, ServerRefused)
    return type(error) is not ResponseError


def _longest_s(work: Work) -> float:
    """How long a call may take; a mailbox has as many batches as come."""
    timeout_s = work.node.plan.timeout_s
    return float("inf") if timeout_s is None or work.call.reads else timeout_s
