"""Runs one call: reads what it needs, decides whether it runs at all, runs the tool, task, agent or mailbox.

The driver records what comes out. Only chunks, and what a mailbox commits, are written from here.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from mosaic_queues.errors import CallLost, ClaimLost, EngineError, EngineGone, PayloadError, ToolError
from mosaic_queues.streams import Drain
from mosaic_queues.transitions import Claim, Usage
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.definition.templates import evaluate
from mosaic_tasks.execution.agents import AgentAnswer
from mosaic_tasks.execution.burying import bury_lost
from mosaic_tasks.execution.endings import Endings
from mosaic_tasks.execution.inputs import Early, Inputs, SkippedError
from mosaic_tasks.execution.interrupting import Interrupted
from mosaic_tasks.execution.mailboxes import Mailboxes
from mosaic_tasks.execution.mixtures.experts import asked, failed
from mosaic_tasks.execution.observing import Observing
from mosaic_tasks.execution.outcomes import (
    Ending,
    Expand,
    Failure,
    Outcome,
    Overtaken,
    Returned,
    Skip,
    Unrecorded,
    Value,
    Work,
    failure,
    shown,
    timed_out,
    usage_of,
)
from mosaic_tasks.execution.placing.asking import Asking
from mosaic_tasks.execution.prepared import CallId, PreparedNode, PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.streams.listening import Listener
from mosaic_tasks.execution.streams.publishing import Publication
from mosaic_tasks.execution.waiting import wait_in_a_thread
from mosaic_tasks.mixtures.mixture import Mixture
from mosaic_tasks.observability.current import working_on

SMALL = 4096
"""Characters, bytes and parts of a result that is packed by whoever takes it: some 20 us."""


class Execution:
    """The calls of one run in one process: shares the values they read."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan, *, epoch: int = 0) -> None:
        self.process, self.run_id, self.plan, self.epoch = process, run_id, plan, epoch
        self.inputs = Inputs(process, run_id, plan, epoch=epoch)
        self.endings = Endings(process, run_id, plan)
        self._asking = Asking(process, run_id, plan, epoch=epoch)
        self._mailboxes = Mailboxes(process, run_id, plan, self.inputs, self._asking)
        self._publications: dict[Claim, Publication] = {}
        self.observing = Observing(process, run_id, plan)

    def go_on_from(self, earlier: Execution) -> None:
        """Calls that were claimed in an earlier epoch, and that it left alone, end in this one."""
        self._publications, self.observing = earlier._publications, earlier.observing

    # -- before the call ---------------------------------------------------------------------------------------

    def prepare(self, claim: Claim, *, holder: str, opened: Drain | None = None) -> Outcome | Work:
        """What a call comes to without running anything, or the work to run."""
        prepared = self._prepared(claim, holder)
        if isinstance(prepared, Work):
            return prepared._replace(opened=opened)
        self.release(claim)
        return prepared

    def release(self, claim: Claim) -> None:
        """A call is no load of its target any more."""
        self._asking.release(claim)

    def _prepared(self, claim: Claim, holder: str) -> Outcome | Work:
        call = CallId(claim.call)
        node = self.plan.node(call.node)
        if claim.losses >= self.process.settings.max_losses:
            lost = CallLost(f"the process that ran it died {claim.losses} times")
            bury_lost(self.process, self.run_id, claim, queue=node.plan.queue, reason=lost)
            return failure(node, claim, lost)
        try:
            return self._prepare(claim, call, node, holder)
        except SkippedError as error:
            return Skip(str(error))
        except ClaimLost as error:
            return Unrecorded(str(error), is_lost=True)
        except RedisError:
            raise
        except Exception as error:  # noqa: BLE001 - a condition or a path in the definition may raise anything
            return failure(node, claim, error)

    def _prepare(self, claim: Claim, call: CallId, node: PreparedNode, holder: str) -> Outcome | Work:
        inputs = self.inputs
        inputs.load(node.required + node.optional)
        if call.closes:
            return self._closed(call, node)
        early = inputs.early(node)
        if call.item is None:
            if reason := self._skip_reason(node, early):
                return Skip(reason)
            if node.plan.for_each is not None and not call.reads:
                return Expand(len(inputs.items(node, early)))
        if call.reads:
            return Work(claim, call, node, {}, {}, {**inputs.loaded(node), **early}, holder)
        item = inputs.item(call.own, node, call.item, early) if call.item is not None else None
        return Work(claim, call, node, *inputs.given(node, item, early), early, holder)

    def _closed(self, call: CallId, node: PreparedNode) -> Value:
        """The results of a fan-out."""
        if node.plan.grows:
            self.inputs.load_list(node)
        results = self.inputs.collect(node, self.inputs.early(node))
        return self._value(results, self.endings.of_value(call, results))

    def _skip_reason(self, node: PreparedNode, early: Early) -> str | None:
        if node.plan.when is not None and not evaluate(node.plan.when, self.inputs.names(node, None, early)):
            return f"its condition {node.plan.when!r} is false"
        skipped = self.inputs.skipped(node)
        return None if skipped is None else f"{self.plan.label(skipped)} was skipped"

    def _value(self, value: Any, ending: Ending) -> Value:
        return Value(self.process.payloads.pack(self.run_id, value), shown(value), ending)

    # -- the call ----------------------------------------------------------------------------------------------

    def run(self, work: Work) -> Outcome:
        """Runs a tool, a task, or a mailbox that needs no event loop, in this thread."""
        with working_on(self.observing.of(work.claim)):
            return self._run(work)

    def _run(self, work: Work) -> Outcome:
        try:
            if work.call.reads:
                return at_once(self._mailboxes.run(work))
            publication = self._publication(work)
            if work.node.plan.kind == "task":
                result = self._run_task(work)
            else:
                result = work.node.tool.function(**work.node.tool.typed(work.arguments))
                result = self._drawn(result, publication) if work.node.tool.mode == "generator" else result
        except Interrupted:
            raise
        except ClaimLost as error:
            return Unrecorded(str(error), is_lost=True)
        except BaseException as error:
            if work.call.reads and isinstance(error, RedisError):  # what a fold raises is told as such
                raise
            return self._failure(work, error)  # whatever a tool raises is its call's failure
        self._end_twin()
        return self._outcome(work, result, publication=publication)

    def _publication(self, work: Work) -> Publication | None:
        """What publishes the call's chunks, where its node does so while it runs."""
        if (
            not work.node.plan.publishes
            or work.call.item is not None
            or work.call.reads
            or work.call.is_shadow
        ):
            return None
        publication = Publication(self.process, self.run_id, self.plan, work.claim, holder=work.holder)
        self._publications[work.claim] = publication
        return publication

    def abandon(self, claim: Claim) -> None:
        """A call failed: nothing more of what it said is published."""
        publication = self._publications.pop(claim, None)
        if publication is not None:
            publication.abandon()

    def _drawn(self, generator: Iterable[Any], publication: Publication | None) -> list[Any]:
        """All that a generator yields, published as it comes."""
        drawn = []
        for item in generator:
            drawn.append(item)
            if publication is not None:
                publication.items([item])
                if publication.is_ahead:
                    publication.wait_for_readers()
        return drawn

    def _end_twin(self) -> None:
        """A tool that forked and returned in both processes: only the one that claimed goes on."""
        if os.getpid() != self.process.pid:
            os._exit(0)

    def _outcome(
        self,
        work: Work,
        result: Any,
        usage: Usage | None = None,
        publication: Publication | None = None,
    ) -> Value | Failure | Unrecorded:
        """The value, or a failure when it cannot be stored; a server that is away is no failure of the call."""
        try:
            ending = self.endings.of_value(work.call, result, publication)
            value = self._value(result, ending)._replace(usage=usage)
        except ClaimLost as error:
            return Unrecorded(str(error), usage, is_lost=True)
        except PayloadError as error:
            return failure(work.node, work.claim, error)._replace(usage=usage)
        self._publications.pop(work.claim, None)
        return value

    def _run_task(self, work: Work) -> Any:
        app = self.process.app
        task = app.tasks.get(work.node.plan.target)
        if task is None:
            raise ToolError(
                f"this worker knows no Celery task {work.node.plan.target!r}; start a worker of the app that defines "
                f"it, with mosaic_tasks.install(app), on queue {work.node.plan.queue!r}"
            )
        return task(**work.arguments)

    def batch_since(self, work: Work) -> float | None:
        """When a mailbox began with its batch (monotonic), None between two."""
        return self._mailboxes.batch_since(work.claim)

    def _failure(self, work: Work, error: BaseException) -> Failure:
        """Of a mailbox, each batch has its attempts."""
        told = failure(work.node, work.claim, error)
        is_first = work.call.reads and self._mailboxes.went_on(work.claim)
        return told._replace(is_first=is_first, usage=self.spent(work))

    def spent(self, work: Work) -> Usage | None:
        """What a call that was broken off has used of an engine; told once."""
        spent = self._asking.spent(work.claim)
        return None if spent is None else usage_of(work, *spent)

    async def run_async(self, work: Work) -> Outcome:
        """Runs an agent or a coroutine tool on the event loop of this thread."""
        return (await self.answered(work))()

    async def answered(self, work: Work) -> Callable[[], Outcome]:
        """Runs an agent or a coroutine tool on an event loop that others share. What comes of it is left to whom may
        block: what a publication has left is sent. A result that is not small is packed and stored in a thread of its
        own, since who takes outcomes takes those of many runs."""
        async with self._asking.counted(work.claim):
            with working_on(self.observing.of(work.claim)):
                return await self._answered(work)

    async def _answered(self, work: Work) -> Callable[[], Outcome]:
        agent, usage, answer = work.node.plan.agent, None, None
        limit = asyncio.timeout(None if work.call.reads else work.node.plan.timeout_s)
        try:
            async with limit:
                if work.call.reads:
                    outcome = await self._mailboxes.run(work)
                    return lambda: outcome
                publication = self._publication(work)
                if agent is None:
                    result = await self._await_tool(work, publication)
                elif (mixture := self._asked_by(work)) is not None:
                    result, answer = await asked(self._asking, work, agent, mixture)
                    usage = usage_of(work, answer.model, answer.usage, answer.finish_reason)
                else:
                    answer = await self._ask(work, agent, publication)
                    usage = usage_of(work, answer.model, answer.usage, answer.finish_reason)
                    result = answer.value
        except TimeoutError as error:
            return partial(self._failure, work, timed_out(work.node) if limit.expired() else error)
        except EngineGone as error:
            return partial(self._returned, work, error)
        except EngineError as error:
            spent = usage_of(work, error.model, error.usage) if error.usage is not None else None
            failed = self._failure(work, error)._replace(usage=spent)
            return lambda: failed
        except (asyncio.CancelledError, Interrupted):
            raise
        except ClaimLost as error:
            return partial(Unrecorded, str(error), is_lost=True)
        except RedisError as error:
            if work.call.reads:  # what a fold raises is told as such
                raise
            return partial(self._failure, work, error)
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is its call's failure
            return partial(self._failure, work, error)
        if work.call.is_shadow and answer is not None:
            return partial(self._overtake, work, result, answer)
        finish = partial(self._outcome, work, result, usage, publication)
        if is_small(result):
            return finish
        try:
            outcome = await asyncio.to_thread(finish)
        except Exception:  # noqa: BLE001 - told, or tried again, by whoever takes the outcome
            return finish
        return lambda: outcome

    def _asked_by(self, work: Work) -> Mixture | None:
        """The mixture that asks, where one does."""
        asker = work.node.plan.asked_by
        return None if asker is None else self.plan.plan.nodes[asker].mixture

    def in_spite(self, claim: Claim, error: str) -> dict[str, Any] | None:
        """What a call that failed for good comes to where a mixture made it, which goes on without it."""
        call = CallId(claim.call)
        node = self.plan.node(call.node)
        if node.plan.asked_by is None or call.item is None:
            return None
        return failed(self.inputs.item(claim.call, node, call.item, {}), error)

    def _returned(self, work: Work, error: EngineGone) -> Returned:
        self._mailboxes.went_on(work.claim)
        self._publications.pop(work.claim, None)
        return Returned(str(error), error.began)

    async def _await_tool(self, work: Work, publication: Publication | None) -> Any:
        result = work.node.tool.function(**work.node.tool.typed(work.arguments))
        if not inspect.isasyncgen(result):
            return await result
        drawn = []
        async for item in result:
            drawn.append(item)
            if publication is not None:
                publication.items([item])
                if publication.is_ahead:
                    await wait_in_a_thread(publication.wait_for_readers)
        return drawn

    async def _ask(self, work: Work, agent: AgentPlan, publication: Publication | None) -> AgentAnswer:
        """An agent's answer, published as it comes."""
        if publication is None:
            return await self._asking.ask(work, agent, work.names)
        listener = self._listener(work, agent, publication)
        heard = {"on_delta": listener.hear, "prefix": publication.earlier_text()}
        answer = await self._asking.ask(work, agent, work.names, **heard)
        listener.settle(answer.text, answer.value)
        return answer

    def _listener(self, work: Work, agent: AgentPlan, publication: Publication) -> Listener:
        return Listener(
            publication,
            fields=list(self.plan.announced(work.node.number)),
            lists=[path for path in self.plan.streamed_paths(work.node.number) if path],
            schema=agent.output_schema,
        )

    def _overtake(self, work: Work, result: Any, answer: AgentAnswer) -> Outcome:
        """A shadow has its answer: from here on it is another attempt of the call itself, which says what the one
        before has not said, or has said otherwise.

        It is for whoever takes the outcome, after the shadow's own claim is looked for no more.
        """
        claim = self.process.ledger.overtake(self.run_id, work.claim, holder=work.holder)
        if claim is None:
            spent = usage_of(work, answer.model, answer.usage)
            return Unrecorded("the call was over before", spent, is_lost=True)
        own, agent = work._replace(claim=claim, call=CallId(claim.call)), work.node.plan.agent
        usage = usage_of(own, answer.model, answer.usage, answer.finish_reason)
        assert agent is not None
        try:
            publication = self._publication(own)
            if publication is not None:
                self._listener(own, agent, publication).settle(answer.text, answer.value)
            return Overtaken(claim, self._outcome(own, result, usage, publication))
        except ClaimLost as error:
            return Overtaken(claim, Unrecorded(str(error), usage, is_lost=True))
        except Interrupted:
            return Overtaken(claim, failure(work.node, claim, timed_out(work.node))._replace(usage=usage))


def is_small(value: Any, *, most: int = SMALL) -> bool:
    """Whether packing a value takes no time to speak of: it has at most so many characters, bytes and parts."""
    left, parts = most, [value]
    while parts:
        part = parts.pop()
        if not isinstance(part, (str, bytes, list, tuple, dict)):
            continue
        left -= len(part)
        if left < 0:
            return False
        if isinstance(part, dict):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, (list, tuple)):
            parts += part
    return True


def at_once(coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Runs a coroutine that awaits nothing which waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    raise RuntimeError(f"{coroutine!r} waits, and no event loop runs it")


class _Latest(threading.local):
    execution: Execution | None = None


_latest = _Latest()


def execution_of(process: Process, run_id: str, plan: PreparedPlan, *, epoch: int = 0) -> Execution:
    """The execution of a run in this thread. The latest is kept: a fan-out's next message reads the same list."""
    latest = _latest.execution
    is_same = latest is not None and (latest.run_id, latest.process, latest.plan) == (run_id, process, plan)
    if latest is None or not is_same or latest.epoch < epoch:
        latest = _latest.execution = Execution(process, run_id, plan, epoch=epoch)
    return latest
