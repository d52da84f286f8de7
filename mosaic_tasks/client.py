"""Submits workflows and follows their runs, from any process."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from celery import Celery

from mosaic_queues.connection import server_errors, server_ms
from mosaic_queues.errors import InputError, NoWorker, RunCancelled, RunFailed, UnknownRun, WaitTimeout
from mosaic_queues.events import Event, await_end, follow_events, read_events
from mosaic_queues.liveness import live_processes
from mosaic_queues.texts import bounded, visible
from mosaic_queues.transitions import LiveCall, RunRecord, RunStatus
from mosaic_routing.inventory import engines
from mosaic_routing.queues import ROUTED
from mosaic_routing.targets import Objective
from mosaic_tasks.app import app as default_app
from mosaic_tasks.definition.plan import NodePlan, Plan
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.terms import Terms
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.execution.mixtures.scoring import Score, score
from mosaic_tasks.execution.process import Process, ledger_url, process_for
from mosaic_tasks.execution.redoing import redo_of
from mosaic_tasks.execution.sent import sent_of
from mosaic_tasks.inspection.explaining import Explanation, explain, serving_command
from mosaic_tasks.inspection.happening import Happenings
from mosaic_tasks.inspection.listing import Wanted, page_of_runs
from mosaic_tasks.inspection.parts import Part, Source, StreamEvent, part_of
from mosaic_tasks.inspection.progress import NodeView, RunView, project
from mosaic_tasks.inspection.reading import AsyncReading, Reading
from mosaic_tasks.inspection.said import said
from mosaic_tasks.inspection.standing import Patience, PatientAsyncReading, PatientReading, Standing
from mosaic_tasks.mixtures.recording import Record
from mosaic_tasks.submission import submit_to

WORKER_CHECK_S = 1.0
_PAGE = 8
"""Entries of a stream that a reader among many holds at once."""


class SubmitOptions(TypedDict, total=False):
    """The options of `submit`."""

    key: str | None
    priority: int | str
    objective: Objective | None
    deadline_s: float | None
    budget_usd: float | None
    tenant: str
    webhook: str | None
    app: Celery | None


def submit(
    workflow: Workflow | str | Path,
    inputs: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    priority: int | str = 0,
    objective: Objective | None = None,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    tenant: str = "",
    webhook: str | None = None,
    app: Celery | None = None,
) -> Run:
    """Starts a run.

    Args:
        workflow: a workflow, or the path of a workflow file.
        inputs: by name; what is missing takes the workflow's default.
        key: idempotency key: the same key gives the same run, as long as it is retained; with another workflow or other
            inputs it is refused.
        priority: of its calls in queues and engines: 0 is the most urgent, 9 gives way to everything else; or a name
            that the topology has for one of them, such as `batch`.
        objective: what the router cares for most; this and the next two: default as the workflow says.
        deadline_s: the run fails when it takes longer.
        budget_usd: its calls may cost so much together.
        tenant: on whose account it runs.
        webhook: a URL that a worker tells the run's end, signed with its MOSAIC_WEBHOOK_SECRET, at least once.
        app: the Celery app to publish with; default: `mosaic_tasks.app`.

    Raises:
        DefinitionError: the workflow is wrong.
        InputError: the inputs do not fit, a term makes no sense, the key stands for something else, or the webhook may
            not be told.
        ServerUnavailable: the server does not answer.
    """
    app = app or default_app
    terms = Terms(
        priority=priority,
        objective=objective,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        tenant=tenant,
    )
    submitted = submit_to(app, workflow, inputs, key=key, terms=terms, webhook=webhook)
    return Run(submitted.run_id, process_for(app))


async def asubmit(
    workflow: Workflow | str | Path,
    inputs: Mapping[str, Any] | None = None,
    **options: Unpack[SubmitOptions],
) -> Run:
    """`submit` for coroutines; blocks no event loop."""
    return await asyncio.to_thread(submit, workflow, inputs, **options)


def get_run(run_id: str, *, app: Celery | None = None) -> Run:
    """A run by its id.

    Raises:
        UnknownRun: never opened here, or past its retention.
    """
    run = Run(run_id, process_for(app or default_app))
    try:
        run.record()
    except UnicodeEncodeError:
        raise UnknownRun(f"no run {run_id!r}: ids are text, and this is none") from None
    return run


def list_runs(
    *,
    tenant: str | None = None,
    status: RunStatus | None = None,
    workflow: str | None = None,
    limit: int = 100,
    before: str | None = None,
    app: Celery | None = None,
) -> list[RunRecord]:
    """Runs, newest first; those that are over too, as long as they are retained.

    Args:
        tenant: those of one tenant; default: of all.
        status: `running`, `done`, `failed` or `cancelled`; default: any.
        workflow: those of the workflow of this name; default: of any.
        limit: so many at most.
        before: the id of a run: those that are older than it.

    Raises:
        ServerUnavailable: the server does not answer.
    """
    app = app or default_app
    process, wanted, found = process_for(app), Wanted(tenant, status, workflow), list[RunRecord]()
    with server_errors(ledger_url(app)):
        while len(found) < limit:
            left, now_ms = limit - len(found), process.now_ms()
            page = page_of_runs(process.ledger, wanted, limit=left, before=before, now_ms=now_ms)
            found += page.records
            before = page.next
            if before is None:
                break
    return found


def no_worker(
    queues: list[str], run_id: str, *, later: Collection[str] = (), served: Collection[str] = ()
) -> NoWorker:
    """The error that nobody serves these queues, with the command that helps.

    Args:
        later: the queues that the run comes to after these, and that nobody serves either.
        served: the queues that somebody serves.
    """
    start = serving_command(sorted({*queues, *later}), served)
    missing = f" (`mosaic explain {run_id}` says what is missing)" if ROUTED in queues else ""
    return NoWorker(queues, run_id=run_id, start=f"{start}{missing}")


def await_any(runs: Sequence[Run], *, timeout_s: float) -> list[Run]:
    """Blocks until one of these runs of one app is over; returns those that are, none once the time is over."""
    process = runs[0]._process
    ends = {process.ledger.keys.run(run.id)[5].encode(): run for run in runs}
    found = process.client.xread(dict.fromkeys(ends, "0"), block=math.ceil(timeout_s * 1000))
    return [ends[name] for name, _ in cast("list[tuple[bytes, Any]]", found or [])]


def _number_of(plan: Plan, node: str) -> int:
    names = {each.name: number for number, each in enumerate(plan.nodes)}
    if node not in names:
        raise InputError(f"workflow {plan.name!r} has no node {node!r}{did_you_mean(node, names)}")
    return names[node]


def _mixture_of(plan: Plan, node: str) -> int:
    """The number of a mixture."""
    number = _number_of(plan, node)
    if plan.nodes[number].mixture is None:
        mixtures = [each.name for each in plan.nodes if each.mixture is not None]
        told = f"its mixtures are: {', '.join(mixtures)}" if mixtures else "it has none"
        raise InputError(f"node {node!r} of workflow {plan.name!r} is no mixture; {told}")
    return number


class Run:
    """One execution of a workflow."""

    def __init__(self, run_id: str, process: Process) -> None:
        self.id = run_id
        self._process = process

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    def record(self) -> RunRecord:
        """The run as a whole: status, name, times, error."""
        return self._process.ledger.run(self.id)

    def plan(self) -> Plan:
        """The plan that it executes."""
        return self._process.plan_of(self.id).plan

    def live_calls(self) -> list[LiveCall]:
        """The calls that wait or run now."""
        return self._process.ledger.live_calls(self.id)

    def view(self) -> RunView:
        """State, times and counts of each node, from the run's events."""
        return project(self.plan(), self.events(), run_id=self.id)

    def node(self, name: str) -> NodeView:
        """State, times and counts of one node.

        Raises:
            InputError: the workflow has no such node.
        """
        return self.view().nodes[_number_of(self.plan(), name)]

    def mixture(self, node: str) -> Record | None:
        """What a mixture came to: answer, confidence and votes, who was asked and cut off, what it cost and saved; None
        while it is undecided.

        Raises:
            InputError: the workflow has no such node, or it is no mixture.
        """
        _mixture_of(self.plan(), node)
        return self.node(node).record

    async def amixture(self, node: str) -> Record | None:
        """`mixture` for coroutines."""
        return await asyncio.to_thread(self.mixture, node)

    def score(self, node: str, value: float, *, answer: Any = None) -> Score:
        """Says how right the answer of a mixture was: what later mixtures believe of its experts follows.

        Where it was right, those who said the same were right and the others wrong; where it was wrong, they were, and
        of the others nothing is known. Scoring again goes in the place of the last score.

        Args:
            value: 0 is wrong, 1 is right.
            answer: the right one, where it is known: each expert is judged by that, as mixtures compare answers.

        Returns:
            How right each expert was, and a line for `mosaic calibrate`.

        Raises:
            InputError: the workflow has no such node, it is no mixture or has not answered, the value is no number from
                0 to 1, or the right answer cannot be read.
            UnknownRun: the run is past its retention.
        """
        with server_errors(ledger_url(self._process.app)):
            return score(self._process, self.id, _mixture_of(self.plan(), node), value, answer)

    async def ascore(self, node: str, value: float, *, answer: Any = None) -> Score:
        """`score` for coroutines."""
        return await asyncio.to_thread(self.score, node, value, answer=answer)

    def events(self, *, follow: bool = False, after: str = "0") -> Iterator[Event]:
        """What happened, in order.

        Args:
            follow: go on as things happen, to the run's end, without polling.
            after: the id of the last event already seen.
        """
        client, keys = self._process.client, self._process.ledger.keys
        if not follow:
            yield from read_events(client, keys, self.id, after=after)
            return
        for event in follow_events(client, keys, self.id, after=after):
            if event is not None:
                yield event
            elif self.record().status != "running" and not read_events(client, keys, self.id, after=after):
                return
            if event is not None:
                after = event.id

    def aevents(self, *, after: str = "0") -> AsyncReading[Event]:
        """What happens, in order, to the run's end, for coroutines: `async for`, in an `async with` where it is left
        earlier. It ends when the run is over and all of it was told; takes no connection and no thread of its own.

        Args:
            after: the id of the last event already seen.

        Raises:
            InputError: `after` is no id of an event.
        """
        ledger = self._process.ledger
        open_part = partial(Happenings, ledger, self.id, after)
        return AsyncReading(ledger, open_part, follow=True, stands=self.record, page=_PAGE)

    def pieces(self, node: str | None = None) -> Reading[StreamEvent]:
        """What is there of `stream` now, as it was said, with what was taken back since: however long the stream is,
        only a few entries are held."""
        open_part = partial(self._raw_part, node, None)
        return Reading(self._process.ledger, open_part, follow=False, stands=self.record, page=_PAGE)

    def apieces(self, node: str | None = None, *, after: str | None = None) -> AsyncReading[StreamEvent]:
        """`astream` as it was said, with what was taken back since: however long the stream is, and however slow its
        reader, only a few entries are held."""
        open_part = partial(self._raw_part, node, after)
        return AsyncReading(self._process.ledger, open_part, follow=True, stands=self.record, page=_PAGE)

    def stream(
        self,
        node: str | None = None,
        *,
        after: str | None = None,
        follow: bool = True,
        timeout_s: float | None = None,
    ) -> Reading[StreamEvent]:
        """What a node puts out, as it comes: an iterator of `StreamEvent`.

        It ends after the event `end`, and without one when the run failed or was cancelled before the node closed.
        Where it is left earlier, close it, from any thread, or use it in a `with`. What is there already comes without
        what was taken back since.

        Args:
            node: its name; default: the output node.
            after: the id of the last event already seen.
            follow: False: what is there now, and no more.
            timeout_s: give up waiting after so long; what is there already is given all the same.

        Raises:
            InputError: the workflow has no such node, a mixture asks it and hears its answers, or `after` is no id of
                its events.
            WaitTimeout: the time is over, from the iterator.
        """
        patience = self._patience(node, timeout_s if follow else None)
        open_part = partial(self._part, node, after, patience)
        ledger, stands = self._process.ledger, self.record
        return PatientReading(ledger, open_part, follow=follow, stands=stands, patience=patience)

    def astream(
        self,
        node: str | None = None,
        *,
        after: str | None = None,
        follow: bool = True,
        timeout_s: float | None = None,
    ) -> AsyncReading[StreamEvent]:
        """`stream` for coroutines: `async for`, in an `async with` where it is left earlier. Its first event raises."""
        patience = self._patience(node, timeout_s if follow else None)
        open_part = partial(self._part, node, after, patience)
        ledger, stands = self._process.ledger, self.record
        return PatientAsyncReading(ledger, open_part, follow=follow, stands=stands, patience=patience)

    def _patience(self, node: str | None, timeout_s: float | None) -> Patience | None:
        if timeout_s is None:
            return None
        told = "the output node" if node is None else f"node {node!r}"
        what = f"{told} of run {self.id} has not ended after {timeout_s:g} s; the run goes on"
        return Patience(time.monotonic() + timeout_s, what)

    def _raw_part(self, node: str | None, after: str | None) -> Part[StreamEvent]:
        return self._parts_of(node, after)[0]

    def _part(self, node: str | None, after: str | None, patience: Patience | None) -> Part[StreamEvent]:
        """How a node is read by who wants what stands."""
        part, source, read = self._parts_of(node, after)
        is_ordered, is_fresh = read.for_each is None, after is None
        return Standing(part, source, is_ordered=is_ordered, is_fresh=is_fresh, patience=patience)

    def _parts_of(self, node: str | None, after: str | None) -> tuple[Part[StreamEvent], Source, NodePlan]:
        """How a node is read, where it is, and what it is."""
        prepared, process = self._process.plan_of(self.id), self._process
        number = prepared.plan.output if node is None else _number_of(prepared.plan, node)
        read = prepared.plan.nodes[number]
        self._check_has_output(prepared.plan, number)
        source = Source(process.ledger, process.payloads, self.id, number, read.name)
        part = part_of(source, read, is_read=bool(prepared.readers(str(number))), after=after)
        return part, source, read

    def _check_has_output(self, plan: Plan, number: int) -> None:
        asker = plan.nodes[number].asked_by
        if asker is not None:
            mixture = plan.nodes[asker].name
            raise InputError(
                f"node {plan.nodes[number].name!r} has no output of its own: the mixture {mixture!r} hears it; read "
                f"that, or what each of its experts said: mosaic explain {self.id} --node {mixture}"
            )

    def wait(self, timeout_s: float | None = None, *, no_worker_s: float | None = 5.0) -> RunRecord:
        """Waits for the run's end.

        Args:
            timeout_s: give up waiting after so long; the run goes on.
            no_worker_s: give up when for so long nobody serves a queue that the run waits for; None: keep waiting.

        Raises:
            WaitTimeout: the time is over.
            NoWorker: a queue has no worker; the message names it.
        """
        client, keys = self._process.client, self._process.ledger.keys
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        unserved_since: float | None = None
        while self.record().status == "running":
            pause_s = min(
                WORKER_CHECK_S,
                WORKER_CHECK_S if no_worker_s is None else max(no_worker_s, 0.05),
                WORKER_CHECK_S if deadline is None else max(deadline - time.monotonic(), 0.001),
            )
            if await_end(client, keys, self.id, block_ms=math.ceil(pause_s * 1000)):
                break
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise WaitTimeout(
                    f"run {self.id} is not over after {timeout_s:g} s; it goes on; mosaic explain {self.id} "
                    "tells what it waits for"
                )
            unserved = self.unserved_queues() if no_worker_s is not None else []
            unserved_since = (unserved_since or now) if unserved else None
            if unserved_since is not None and now - unserved_since >= (no_worker_s or 0.0):
                raise self.no_worker(unserved)
        return self.record()

    async def await_end(self, timeout_s: float | None = None) -> RunRecord:
        """`wait` for coroutines."""
        return await asyncio.to_thread(self.wait, timeout_s)

    def unserved_queues(self) -> list[str]:
        """The queues that this run waits for and nobody serves. Calls that limits hold up wait for those alone."""
        waiting = [call for call in self.live_calls() if call.state != "claimed"]
        queues = {call.queue for call in waiting}
        unplaced = [call.call for call in waiting if call.queue == ROUTED and call.state != "idle"]
        if not self._are_unserved(unplaced):
            queues.discard(ROUTED)
        return sorted(queues - self._served_queues()) if queues else []

    def _are_unserved(self, calls: Sequence[str]) -> bool:
        """Whether there is nobody to whom the router could send one of these calls, as far as it has said."""
        found = sent_of(self._process.ledger, self.id, calls)
        return any(sent is None or sent.is_unserved for sent in found)

    def no_worker(self, queues: list[str]) -> NoWorker:
        """The error that nobody serves these queues, with what helps until the run's end."""
        served = self._served_queues()
        later = {node.queue for node in self.plan().nodes} - served - {ROUTED}
        return no_worker(queues, self.id, later=later, served=served)

    def _served_queues(self) -> set[str]:
        alive = live_processes(self._process.client, self._process.ledger.keys)
        return {queue for process in alive for queue in process.queues}

    def result(self, timeout_s: float | None = None) -> Any:
        """Waits for the end and gives the output of the output node; None when that node was skipped.

        Raises:
            RunFailed: the run failed; the message names node, call and cause.
            RunCancelled: it was cancelled.
            WaitTimeout, NoWorker: as `wait`.
        """
        record = self.wait(timeout_s)
        if record.status == "failed":
            raise RunFailed(record.error)
        if record.status == "cancelled":
            raise RunCancelled(record.error or "the run was cancelled")
        return self.output()

    def output(self) -> Any:
        """The output of the output node of a run that is done; None when that node was skipped.

        Raises:
            KeyError: the node has not closed.
        """
        plan = self.plan()
        return self.node_output(plan.nodes[plan.output].name)

    async def aresult(self, timeout_s: float | None = None) -> Any:
        """`result` for coroutines."""
        return await asyncio.to_thread(self.result, timeout_s)

    def explain(self, view: RunView | None = None) -> list[Explanation]:
        """For each node that is not over, what it waits for; `str` of each is a sentence.

        Args:
            view: the run's, where it is at hand.
        """
        process, plan = self._process, self.plan()
        view = self.view() if view is None else view
        return explain(
            plan,
            view,
            self.live_calls(),
            live_processes(process.client, process.ledger.keys),
            now_ms=server_ms(process.client),
            said=said(process.ledger, plan, view),
            engines=engines(process.client, keys=process.ledger.keys),
            sweep_s=process.settings.sweep_s,
        )

    def node_output(self, name: str) -> Any:
        """What a closed node put out; None when it was skipped.

        Raises:
            KeyError: the workflow has no such node, or it has not closed.
            InputError: a mixture asks it and hears its answers.
        """
        plan = self.plan()
        numbers = {node.name: number for number, node in enumerate(plan.nodes)}
        self._check_has_output(plan, numbers[name])
        envelope = self._process.ledger.outputs(self.id, [str(numbers[name])])[0]
        if envelope is None:
            raise KeyError(f"node {name!r} of run {self.id} has no output yet")
        if self._process.payloads.is_skipped(envelope) is not None:
            return None
        return self._process.payloads.unpack(self.id, envelope)

    def rerun(self, node: str) -> None:
        """Runs a node and all that depends on it again, in a new epoch; the rest is kept. The run may be over or not.

        Raises:
            InputError: the workflow has no such node.
            UnknownRun: the run is past its retention.
        """
        plan = self._process.plan_of(self.id)
        number = _number_of(plan.plan, node)
        done = False
        while not done:  # the run may end, or run again, meanwhile
            is_over = self.record().status != "running"
            cut_off = self._open_nodes(plan.plan) if is_over else set[int]()  # they have no call any more
            again = redo_of(plan, {number, *cut_off})
            done = self._process.redo(self.id, again, holder=self._process.holder, is_over=is_over)

    def _open_nodes(self, plan: Plan) -> set[int]:
        """The nodes that never closed; whom mixtures ask is over with these."""
        numbers = [number for number, node in enumerate(plan.nodes) if node.asked_by is None]
        outputs = self._process.ledger.outputs(self.id, [str(number) for number in numbers])
        return {number for number, output in zip(numbers, outputs, strict=True) if output is None}

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Ends the run, durably: whoever comes later is told. False when it is already over."""
        return self._process.ledger.end_run(self.id, "cancelled", visible(bounded(reason)))
