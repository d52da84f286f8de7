"""The mailbox of a mixture: reads the answers that came, decides what is next, and commits that.

A commit is one transition: whom it asks, whom it cuts off, and what it remembers. So a process that dies between two of
them leaves a mixture that decides again from what is recorded, and comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mosaic_queues.streams import Chunk, Commit, Drain, Grow
from mosaic_queues.transitions import Claim, Group
from mosaic_tasks.execution.endings import Endings
from mosaic_tasks.execution.mixtures.expert_learning import ExpertLearning
from mosaic_tasks.execution.mixtures.hearing import hear, remembered
from mosaic_tasks.execution.outcomes import Failure, Outcome, Unrecorded, Value, Work, shown
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.execution.process import Process
from mosaic_tasks.mixtures.beliefs import families_of
from mosaic_tasks.mixtures.briefing import Briefing
from mosaic_tasks.mixtures.deciding import Situation, Step, decide, due_ms
from mosaic_tasks.mixtures.judging import Ended
from mosaic_tasks.mixtures.mixture import Choice, Memory, Mixture, Question
from mosaic_tasks.mixtures.recording import Record, record_of
from mosaic_tasks.mixtures.values import Heard


class Mixing:
    """One session of a mixture's mailbox.

    Args:
        release: says that a claim is no load of its target any more.
    """

    def __init__(
        self,
        process: Process,
        run_id: str,
        plan: PreparedPlan,
        work: Work,
        *,
        release: Callable[[Claim], None],
    ) -> None:
        assert work.node.plan.mixture is not None
        self._release = release
        self._process, self._run_id, self._plan, self._work = process, run_id, plan, work
        self._mixture: Mixture = work.node.plan.mixture
        self._cursors: dict[str, str] = {}
        self._heard: dict[int, Heard] = {}
        self._families: dict[str, str] | None = None
        self._learning = ExpertLearning(process, run_id, plan.plan, work.node.number)

    def run(self, opened: Drain | None) -> Outcome:
        """Decides until it has answered, or has to wait."""
        drain = opened or self._consume(None)
        self._cursors = dict(drain.cursors)
        memory = self._took(self._memory(drain.state), drain)
        while True:
            step = decide(self._situation(memory))
            if step.memory.choice is not None or step.failure:
                return self._ended(step, memory)
            drain = self._consume(
                self._commit(step), need=step.need, due_ms=due_ms(self._mixture, step.memory)
            )
            if drain.outcome == "idle":
                return Unrecorded("answers are awaited")
            memory = self._took(step.memory, drain)

    def _situation(self, memory: Memory) -> Situation:
        if self._families is None:
            self._families = families_of(memory.profiles)
        return Situation(
            self._mixture,
            memory,
            self._heard,
            self._process.now_ms(),
            self._mixture.calibration,
            self._families,
        )

    # -- what is remembered and heard ----------------------------------------------------------------------------

    def _memory(self, state: bytes) -> Memory:
        """What the last commit left; at first, who may be asked."""
        if state:
            return remembered(self._process, self._run_id, state)
        profiles = self._learning.profiles()
        return self._under_load(Memory(self._process.now_ms(), seed=_seed(self._run_id), profiles=profiles))

    def _under_load(self, memory: Memory) -> Memory:
        """With fewer experts, where the router places them and its targets have too much to do."""
        places, mixture = self._process.places, self._mixture
        if places is None or not any(self._plan.is_routed(str(expert.node)) for expert in mixture.experts):
            return memory
        fewer = places.fewer_experts(mixture.planned, least=mixture.min_experts)
        if not fewer.sentences:
            return memory
        return msgspec.structs.replace(memory, most=fewer.experts, relief="; ".join(fewer.sentences))

    def _took(self, memory: Memory, drain: Drain) -> Memory:
        """With the answers that came."""
        for stream, chunks in drain.chunks.items():
            if chunks:
                self._cursors[stream] = chunks[-1].id
        came = [chunk.call for chunk in _in_order(drain.chunks)]
        known = {*memory.heard, *memory.cut}
        by_call = {question.call: question for question in memory.asked}
        fresh = [by_call[call].index for call in dict.fromkeys(came) if call in by_call]
        memory = msgspec.structs.replace(
            memory, heard=(*memory.heard, *(index for index in fresh if index not in known))
        )
        self._listen(memory)
        return memory

    def _listen(self, memory: Memory) -> None:
        """Reads the answers that this session has not read yet."""
        wanted = [memory.asked[index] for index in memory.heard if index not in self._heard]
        if wanted:
            self._heard |= hear(self._process, self._run_id, wanted)

    # -- what is done --------------------------------------------------------------------------------------------

    def _consume(self, commit: Commit | None, *, need: int | None = None, due_ms: int | None = None) -> Drain:
        drain = self._process.ledger.consume(
            self._run_id,
            self._work.claim,
            holder=self._work.holder,
            sources=list(self._work.node.streams),
            need=need,
            due_ms=due_ms,
            commit=commit,
        )
        self._publish(drain.ready)
        for call, fence in drain.cut:
            self._release(Claim(call, fence, 0, 0))
        return drain

    def _publish(self, ready: Sequence[Group]) -> None:
        """A wave is a chord: its body is the mailbox, which joins as many as the gate needs."""
        if ready:
            body = (self._work.node.plan.queue, [self._work.claim.call])
            self._process.publish_chord(self._run_id, self._plan, ready, body)

    def _commit(self, step: Step, *, decided: str = "") -> Commit:
        state = self._process.payloads.pack(self._run_id, msgspec.to_builtins(step.memory))
        grow = self._grow(step) if step.ask else None
        return Commit(self._cursors, self._cursors, state, grow=grow, cut=step.cut, decided=decided)

    def _grow(self, step: Step) -> Grow:
        by_queue: dict[str, list[Question]] = {}
        for question in step.ask:
            queue = self._plan.plan.nodes[CallId(question.call).node].queue
            by_queue.setdefault(queue, []).append(question)
        ordered = [question for questions in by_queue.values() for question in questions]
        briefing = Briefing(self._mixture, step.memory, self._heard)
        items = [self._item(briefing, question) for question in ordered]
        groups = [(queue, [question.call for question in asked]) for queue, asked in by_queue.items()]
        return Grow(None, groups, items, total=len(ordered))

    def _item(self, briefing: Briefing, question: Question) -> bytes:
        node = self._plan.plan.nodes[CallId(question.call).node]
        return self._process.payloads.pack(self._run_id, briefing.item(question, node.names))

    def _ended(self, step: Step, before: Memory) -> Outcome:
        """It answers, or cannot. Whoever still works is cut off first."""
        record = record_of(
            self._mixture, step.memory, self._heard, now_ms=self._process.now_ms(), failure=step.failure
        )
        if step.memory != before:
            told = msgspec.json.encode(record).decode()
            self._consume(self._commit(step, decided=told))
            self._tell(record)
        self._learning.note(Ended(self._mixture, step.memory, self._heard))
        choice = step.memory.choice
        if choice is None:
            return Failure(f"node {self._work.node.name!r}: {step.failure}", retryable=False)
        value = _detailed(record, choice.value) if self._mixture.details else choice.value
        return self._value(choice, value)

    def _tell(self, record: Record) -> None:
        workflow, node = self._plan.plan.name, self._work.node.name
        self._process.observer.decided(record, workflow=workflow, node=node)

    def _value(self, choice: Choice, value: Any) -> Value:
        ending = Endings(self._process, self._run_id, self._plan).of_value(self._work.call, value)
        envelope = self._process.payloads.pack(self._run_id, value)
        told = f"{shown(choice.value)} ({choice.by}, {choice.probability:.2f})"
        return Value(envelope, told, ending)


def _detailed(record: Record, answer: Any) -> dict[str, Any]:
    """The answer and how it came about, without what says nothing."""
    told = msgspec.to_builtins(record)
    return {"answer": answer, **{name: value for name, value in told.items() if value}}


def _in_order(chunks: Mapping[str, Sequence[Chunk]]) -> list[Chunk]:
    """The results of calls, in the order in which they came."""
    found = [chunk for each in chunks.values() for chunk in each if chunk.kind == "item"]
    return sorted(found, key=lambda chunk: tuple(int(part) for part in chunk.id.split("-")))


def _seed(run_id: str) -> int:
    return int.from_bytes(run_id.encode()[-6:], "big")


__all__ = ["Mixing"]
