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
    BindingError,
    CallError,
    CallLost,
    CallTimeout,
    ClaimLost,
    EngineError,
    MosaicError,
    PayloadError,
    ToolError,
)
from mosaic_queues.ledger import Claim, Field, Mark, Usage
from mosaic_tasks.definition.edges import SO_FAR
from mosaic_tasks.definition.folding import FoldOptions
from mosaic_tasks.definition.plan import INPUTS, ITEM, AgentPlan, Path, Ref
from mosaic_tasks.definition.references import read
from mosaic_tasks.definition.templates import evaluate
from mosaic_tasks.execution.agents import AgentAnswer, run_agent
from mosaic_tasks.execution.consuming import Applied, Folding, Growing, Stores
from mosaic_tasks.execution.content import ContentKind
from mosaic_tasks.execution.interrupting import Interrupted
from mosaic_tasks.execution.listening import Listener
from mosaic_tasks.execution.prepared import INPUTS_CALL, CallId, PreparedNode, PreparedPlan, stream_name
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.publishing import Publication

VALUES_KEPT = 4096
"""Decoded outputs that an execution keeps at hand."""


VALUES_READ = 200
"""Outputs that come with a claim; more are fetched in a trip of their own."""


class Value(NamedTuple):
    """A call ended with a value, as an envelope; `shown` is its beginning, for people; an agent's `usage`.

    Attributes:
        marks: what it tells those who read its streams.
        fields: the parts of it that calls wait for.
    """

    envelope: bytes
    shown: str
    usage: Usage | None = None
    marks: Sequence[Mark] = ()
    fields: Sequence[Field] = ()


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


class Read(NamedTuple):
    """A mailbox read what there was: it waits for more, or every item of its fan-out has its call."""

    shown: str
    usage: Usage | None = None


Outcome = Value | Skip | Expand | Failure | Read


class Execution:
    """The calls of one run in one process: shares the values they read."""

    def __init__(self, process: Process, run_id: str, plan: PreparedPlan, *, epoch: int = 0) -> None:
        self.process, self.run_id, self.plan, self.epoch = process, run_id, plan, epoch
        self._decoded: dict[int, Any] = {}
        self._grown: dict[str, Any] = {}

    # -- before the call ---------------------------------------------------------------------------------------

    def prepare(self, claim: Claim, *, holder: str) -> Outcome | Work:
        """What a call comes to without running anything, or the work to run."""
        call = CallId(claim.call)
        node = self.plan.node(call.node)
        if claim.losses >= self.process.settings.max_losses:
            return failure(node, claim, CallLost(f"the process that ran it died {claim.losses} times"))
        try:
            return self._prepare(claim, call, node, holder)
        except RedisError:
            raise
        except Exception as error:  # noqa: BLE001 - a condition or a path in the definition may raise anything
            return failure(node, claim, error)

    def _prepare(self, claim: Claim, call: CallId, node: PreparedNode, holder: str) -> Outcome | Work:
        self._load(node.required + node.optional)
        if call.closes:
            return self._closed(call, node)
        early = self._early(node)
        if isinstance(early, Skip):
            return early
        if call.item is None:
            skip = self._skip(node, early)
            if skip is not None:
                return skip
            if node.plan.for_each is not None and not call.reads:
                return Expand(len(self._items(node)))
        if call.reads:
            return Work(claim, call, node, {}, {}, early, holder)
        return self._work(claim, call, node, early, holder)

    def _closed(self, call: CallId, node: PreparedNode) -> Value:
        """The results of a fan-out."""
        if node.plan.grows:
            self._load([edge.source for edge in node.plan.edges if edge.kind == "for_each"])
        results = self._collect(node)
        marks, fields = self.endings(call, results)
        return self._value(results)._replace(marks=marks, fields=fields)

    def _early(self, node: PreparedNode) -> Mapping[int, Any] | Skip:
        """By producer that has not closed, the parts of its output that the node waited for, in their places."""
        if not node.fields:
            return {}
        wanted = [(source, path) for source, paths in node.fields.items() for path in paths]
        names = [stream_name(source, path) for source, path in wanted]
        envelopes = [envelope or b"" for envelope in self.process.ledger.outputs(self.run_id, names)]
        payloads = self.process.payloads
        for (source, _), envelope in zip(wanted, envelopes, strict=True):
            if (reason := payloads.is_missing(envelope)) is not None:
                raise BindingError(reason)
            if payloads.is_skipped(envelope) is not None:
                return Skip(f"{self.plan.label(source)} was skipped")
        early: dict[int, Any] = {}
        for (source, path), value in zip(wanted, payloads.unpack_many(self.run_id, envelopes), strict=True):
            early[source] = _placed(early.get(source), path, value)
        return early

    def _skip(self, node: PreparedNode, early: Mapping[int, Any]) -> Skip | None:
        if node.plan.when is not None and not evaluate(node.plan.when, self._names(node, None, early)):
            return Skip(f"its condition {node.plan.when!r} is false")
        for source in node.required:
            if self._decoded.get(source, _MISSING) is _SKIPPED:
                return Skip(f"{self.plan.label(source)} was skipped")
        return None

    def _work(
        self, claim: Claim, call: CallId, node: PreparedNode, early: Mapping[int, Any], holder: str
    ) -> Work:
        item = self._item(claim.call, node, call.item) if call.item is not None else None
        arguments, names = self._given(node, item, early)
        return Work(claim, call, node, arguments, names, early, holder)

    def _given(
        self, node: PreparedNode, item: Any, early: Mapping[int, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The arguments of a call, and the names that its templates see."""
        arguments = _own_copy(node.arguments(lambda source: self._source(source, item, early)))
        names = {**self._names(node, item, early), **arguments} if node.plan.agent is not None else {}
        return arguments, names

    def _item(self, call: str, node: PreparedNode, place: int) -> Any:
        """The item of a call of a fan-out."""
        if not node.plan.grows:
            return self._items(node)[place]
        if call not in self._grown:
            self._fetch_grown([call])
        return self._grown.pop(call)

    def _fetch_grown(self, calls: Sequence[str]) -> None:
        envelopes = [envelope or b"" for envelope in self.process.ledger.item_envelopes(self.run_id, calls)]
        values = self.process.payloads.unpack_many(self.run_id, envelopes)
        self._grown.update(zip(calls, values, strict=True))

    # -- values ------------------------------------------------------------------------------------------------

    def absent(self, calls: Iterable[str]) -> list[str]:
        """The outputs that these calls read and that are not at hand; the ledger sends them with the claims."""
        nodes = [self.plan.node(number) for number in dict.fromkeys(CallId(call).node for call in calls)]
        sources = dict.fromkeys(source for node in nodes for source in node.required + node.optional)
        named = [_output_call(source) for source in sources if source not in self._decoded]
        return [call for call in named if self._at_hand(call) is None][:VALUES_READ]

    def _at_hand(self, call: str) -> bytes | None:
        return self.process.value(self.run_id, self.epoch, call)

    def fetch(self, calls: Iterable[str]) -> None:
        """Gets what is absent for these calls, in one round trip; another one for items of fan-outs that grow."""
        grown = [
            call
            for call in calls
            if CallId(call).item is not None and self.plan.node(CallId(call).node).plan.grows
        ]
        if grown:
            self._fetch_grown(grown)
        absent = self.absent(calls)
        for call, envelope in zip(absent, self.process.ledger.outputs(self.run_id, absent), strict=True):
            if envelope is not None:
                self.process.remember_value(self.run_id, self.epoch, call, envelope)

    def _load(self, sources: Sequence[int]) -> None:
        """Fetches the outputs of these producers in one round trip, those not at hand."""
        if len(self._decoded) > VALUES_KEPT:
            self._decoded.clear()
        missing = [source for source in sources if source not in self._decoded]
        if not missing:
            return
        calls = [_output_call(source) for source in missing]
        at_hand = [self._at_hand(call) for call in calls]
        absent = [call for call, envelope in zip(calls, at_hand, strict=True) if envelope is None]
        fetched = iter(self.process.ledger.outputs(self.run_id, absent))
        envelopes = [next(fetched) if envelope is None else envelope for envelope in at_hand]
        payloads = self.process.payloads
        present: list[bytes] = []
        for call, envelope in zip(calls, envelopes, strict=True):
            if envelope is None:
                raise ToolError(f"the output of call {call!r} is gone: the run is over or past its retention")
            self.process.remember_value(self.run_id, self.epoch, call, envelope)
            present.append(envelope)
        wanted = [e for e in present if payloads.is_skipped(e) is None]
        values = iter(payloads.unpack_many(self.run_id, wanted))
        for source, envelope in zip(missing, present, strict=True):
            self._decoded[source] = _SKIPPED if payloads.is_skipped(envelope) is not None else next(values)

    def _source(self, source: int, item: Any, early: Mapping[int, Any]) -> Any:
        if source == ITEM:
            return item
        value = early[source] if source in early else self._decoded[source]
        return None if value is _SKIPPED else value

    def _read(self, ref: Ref, item: Any, early: Mapping[int, Any]) -> Any:
        value = self._source(ref.source, item, early)
        return None if value is None else read(ref, value, self.plan.label)

    def _names(self, node: PreparedNode, item: Any, early: Mapping[int, Any]) -> Mapping[str, Any]:
        return {name: self._read(ref, item, early) for name, ref in node.plan.names.items()}

    def _items(self, node: PreparedNode) -> Sequence[Any]:
        """The list that a fan-out goes over."""
        ref = node.plan.for_each
        assert ref is not None
        items = self._read(ref, None, {})
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
        publication = self._publication(work)
        try:
            if work.node.plan.kind == "task":
                result = self._run_task(work)
            else:
                result = work.node.tool.function(**work.node.tool.typed(work.arguments))
                result = self._drawn(result, publication) if work.node.tool.mode == "generator" else result
        except (Interrupted, ClaimLost):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is its call's failure
            return failure(work.node, work.claim, error)
        self._end_twin()
        return self._outcome(work, result, publication=publication)

    def _publication(self, work: Work) -> Publication | None:
        """What publishes the call's chunks, where its node does so while it runs."""
        if not work.node.plan.publishes or work.call.item is not None or work.call.reads:
            return None
        return Publication(self.process, self.run_id, self.plan, work.claim, holder=work.holder)

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
    ) -> Outcome:
        """The value, or a failure when it cannot be stored; a server that is away is no failure of the call."""
        try:
            marks, fields = self.endings(work.call, result, publication)
            return self._value(result)._replace(usage=usage, marks=marks, fields=fields)
        except PayloadError as error:
            return failure(work.node, work.claim, error)._replace(usage=usage)

    def endings(
        self, call: CallId, value: Any, publication: Publication | None = None
    ) -> tuple[list[Mark], list[Field]]:
        """What a call that ends with a value tells those who read along: marks of its streams, and parts of its
        output."""
        number = call.node
        if call.item is not None:
            readers = self.plan.readers(str(number))
            return ([Mark(str(number), "item", call.item, 1, readers)] if readers else []), []
        if publication is not None:
            parts = self._parts(number, value)
            return publication.finish(), publication.open_parts(parts)
        size = len(value) if isinstance(value, (list, str)) else 0
        streams = [stream_name(number, path) for path in self.plan.streamed_paths(number)]
        marks = [Mark(stream, "end", size, 0, self.plan.readers(stream)) for stream in streams]
        return marks, self._parts(number, value)

    def skip_endings(self, call: CallId, reason: str) -> tuple[list[Mark], list[Field]]:
        """The same of a call that is skipped."""
        marks, _ = self.endings(call, None)
        envelope = self.process.payloads.skipped(reason)
        return marks, [self._part(call.node, path, envelope) for path in self.plan.announced(call.node)]

    def replaced(self, claim: Claim, *, holder: str, value: Any) -> tuple[list[Mark], list[Field]]:
        """The same of a call that failed after it may have published: what it said is taken back for `value`."""
        call, node = CallId(claim.call), self.plan.node(CallId(claim.call).node)
        if not node.plan.publishes or call.item is not None:
            return self.endings(call, value)
        publication = Publication(self.process, self.run_id, self.plan, claim, holder=holder, resumes=True)
        if node.plan.publishes == "item" and isinstance(value, list):
            publication.items(value)
        elif node.plan.publishes == "text" and isinstance(value, str):
            publication.text(value)
        return publication.finish(), publication.open_parts(self._parts(call.node, value))

    def _parts(self, number: int, value: Any) -> list[Field]:
        """The parts of an output that calls wait for."""
        return [
            self._part(number, path, self._part_envelope(number, path, value))
            for path in self.plan.announced(number)
        ]

    def _part_envelope(self, number: int, path: Path, value: Any) -> bytes:
        payloads = self.process.payloads
        try:
            return payloads.pack(self.run_id, read(Ref(number, path), value, self.plan.label))
        except BindingError as error:
            return payloads.missing(f"it can no longer come: {error}")

    def _part(self, number: int, path: Path, envelope: bytes) -> Field:
        return Field(
            stream_name(number, path), envelope, [step.name for step in self.plan.announced(number)[path]]
        )

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
        limit = asyncio.timeout(work.node.plan.timeout_s)
        try:
            async with limit:
                if work.call.reads:
                    return await self._read_streams(work)
                publication = self._publication(work)
                if agent is None:
                    result = await self._await_tool(work, publication)
                else:
                    answer = await self._ask(work, agent, publication)
                    result, usage = answer.value, _usage(work, answer.model, answer.usage)
        except TimeoutError as error:
            return failure(work.node, work.claim, timed_out(work.node) if limit.expired() else error)
        except EngineError as error:
            spent = _usage(work, error.model, error.usage) if error.usage is not None else None
            return failure(work.node, work.claim, error)._replace(usage=spent)
        except (asyncio.CancelledError, Interrupted, ClaimLost):
            raise
        except RedisError as error:
            if work.call.reads:  # what a fold raises is told as such
                raise
            return failure(work.node, work.claim, error)
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is its call's failure
            return failure(work.node, work.claim, error)
        return self._outcome(work, result, usage, publication)

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
                    await asyncio.to_thread(publication.wait_for_readers)
        return drawn

    async def _ask(self, work: Work, agent: AgentPlan, publication: Publication | None) -> AgentAnswer:
        """An agent's answer, published as it comes."""
        timeout_s = work.node.plan.timeout_s
        if publication is None:
            return await run_agent(agent, work.names, timeout_s=timeout_s)
        listener = Listener(
            publication,
            fields=list(self.plan.announced(work.node.number)),
            lists=[path for path in self.plan.streamed_paths(work.node.number) if path],
            schema=agent.output_schema,
        )
        answer = await run_agent(
            agent, work.names, timeout_s=timeout_s, on_delta=listener.hear, prefix=publication.earlier_text()
        )
        listener.settle(answer.text, answer.value)
        return answer

    # -- mailboxes -----------------------------------------------------------------------------------------------

    def _box(self, work: Work) -> dict[str, Any]:
        """What every mailbox is made with."""
        payloads, run_id = self.process.payloads, self.run_id
        stores = Stores(
            self.process.ledger,
            pack=lambda value: payloads.pack(run_id, value),
            unpack=lambda envelopes: payloads.unpack_many(run_id, envelopes),
            publish=lambda groups: self.process.publish(run_id, self.plan, groups),
        )
        by = {edge.source: edge.by for edge in work.node.plan.edges}
        kinds = {
            stream: by[source] or self._kind(source, path)
            for stream, (source, path) in work.node.streams.items()
        }
        return {"holder": work.holder, "stores": stores, "streams": kinds, "batch": work.node.plan.batch}

    def _kind(self, source: int, path: Path) -> ContentKind:
        """What the chunks of a stream hold."""
        return "text" if self.plan.plan.nodes[source].publishes == "text" and not path else "item"

    def _growing(self, work: Work) -> Growing:
        number = work.node.number
        return Growing(
            self.run_id,
            work.claim,
            **self._box(work),
            number=number,
            queue=work.node.plan.queue,
            close=self.plan.close_of(number),
            readers=self.plan.readers(str(number)),
            most=self.process.settings.max_items,
        )

    def _folding(self, work: Work) -> tuple[Folding, list[Usage]]:
        """The mailbox of a fold or an agent, and what the agent will have used."""
        node, usages = work.node, list[Usage]()
        stream = stream_name(node.number)
        kind: ContentKind = "text" if node.plan.publishes == "text" else "item"
        options = FoldOptions() if node.plan.agent is not None else node.tool.fold or FoldOptions()

        async def apply(state: Any, batch: Mapping[str, Any]) -> Applied:
            arguments, names = self._given(node, None, {**work.early, **self._batches(node, batch)})
            if node.plan.agent is None:
                return await _folded(node, state, arguments, kind)
            answer = await run_agent(node.plan.agent, {**names, SO_FAR: state}, timeout_s=node.plan.timeout_s)
            usages.append(_usage(work, answer.model, answer.usage))
            return _grown_answer(state, answer.value, kind)

        folding = Folding(
            self.run_id,
            work.claim,
            **self._box(work),
            initial=options.initial,
            own=(stream, kind, self.plan.readers(stream)),
            apply=apply,
            finish=lambda state: _emitted(options.finish(state) if options.finish else (), kind, node),
        )
        return folding, usages

    def _batches(self, node: PreparedNode, batch: Mapping[str, Any]) -> dict[int, Any]:
        """By producer, what is new of it, in its place."""
        placed: dict[int, Any] = {}
        for stream, content in batch.items():
            source, path = node.streams[stream]
            placed[source] = _placed(placed.get(source), path, content)
        return placed

    async def _read_streams(self, work: Work) -> Outcome:
        """A session of a mailbox."""
        if work.node.plan.grows:
            await self._growing(work).run()
            return Read("its list is read")
        folding, usages = self._folding(work)
        if not await folding.run():
            return Read("what came is read")._replace(usage=_total(usages))
        if skipped := self._skipped_source(work.node):
            return Skip(f"{self.plan.label(skipped)} was skipped")
        fold = None if work.node.plan.agent is not None else work.node.tool.fold
        result = folding.state if fold is not None and fold.output == "state" else folding.whole()
        return self._value(result)._replace(usage=_total(usages), marks=folding.marks())

    def _skipped_source(self, node: PreparedNode) -> int | None:
        """A producer whose stream the node read and that was skipped."""
        sources = [edge.source for edge in node.plan.edges]
        envelopes = self.process.ledger.outputs(self.run_id, [_output_call(source) for source in sources])
        is_skipped = self.process.payloads.is_skipped
        found = (s for s, e in zip(sources, envelopes, strict=True) if e and is_skipped(e) is not None)
        return next(found, None)


def _usage(work: Work, model: str, used: Any) -> Usage:
    return Usage(work.claim.call, str(model), used.input_tokens, used.output_tokens, used.cost_usd)


def _output_call(source: int) -> str:
    """Under which call the ledger keeps the output of a source."""
    return INPUTS_CALL if source == INPUTS else str(source)


async def _folded(node: PreparedNode, state: Any, arguments: Mapping[str, Any], kind: ContentKind) -> Applied:
    try:
        result = node.tool.function(_own_copy(state), **node.tool.typed(arguments))
        if inspect.isawaitable(result):
            result = await result
    except RedisError as error:  # the tool's own server, not ours
        raise ToolError(f"{type(error).__name__}: {error}") from error
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ToolError(f"a fold returns (state, items), and {node.plan.target!r} returned {_shown(result)}")
    return Applied(result[0], _emitted(result[1], kind, node))


def _emitted(items: Any, kind: ContentKind, node: PreparedNode) -> Any:
    """What a fold puts out: a list, or texts that make one."""
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise ToolError(
            f"{node.plan.target!r} puts out {_shown(items)}; give a list of items, which may be empty"
        )
    emitted = list(items)
    if kind == "item":
        return emitted
    if not all(isinstance(item, str) for item in emitted):
        raise ToolError(f"{node.plan.target!r} puts out a text, so its items must be texts")
    return "".join(emitted)


def _grown_answer(so_far: Any, answer: Any, kind: ContentKind) -> Applied:
    """An agent's answers one after the other: paragraphs of a text, or a list."""
    if kind == "item":
        return Applied([*(so_far or []), answer], [answer])
    added = f"\n\n{answer}" if so_far else answer
    return Applied((so_far or "") + added, added)


def _placed(around: Any, path: Path, value: Any) -> Any:
    """The value in its place: `("risk", "level")` gives `{"risk": {"level": value}}`, added to what is around."""
    if not path:
        return value
    placed = dict(around or {})
    placed[path[0]] = _placed(placed.get(path[0]), path[1:], value)
    return placed


def _total(usages: Sequence[Usage]) -> Usage | None:
    """What several questions used together."""
    if not usages:
        return None
    costs = [usage.cost_usd for usage in usages]
    return usages[0]._replace(
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cost_usd=None if None in costs else sum(cost or 0.0 for cost in costs),
    )


class _Latest(threading.local):
    execution: Execution | None = None


_latest = _Latest()


def execution_of(process: Process, run_id: str, plan: PreparedPlan, *, epoch: int = 0) -> Execution:
    """The execution of a run in this thread. The latest is kept: a fan-out's next message reads the same list."""
    latest = _latest.execution
    if latest is None or latest.run_id != run_id or latest.process is not process or latest.epoch < epoch:
        latest = _latest.execution = Execution(process, run_id, plan, epoch=epoch)
    return latest


class Work(NamedTuple):
    """A call with its arguments, ready to run.

    Attributes:
        early: by producer that has not closed, what the call may read of it.
        holder: in whose name it is claimed.
    """

    claim: Claim
    call: CallId
    node: PreparedNode
    arguments: Mapping[str, Any]
    names: Mapping[str, Any]
    early: Mapping[int, Any]
    holder: str

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop, together with others."""
        return self.call.reads or self.node.is_async


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
    said = str(error).encode(errors="backslashreplace").decode()  # may hold what is no UTF-8
    return f"ToolError: {type(error).__name__}: {said}{place}"


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
