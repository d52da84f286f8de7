"""The mailbox of a node: what it reads, what a batch does, and what it comes to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from redis.exceptions import RedisError

from mosaic_queues.content import ContentKind
from mosaic_queues.errors import ToolError
from mosaic_queues.transitions import Claim, Usage
from mosaic_tasks.definition.edges import SO_FAR
from mosaic_tasks.definition.folding import FoldOptions
from mosaic_tasks.definition.plan import Path
from mosaic_tasks.execution.inputs import Inputs, output_call, own_copy, put_in
from mosaic_tasks.execution.mixtures.mixing import Mixing
from mosaic_tasks.execution.outcomes import (
    Ending,
    Outcome,
    Skip,
    Unrecorded,
    Value,
    Work,
    shown,
    timed_out,
    total_usage,
    usage_of,
)
from mosaic_tasks.execution.placing.asking import Asking
from mosaic_tasks.execution.prepared import PreparedNode, PreparedPlan, stream_name
from mosaic_tasks.execution.process import Process
from mosaic_tasks.execution.streams.consuming import Applied, Folding, Growing, Mailbox, Stores
from mosaic_tasks.execution.streams.sources import SourceKind


class Mailboxes:
    """Runs the mailboxes of a run's nodes."""

    def __init__(
        self, process: Process, run_id: str, plan: PreparedPlan, inputs: Inputs, asking: Asking
    ) -> None:
        self._process, self._run_id, self._plan, self._inputs = process, run_id, plan, inputs
        self._asking = asking
        self._sessions: dict[Claim, Mailbox] = {}

    def batch_since(self, claim: Claim) -> float | None:
        """When the session of a claim began with its batch (monotonic), None between two."""
        session = self._sessions.get(claim)
        return session.batch_since if session is not None else None

    def went_on(self, claim: Claim) -> bool:
        """Whether the session of a claim, which is over, committed a batch."""
        session = self._sessions.pop(claim, None)
        return session is not None and session.went_on

    def _box(self, work: Work) -> dict[str, Any]:
        """What every mailbox is made with."""
        payloads, run_id = self._process.payloads, self._run_id
        stores = Stores(
            self._process.ledger,
            pack=lambda value: payloads.pack(run_id, value),
            unpack=lambda envelopes: payloads.unpack_many(run_id, envelopes),
            publish=lambda groups: self._process.publish(run_id, self._plan, groups),
            has_room=self._process.has_room,
        )
        return {
            "holder": work.holder,
            "stores": stores,
            "streams": self._kinds(work.node),
            "batch": work.node.plan.batch,
            "on_loop": work.is_async,
        }

    def _kinds(self, node: PreparedNode) -> dict[str, SourceKind]:
        """How each stream of a node is read."""
        by = {edge.source: edge.by for edge in node.plan.edges}
        kinds: dict[str, SourceKind] = {}
        for stream, (source, path) in node.streams.items():
            kinds[stream] = self._kind(source, path)
            if by[source] == "sentence":
                kinds[stream] = "answers" if self._plan.plan.nodes[source].is_mailbox else "sentence"
        return kinds

    def _kind(self, source: int, path: Path) -> ContentKind:
        """What the chunks of a stream hold."""
        return "text" if self._plan.plan.nodes[source].publishes == "text" and not path else "item"

    def _growing(self, work: Work) -> Growing:
        number = work.node.number
        return Growing(
            self._run_id,
            work.claim,
            **self._box(work),
            number=number,
            queue=work.node.plan.queue,
            close=self._plan.close_of(number),
            readers=self._plan.readers(str(number)),
            most=self._process.settings.max_items,
        )

    def _folding(self, work: Work) -> tuple[Folding, list[Usage]]:
        """The mailbox of a fold or an agent, and what the agent will have used."""
        node, usages = work.node, list[Usage]()
        stream = stream_name(node.number)
        kind: ContentKind = "text" if node.plan.publishes == "text" else "item"
        options = FoldOptions() if node.plan.agent is not None else node.tool.fold or FoldOptions()

        async def apply(state: Any, batch: Mapping[str, Any]) -> Applied:
            arguments, names = self._inputs.given(node, None, {**work.early, **self._batches(node, batch)})
            if node.plan.agent is None:
                return await _folded(node, state, arguments, kind)
            answer = await self._asking.ask(work, node.plan.agent, {**names, SO_FAR: state})
            usages.append(usage_of(work, answer.model, answer.usage, answer.finish_reason))
            return _grown_answer(state, answer.value, kind)

        folding = Folding(
            self._run_id,
            work.claim,
            **self._box(work),
            initial=options.initial,
            own=(stream, kind, self._plan.readers(stream)),
            apply=apply,
            finish=lambda state: _emitted(options.finish(state) if options.finish else (), kind, node),
            is_skipped=lambda: self._skipped_source(node) is not None,
        )
        return folding, usages

    def _batches(self, node: PreparedNode, batch: Mapping[str, Any]) -> dict[int, Any]:
        """By producer, what is new of it, in its place."""
        placed: dict[int, Any] = {}
        for stream, content in batch.items():
            source, path = node.streams[stream]
            placed[source] = put_in(placed.get(source), path, content)
        return placed

    async def run(self, work: Work) -> Outcome:
        """A session of a mailbox. Of one that fails, `went_on` tells more."""
        outcome = await self._run(work)
        self._sessions.pop(work.claim, None)
        return outcome

    async def _run(self, work: Work) -> Outcome:
        if work.node.plan.mixture is not None:
            release = self._asking.release
            return Mixing(self._process, self._run_id, self._plan, work, release=release).run(work.opened)
        if work.node.plan.grows:
            growing = self._sessions[work.claim] = self._growing(work)
            await growing.run(work.opened)
            return Unrecorded("its list is read")
        folding, usages = self._folding(work)
        self._sessions[work.claim] = folding
        if not await folding.run(work.opened):
            return Unrecorded("what came is read", total_usage(usages))
        if (skipped := self._skipped_source(work.node)) is not None:
            return Skip(f"{self._plan.label(skipped)} was skipped")
        fold = None if work.node.plan.agent is not None else work.node.tool.fold
        result = folding.state if fold is not None and fold.output == "state" else folding.whole()
        envelope = self._process.payloads.pack(self._run_id, result)
        return Value(envelope, shown(result), Ending(folding.marks()), total_usage(usages))

    def _skipped_source(self, node: PreparedNode) -> int | None:
        """A producer whose stream the node read and that was skipped."""
        sources = [edge.source for edge in node.plan.edges]
        envelopes = self._process.ledger.outputs(self._run_id, [output_call(source) for source in sources])
        is_skipped = self._process.payloads.is_skipped
        found = (s for s, e in zip(sources, envelopes, strict=True) if e and is_skipped(e) is not None)
        return next(found, None)


async def _folded(node: PreparedNode, state: Any, arguments: Mapping[str, Any], kind: ContentKind) -> Applied:
    try:
        result = node.tool.function(own_copy(state), **node.tool.typed(arguments))
        if inspect.isawaitable(result):
            result = await _within(result, node)
    except RedisError as error:  # the tool's own server, not ours
        raise ToolError(f"{type(error).__name__}: {error}") from error
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ToolError(f"a fold returns (state, items), and {node.plan.target!r} returned {shown(result)}")
    return Applied(result[0], _emitted(result[1], kind, node))


async def _within(result: Awaitable[Any], node: PreparedNode) -> Any:
    """A batch of a coroutine, within the node's timeout."""
    limit = asyncio.timeout(node.plan.timeout_s)
    try:
        async with limit:
            return await result
    except TimeoutError:
        if limit.expired():
            raise timed_out(node) from None
        raise


def _emitted(items: Any, kind: ContentKind, node: PreparedNode) -> Any:
    """What a fold puts out: a list, or texts that make one."""
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise ToolError(
            f"{node.plan.target!r} puts out {shown(items)}; give a list of items, which may be empty"
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
