"""Runs one call: reads what it needs, decides whether it runs at all, runs the tool, task or agent.

Nothing here touches the ledger; the driver records what comes out.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import random
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from celery.exceptions import Ignore, Reject, Retry
from redis.exceptions import RedisError

from mosaic_queues.errors import (
    CallError,
    CallLost,
    CallTimeout,
    EngineError,
    MosaicError,
    PayloadError,
    ToolError,
)
from mosaic_queues.ledger import Claim, Usage
from mosaic_tasks.definition.plan import INPUTS, ITEM, Ref
from mosaic_tasks.definition.references import read
from mosaic_tasks.definition.templates import evaluate
from mosaic_tasks.execution.agents import run_agent
from mosaic_tasks.execution.interrupting import Interrupted
from mosaic_tasks.execution.prepared import INPUTS_CALL, CallId, PreparedNode, PreparedPlan
from mosaic_tasks.execution.process import Process

VALUES_KEPT = 4096
"""Decoded outputs that an execution keeps at hand."""


VALUES_READ = 200
"""Outputs that come with a claim; more are fetched in a trip of their own."""


class Value(NamedTuple):
    """A call ended with a value, as an envelope; `shown` is its beginning, for people; an agent's `usage`."""

    envelope: bytes
    shown: str
    usage: Usage | None = None


class Skip(NamedTuple):
    """A call, and with it its node, is skipped."""

    reason: str


class Expand(NamedTuple):
    """An opening call found `size` items to fan out over."""

    size: int


class Failure(NamedTuple):
    """A call failed; `usage` is what an agent spent all the same."""

    error: str
    retryable: bool
    usage: Usage | None = None


Outcome = Value | Skip | Expand | Failure


class Execution:
    """The calls of one run in one process: shares the values they read."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan) -> None:
        self.process, self.run_id, self.plan = process, run_id, plan
        self._decoded: dict[int, Any] = {}

    # -- before the call ---------------------------------------------------------------------------------------

    def prepare(self, claim: Claim) -> Outcome | Work:
        """What a call comes to without running anything, or the work to run."""
        call = CallId(claim.call)
        node = self.plan.node(call.node)
        if claim.losses >= self.process.settings.max_losses:
            return failure(node, claim, CallLost(f"the process that ran it died {claim.losses} times"))
        try:
            return self._prepare(claim, call, node)
        except RedisError:
            raise
        except Exception as error:  # noqa: BLE001 - a condition or a path in the definition may raise anything
            return failure(node, claim, error)

    def _prepare(self, claim: Claim, call: CallId, node: PreparedNode) -> Outcome | Work:
        self._load(node.required + node.optional)
        if call.closes:
            return self._value(self._collect(node))
        if call.item is None:
            skip = self._skip(node)
            if skip is not None:
                return skip
            if node.plan.for_each is not None:
                return Expand(len(self._items(node)))
        return self._work(claim, call, node)

    def _skip(self, node: PreparedNode) -> Skip | None:
        if node.plan.when is not None and not evaluate(node.plan.when, self._names(node, None)):
            return Skip(f"its condition {node.plan.when!r} is false")
        for source in node.required:
            if self._decoded.get(source, _MISSING) is _SKIPPED:
                return Skip(f"{self.plan.label(source)} was skipped")
        return None

    def _work(self, claim: Claim, call: CallId, node: PreparedNode) -> Work:
        item = self._items(node)[call.item] if call.item is not None else None
        arguments = _own_copy(node.arguments(lambda source: self._source(source, item)))
        names = {**self._names(node, item), **arguments} if node.plan.agent is not None else {}
        return Work(claim, call, node, arguments, names)

    # -- values ------------------------------------------------------------------------------------------------

    def absent(self, calls: Iterable[str]) -> list[str]:
        """The outputs that these calls read and that are not at hand; the ledger sends them with the claims."""
        nodes = [self.plan.node(number) for number in dict.fromkeys(CallId(call).node for call in calls)]
        sources = dict.fromkeys(source for node in nodes for source in node.required + node.optional)
        named = [_output_call(source) for source in sources if source not in self._decoded]
        return [call for call in named if (self.run_id, call) not in self.process.values][:VALUES_READ]

    def fetch(self, calls: Iterable[str]) -> None:
        """Gets what is absent for these calls, in one round trip."""
        absent = self.absent(calls)
        for call, envelope in zip(absent, self.process.ledger.outputs(self.run_id, absent), strict=True):
            if envelope is not None:
                self.process.remember_value(self.run_id, call, envelope)

    def _load(self, sources: Sequence[int]) -> None:
        """Fetches the outputs of these producers in one round trip, those not at hand."""
        if len(self._decoded) > VALUES_KEPT:
            self._decoded.clear()
        missing = [source for source in sources if source not in self._decoded]
        if not missing:
            return
        calls = [_output_call(source) for source in missing]
        at_hand = [self.process.values.get((self.run_id, call)) for call in calls]
        absent = [call for call, envelope in zip(calls, at_hand, strict=True) if envelope is None]
        fetched = iter(self.process.ledger.outputs(self.run_id, absent))
        envelopes = [next(fetched) if envelope is None else envelope for envelope in at_hand]
        payloads = self.process.payloads
        present: list[bytes] = []
        for call, envelope in zip(calls, envelopes, strict=True):
            if envelope is None:
                raise ToolError(f"the output of call {call!r} is gone: the run is over or past its retention")
            self.process.remember_value(self.run_id, call, envelope)
            present.append(envelope)
        wanted = [e for e in present if payloads.is_skipped(e) is None]
        values = iter(payloads.unpack_many(self.run_id, wanted))
        for source, envelope in zip(missing, present, strict=True):
            self._decoded[source] = _SKIPPED if payloads.is_skipped(envelope) is not None else next(values)

    def _source(self, source: int, item: Any) -> Any:
        value = item if source == ITEM else self._decoded[source]
        return None if value is _SKIPPED else value

    def _read(self, ref: Ref, item: Any) -> Any:
        value = self._source(ref.source, item)
        return None if value is None else read(ref, value, self.plan.label)

    def _names(self, node: PreparedNode, item: Any) -> Mapping[str, Any]:
        return {name: self._read(ref, item) for name, ref in node.plan.names.items()}

    def _items(self, node: PreparedNode) -> Sequence[Any]:
        """The list that a fan-out goes over."""
        ref = node.plan.for_each
        assert ref is not None
        items = self._read(ref, None)
        if not isinstance(items, list):
            raise ToolError(f"for_each needs a list, and got {type(items).__name__}: {str(items)[:80]!r}")
        most = self.process.settings.max_items
        if len(items) > most:
            raise ToolError(
                f"for_each over {len(items)} items, at most {most}; split the list, or set MOSAIC_MAX_ITEMS"
            )
        return items

    def _collect(self, node: PreparedNode) -> list[Any]:
        """The results of all items in order; None for one that was skipped."""
        calls = [f"{node.number}.{item}" for item in range(len(self._items(node)))]
        envelopes = [envelope or b"" for envelope in self.process.ledger.outputs(self.run_id, calls)]
        payloads = self.process.payloads
        skipped = [payloads.is_skipped(envelope) is not None for envelope in envelopes]
        wanted = [e for e, skip in zip(envelopes, skipped, strict=True) if not skip]
        values = iter(payloads.unpack_many(self.run_id, wanted))
        return [None if skip else next(values) for skip in skipped]

    def _value(self, value: Any) -> Value:
        return Value(self.process.payloads.pack(self.run_id, value), _shown(value))

    # -- the call ----------------------------------------------------------------------------------------------

    def run(self, work: Work) -> Outcome:
        """Runs a tool or task in this thread."""
        try:
            if work.node.plan.kind == "task":
                result = self._run_task(work)
            else:
                result = work.node.tool.function(**work.node.tool.typed(work.arguments))
                result = list(result) if work.node.tool.mode == "generator" else result
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is its call's failure
            return failure(work.node, work.claim, error)
        self._end_twin()
        return self._outcome(work, result)

    def _end_twin(self) -> None:
        """A tool that forked and returned in both processes: only the one that claimed goes on."""
        if os.getpid() != self.process.pid:
            os._exit(0)

    def _outcome(self, work: Work, result: Any, usage: Usage | None = None) -> Outcome:
        """The value, or a failure when it cannot be stored; a server that is away is no failure of the call."""
        try:
            return self._value(result)._replace(usage=usage)
        except PayloadError as error:
            return failure(work.node, work.claim, error)._replace(usage=usage)

    def _run_task(self, work: Work) -> Any:
        app = self.process.app
        task = app.tasks.get(work.node.plan.target)
        if task is None:
            raise ToolError(
                f"this worker knows no Celery task {work.node.plan.target!r}; start a worker of the app that defines "
                f"it, with mosaic_tasks.install(app), on queue {work.node.plan.queue!r}"
            )
        return task(**work.arguments)

    async def run_async(self, work: Work) -> Outcome:
        """Runs an agent or a coroutine tool on the event loop."""
        agent, usage = work.node.plan.agent, None
        try:
            async with asyncio.timeout(work.node.plan.timeout_s):
                if agent is None:
                    result = await self._await_tool(work)
                else:
                    answer = await run_agent(agent, work.names, timeout_s=work.node.plan.timeout_s)
                    result, usage = answer.value, _usage(work, answer.model, answer.usage)
        except TimeoutError:
            return failure(work.node, work.claim, timed_out(work.node))
        except EngineError as error:
            spent = _usage(work, error.model, error.usage) if error.usage is not None else None
            return failure(work.node, work.claim, error)._replace(usage=spent)
        except (asyncio.CancelledError, Interrupted):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is its call's failure
            return failure(work.node, work.claim, error)
        return self._outcome(work, result, usage)

    async def _await_tool(self, work: Work) -> Any:
        result = work.node.tool.function(**work.node.tool.typed(work.arguments))
        if inspect.isasyncgen(result):
            return [item async for item in result]
        return await result


def _usage(work: Work, model: str, used: Any) -> Usage:
    return Usage(work.claim.call, str(model), used.input_tokens, used.output_tokens, used.cost_usd)


def _output_call(source: int) -> str:
    """Under which call the ledger keeps the output of a source."""
    return INPUTS_CALL if source == INPUTS else str(source)


class _Latest(threading.local):
    execution: Execution | None = None


_latest = _Latest()


def execution_of(process: Process, run_id: str, plan: PreparedPlan) -> Execution:
    """The execution of a run in this thread. The latest is kept: a fan-out's next message reads the same list."""
    latest = _latest.execution
    if latest is None or latest.run_id != run_id or latest.process is not process:
        latest = _latest.execution = Execution(process, run_id, plan)
    return latest


class Work(NamedTuple):
    """A call with its arguments, ready to run."""

    claim: Claim
    call: CallId
    node: PreparedNode
    arguments: Mapping[str, Any]
    names: Mapping[str, Any]


def timed_out(node: PreparedNode) -> CallTimeout:
    """The error of a call that ran for longer than its node allows."""
    return CallTimeout(f"it ran longer than its timeout of {node.plan.timeout_s:g} s")


LARGEST_LOG = 100.0
"""Beyond e to this power any pause is the largest."""


def retry_pause(node: PreparedNode, failures: int) -> float | None:
    """Seconds to the next attempt after `failures` earlier ones, None when the attempts are used up."""
    retry = node.plan.retry
    if failures + 1 >= retry.attempts:
        return None
    grown = failures * math.log(max(retry.factor, 1.0))
    pause = retry.delay_s * retry.factor**failures if grown < LARGEST_LOG else retry.max_delay_s
    return min(pause * random.uniform(0.8, 1.2), retry.max_delay_s)  # noqa: S311 - spreads retries


def failure(node: PreparedNode, claim: Claim, error: BaseException) -> Failure:
    """A failure that says which node and call, what was raised, and where."""
    item = CallId(claim.call).item
    where = f"node {node.name!r}" + (f", item {item}" if item is not None else "")
    return Failure(f"{where}: {_told(error)}", _is_retryable(error))


_OURS = os.path.dirname(__file__) + os.sep


def _told(error: BaseException) -> str:
    if isinstance(error, MosaicError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        return f"ToolError: it called sys.exit({error.code!r})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OURS)]
    place = f" (in {frames[-1].name}, line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"ToolError: {type(error).__name__}: {error}{place}"


def _is_retryable(error: BaseException) -> bool:
    if isinstance(error, CallError):
        return error.retryable
    return not isinstance(error, (PayloadError, SystemExit, Ignore, Reject)) or isinstance(error, Retry)


def _own_copy(value: Any) -> Any:
    """A copy that the caller may change: values are shared between the calls of a process."""
    if isinstance(value, (list, dict)):
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    return value


def _shown(value: Any) -> str:
    return (
        repr(value)
        if isinstance(value, (int, float, bool, type(None)))
        else f"{type(value).__name__}: {str(value)[:120]}"
    )


class _Marker:
    """A value that no tool can return."""


_SKIPPED = _Marker()
_MISSING = _Marker()
