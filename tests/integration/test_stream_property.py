"""Streams under any interleaving of chunks, kills, redeliveries, duplicates and corrections give the output of the
serial run.

No workers: producers, mailboxes and the calls of fan-outs are driven step by step against the real server. A process
that dies is one whose claims are taken back; it may go on all the same, late, and must be refused.

STREAM_EXAMPLES says how many examples are tried; `make test` tries few.
"""

from __future__ import annotations

import itertools
import os
import types
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from mosaic_queues import ledger
from mosaic_queues.errors import ClaimLost
from mosaic_queues.events import read_events
from mosaic_queues.ledger import Ledger
from mosaic_queues.payloads import PayloadStore
from mosaic_queues.settings import settings as process_settings
from mosaic_queues.streams import Drain, Flush
from mosaic_queues.transitions import Claim, Done, Mark
from mosaic_tasks.definition.plan import Batch, Edge, NodePlan, Plan, Ref, link
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.execution.streams import publishing
from mosaic_tasks.execution.streams.consuming import Applied, Folding, Growing, Mailbox, Stores
from mosaic_tasks.execution.streams.publishing import Publication
from tests.leaks import permanent_keys

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
EXAMPLES = int(os.environ.get("STREAM_EXAMPLES", "100"))
STEPS = 25
QUEUE = "q"
NIL = b"\x00\xc0"
_ids = itertools.count()

# -- what runs: chains of nodes that read each other piece by piece ----------------------------------------------

Kind = Literal["text", "item"]


def _node(name: str, publishes: Kind, *edges: Edge) -> NodePlan:
    deps = tuple(edge.source for edge in edges)
    for_each = Ref(edges[0].source, ()) if edges and edges[0].kind == "for_each" else None
    return NodePlan(name, "tool", QUEUE, deps=deps, for_each=for_each, publishes=publishes, edges=edges)


def _chain(*kinds: str) -> PreparedPlan:
    """A chain of nodes, each of which reads the one before: `text`, `item` (producers and folds), `fan` (a fan-out)."""
    nodes = []
    for number, kind in enumerate(kinds):
        reads: Literal["for_each", "stream"] = "for_each" if kind == "fan" else "stream"
        edges = (Edge(number - 1, reads, ((),)),) if number else ()
        nodes.append(_node(f"{kind}{number}", "text" if kind == "text" else "item", *edges))
    plan: Plan = link("chain", nodes, output=len(nodes) - 1)
    return PreparedPlan("hash", plan)


PLANS = [
    _chain("item", "item", "item"),
    _chain("item", "fan", "item"),
    _chain("item", "item", "fan", "item"),
    _chain("text", "text", "item"),
]


def folded(state: int, batch: Any, kind: Kind) -> tuple[int, Any]:
    """A fold whose output depends on the order of all that it has read, and not on the batches."""
    emitted: list[Any] = []
    for each in batch:
        value = ord(each) - ord("a") if isinstance(each, str) else each
        state = (state * 3 + value + 1) % 101
        emitted += [state] * (value % 3)
    return state, spelled(emitted) if kind == "text" else emitted


def finished(state: int, kind: Kind) -> Any:
    """What a fold puts out in the end."""
    return spelled([state]) if kind == "text" else [state]


def spelled(values: Sequence[int]) -> str:
    return "".join(chr(ord("a") + value % 6) for value in values)


def served(item: int) -> int:
    """What a call of a fan-out makes of its item."""
    return item + 2


def serial(plan: PreparedPlan, content: Any) -> list[Any]:
    """The outputs of all nodes, one after the other."""
    outputs = [content]
    for node in plan.plan.nodes[1:]:
        if node.grows:
            outputs.append([served(item) for item in outputs[-1]])
        else:
            state, emitted = folded(0, outputs[-1], node.publishes)
            outputs.append(emitted + finished(state, node.publishes))
    return outputs


# -- processes that die, and answers that get lost ----------------------------------------------------------------


class Died(BaseException):
    """The process ended here."""


class Fault(NamedTuple):
    """What happens to a trip of a mailbox to the server: the process dies before or after it, or its answer is lost and
    it is made again, other calls having gone on in between."""

    kind: Literal["before", "after", "twice"]
    trip: int


class UnreliableLedger(Ledger):
    """A ledger whose next trips can be disturbed."""

    fault: Fault | None = None
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def consume(self, *args: Any, **options: Any) -> Drain:
        return self._disturbed(super().consume, *args, **options)

    def publish(self, *args: Any, **options: Any) -> Any:
        return self._disturbed(super().publish, *args, **options)

    def _disturbed(self, trip: Callable[..., Any], *args: Any, **options: Any) -> Any:
        fault = self._due()
        if fault == "before":
            raise Died
        answer = trip(*args, **options)
        if fault == "after":
            raise Died
        if fault == "twice":
            self.meanwhile()
            answer = trip(*args, **options)
        return answer

    def _due(self) -> str | None:
        if self.fault is None:
            return None
        if self.fault.trip:
            self.fault = self.fault._replace(trip=self.fault.trip - 1)
            return None
        kind, self.fault = self.fault.kind, None
        return kind


class Process:
    """What a publication needs of a process."""

    def __init__(self, client: Redis) -> None:
        self.settings = process_settings()
        self.ledger = UnreliableLedger(client)
        self.payloads = PayloadStore.from_settings(client)

    def publish(self, run_id: str, plan: PreparedPlan, groups: Any) -> None:
        """Messages are not needed: calls are delivered in any order, and more than once."""

    def letters(self, run_id: str, plan: PreparedPlan, groups: Any) -> None:
        """Nor are letters."""


class NoPublisher:
    """Nothing is flushed in the background."""

    def due(self, publication: Publication, *, at: float) -> None: ...


class Attempt:
    """A process that runs the producer.

    Attributes:
        same: of the attempt before it says so much again, whatever it is asked to say.
    """

    def __init__(
        self, claim: Claim, publication: Publication, *, kind: Kind, earlier: Any, same: int
    ) -> None:
        self.claim, self.publication, self._kind = claim, publication, kind
        self._again = earlier[:same]
        self.said: Any = "" if kind == "text" else []

    def say(self, values: Sequence[int]) -> None:
        piece = spelled(values) if self._kind == "text" else list(values)
        known = self._again[len(self.said) : len(self.said) + len(piece)]
        piece = known + piece[len(known) :]
        self.said += piece
        if self._kind == "text":
            self.publication.text(piece)
        else:
            self.publication.items(list(piece))


@types.coroutine
def pause() -> Generator[None, None, None]:
    """Gives the others a turn."""
    yield


class Session:
    """A process that runs a mailbox, one batch at a time."""

    def __init__(self, claim: Claim, mailbox: Mailbox) -> None:
        self.claim, self.mailbox = claim, mailbox
        self._work = mailbox.run(None)

    def step(self) -> bool | None:
        """Goes on to the next batch. None: it is in the middle of it; else what the session came to."""
        try:
            self._work.send(None)
        except StopIteration as ended:
            return bool(ended.value)
        return None

    def close(self) -> None:
        self._work.close()


class Held(NamedTuple):
    """A call of a fan-out that a process runs, with its result."""

    claim: Claim
    envelope: bytes


# -- the machine ---------------------------------------------------------------------------------------------------

VALUES = st.lists(st.integers(0, 5), min_size=0, max_size=4)
FAULTS = st.none() | st.builds(Fault, st.sampled_from(["before", "after", "twice"]), st.integers(0, 2))
WHICH = st.integers(0, 30)


class StreamMachine(RuleBasedStateMachine):
    """One run of a chain; ends by letting everything finish, and compares with the serial run."""

    client: Redis

    @initialize(
        plan=st.sampled_from(PLANS),
        smallest=st.sampled_from([1, 1, 2, 3]),
        largest=st.sampled_from([0, 0, 1, 3]),
    )
    def open(self, plan: PreparedPlan, smallest: int, largest: int) -> None:
        self.plan, self.batch = plan, Batch(smallest, max(smallest, largest) if largest else 0)
        self.run_id = f"run-{next(_ids)}"
        self.process = Process(self.client)
        self.ledger = self.process.ledger
        self.ledger.meanwhile = self.others_work
        roots = plan.by_queue(plan.plan.roots)
        self.ledger.open_run(
            self.run_id, plan="p", name="n", inputs=NIL, roots=roots, retention_s=60, max_run_s=60
        )
        self.kind: Kind = "text" if plan.plan.nodes[0].publishes == "text" else "item"
        self.producer: Attempt | None = None
        self.earlier: Any = "" if self.kind == "text" else []
        self.late_producers: list[Attempt] = []
        self.content: Any = None
        self.sessions: dict[str, Session] = {}
        self.late_sessions: list[Session] = []
        self.held: list[Held] = []
        self.mailboxes = [f"{n}.m" for n, node in enumerate(plan.plan.nodes) if node.is_mailbox]
        self.fans = [n for n, node in enumerate(plan.plan.nodes) if node.grows]

    def is_writing(self) -> bool:
        return self.content is None

    # -- the producer

    def claim(self, *calls: str) -> list[Claim]:
        return self.ledger.advance(self.run_id, holder="p", claim=calls).claimed

    def die(self, claim: Claim) -> None:
        self.ledger.take_back(self.run_id, [(claim.call, claim.fence)], holder="p")

    def attempt(self, same: int = 0) -> Attempt:
        """The process that runs the producer; a new one where there is none."""
        if self.producer is None:
            (claim,) = self.claim("0")
            made = Publication(self.process, self.run_id, self.plan, claim, holder="p")
            self.producer = Attempt(claim, made, kind=self.kind, earlier=self.earlier, same=same)
        return self.producer

    @precondition(is_writing)
    @rule(values=VALUES, same=st.integers(0, 12), flushes=st.booleans(), fault=FAULTS)
    def produce(self, values: list[int], same: int, flushes: bool, fault: Fault | None) -> None:
        attempt = self.attempt(same)
        attempt.say(values)
        if flushes and not self.disturbed(attempt.publication.flush, fault):
            self.producer_dies()

    def disturbed(self, act: Callable[[], Any], fault: Fault | None) -> bool:
        """Whether the process survived."""
        self.ledger.fault = fault
        try:
            act()
        except Died:
            return False
        finally:
            self.ledger.fault = None
        return True

    @precondition(lambda self: self.producer is not None)
    @rule()
    def producer_dies(self) -> None:
        assert self.producer is not None
        self.die(self.producer.claim)
        self.late_producers.append(self.producer)
        self.earlier, self.producer = self.producer.said, None

    @precondition(lambda self: self.late_producers)
    @rule(which=WHICH, values=VALUES)
    def late_producer_goes_on(self, which: int, values: list[int]) -> None:
        """It may be refused, and must change nothing."""
        attempt = self.late_producers[which % len(self.late_producers)]
        try:
            attempt.say(values)
            attempt.publication.flush()
        except ClaimLost:
            self.late_producers.remove(attempt)

    @precondition(is_writing)
    @rule(values=VALUES, repaired=st.none() | st.tuples(st.integers(0, 12), VALUES))
    def producer_ends(self, values: list[int], repaired: tuple[int, list[int]] | None) -> None:
        attempt = self.attempt()
        attempt.say(values)
        if repaired is not None:
            tail = spelled(repaired[1]) if self.kind == "text" else repaired[1]
            attempt.said = attempt.said[: repaired[0]] + tail
            attempt.publication.settle(attempt.said)
        self.content, self.producer = attempt.said, None
        self.finish(attempt.claim, self.pack(self.content), *attempt.publication.finish())

    def finish(
        self, claim: Claim, envelope: bytes, marks: Sequence[Mark] = (), flushes: Sequence[Flush] = ()
    ) -> bool:
        """Records a call; twice, as when the first answer was lost. Whether it was not stale."""
        call = CallId(claim.call)
        done = Done(claim.call, claim.fence, envelope, "done", self.plan.raised(call), marks, (), flushes)
        steps = self.plan.steps(call)
        stale = self.ledger.advance(self.run_id, holder="p", done=[done], joins=steps).stale
        assert self.ledger.advance(self.run_id, holder="p", done=[done], joins=steps).stale == [claim.call]
        return not stale

    def pack(self, value: Any) -> bytes:
        return self.process.payloads.pack(self.run_id, value)

    def unpack(self, envelopes: Sequence[bytes]) -> list[Any]:
        return self.process.payloads.unpack_many(self.run_id, envelopes)

    # -- mailboxes

    @rule(which=WHICH, fault=FAULTS)
    def mailbox_works(self, which: int, fault: Fault | None) -> None:
        self.work(self.mailboxes[which % len(self.mailboxes)], fault)

    def work(self, call: str, fault: Fault | None = None) -> None:
        """A message for a mailbox is delivered, or its session goes on."""
        session = self.sessions.get(call)
        if session is None:
            claims = self.claim(call)
            if not claims:
                return
            session = self.sessions[call] = Session(claims[0], self.mailbox(claims[0]))
        self.step(session, fault)

    def step(self, session: Session, fault: Fault | None) -> None:
        ended: list[bool | None] = []
        try:
            survived = self.disturbed(lambda: ended.append(session.step()), fault)
        except ClaimLost:
            # The first sending counted, and gave up the claim: the answer says that it is lost.
            assert fault is not None and fault.kind == "twice"  # noqa: PT018
            del self.sessions[session.claim.call]
            return
        if not survived:
            self.mailbox_dies_of(session)
        elif ended != [None]:
            del self.sessions[session.claim.call]
            if ended == [True] and isinstance(session.mailbox, Folding):
                self.finish(session.claim, self.pack(session.mailbox.whole()), session.mailbox.marks())

    def mailbox_dies_of(self, session: Session) -> None:
        self.die(session.claim)
        del self.sessions[session.claim.call]
        session.close()

    @precondition(lambda self: self.sessions)
    @rule(which=WHICH)
    def mailbox_dies(self, which: int) -> None:
        """In the middle of a batch; it may go on later."""
        session = list(self.sessions.values())[which % len(self.sessions)]
        self.die(session.claim)
        del self.sessions[session.claim.call]
        self.late_sessions.append(session)

    @precondition(lambda self: self.late_sessions)
    @rule(which=WHICH)
    def late_mailbox_goes_on(self, which: int) -> None:
        session = self.late_sessions.pop(which % len(self.late_sessions))
        with pytest.raises(ClaimLost):
            session.step()

    def mailbox(self, claim: Claim) -> Mailbox:
        number = CallId(claim.call).node
        node = self.plan.node(number)
        publishes = [self.plan.plan.nodes[source].publishes for source, _ in node.streams.values()]
        stores = Stores(self.ledger, self.pack, self.unpack, lambda groups: None, lambda: False)
        box: dict[str, Any] = {
            "holder": "p",
            "stores": stores,
            "batch": self.batch,
            "streams": dict(zip(node.streams, publishes, strict=True)),
        }
        if node.plan.grows:
            readers = self.plan.readers(str(number))
            fan = {"number": number, "queue": QUEUE, "close": self.plan.close_of(number), "readers": readers}
            return Growing(self.run_id, claim, **box, **fan, most=1000)
        own: tuple[str, Kind, Sequence[str]] = (
            str(number),
            node.plan.publishes,
            self.plan.readers(str(number)),
        )

        async def apply(state: int, batch: Mapping[str, Any]) -> Applied:
            (pieces,) = batch.values()
            await pause()
            return Applied(*folded(state, pieces, own[1]))

        last = lambda state: finished(state, own[1])  # noqa: E731
        return Folding(
            self.run_id, claim, **box, initial=0, own=own, apply=apply, finish=last, is_skipped=bool
        )

    # -- calls of fan-outs

    @precondition(lambda self: self.fans)
    @rule(which=st.lists(st.integers(0, 8), min_size=1, max_size=4, unique=True))
    def items_start(self, which: list[int]) -> None:
        """Messages of some calls are delivered; perhaps again, perhaps too early."""
        claims = self.claim(*(f"{fan}.{item}" for fan in self.fans for item in which))
        calls = [claim.call for claim in claims]
        assert self.ledger.outputs(self.run_id, calls) == [None] * len(calls), "what is done is done again"
        items = self.ledger.item_envelopes(self.run_id, calls)
        for claim, value in zip(claims, self.unpack([item or b"" for item in items]), strict=True):
            self.held.append(Held(claim, self.pack(served(value))))

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def item_ends(self, which: int) -> None:
        held = self.held.pop(which % len(self.held))
        number, _, item = held.claim.call.partition(".")
        readers = self.plan.readers(number)
        marks = [Mark(number, "item", int(item), 1, readers)] if readers else []
        self.finish(held.claim, held.envelope, marks)

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def item_dies(self, which: int) -> None:
        """And may end late."""
        self.die(self.held[which % len(self.held)].claim)

    def others_work(self) -> None:
        """What goes on while an answer is on its way."""
        if self.fans:
            self.items_start([0, 1, 2])
            while self.held:
                self.item_ends(0)

    # -- the end

    def teardown(self) -> None:
        if not hasattr(self, "run_id"):
            return
        try:
            self.settle_all()
            self.compare()
        finally:
            for session in [*self.sessions.values(), *self.late_sessions]:
                session.close()
            self.client.flushdb()

    def settle_all(self) -> None:
        """Everything that can go on does; what nobody holds is delivered again, as the sweeper does."""
        if self.is_writing():
            self.producer_ends([1, 2], None)
        for held in self.held:
            self.die(held.claim)
        while True:
            ready = deque(call.call for call in self.ledger.live_calls(self.run_id) if call.state == "ready")
            if not (ready or self.sessions):
                return
            for call in [*ready, *self.sessions]:
                self.deliver(call)

    def deliver(self, call: str) -> None:
        parts = CallId(call)
        if parts.reads:
            self.work(call)
        elif parts.closes:
            (claim,) = self.claim(call)
            results = self.ledger.outputs(
                self.run_id, [f"{parts.node}.{n}" for n in range(self.size(parts.node - 1))]
            )
            values = self.unpack([envelope or b"" for envelope in results])
            stream, readers = str(parts.node), self.plan.readers(str(parts.node))
            marks = [Mark(stream, "end", len(values), 0, readers)] if readers else []
            self.finish(claim, self.pack(values), marks)
        else:
            assert parts.item is not None
            self.items_start([parts.item])
            while self.held:
                self.item_ends(0)

    def size(self, number: int) -> int:
        (envelope,) = self.ledger.outputs(self.run_id, [str(number)])
        return len(self.unpack([envelope or b""])[0])

    def compare(self) -> None:
        live = self.ledger.live_calls(self.run_id)
        assert live == [], f"it hangs: {live}"
        assert self.ledger.run(self.run_id).status == "done"
        numbers = [str(number) for number in range(len(self.plan.plan.nodes))]
        outputs = self.unpack([envelope or b"" for envelope in self.ledger.outputs(self.run_id, numbers)])
        assert outputs == serial(self.plan, self.content)
        ended = [call for event in read_events(self.client, self.ledger.keys, self.run_id) if event.kind == "done"
                 for call in event.calls]  # fmt: skip
        assert [ended.count(f"{fan}.c") for fan in self.fans] == [1] * len(self.fans)
        assert permanent_keys(self.client) == []


@pytest.mark.timeout(60 + EXAMPLES // 10)
def test_any_interleaving_gives_the_output_of_the_serial_run(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "publisher", NoPublisher)
    monkeypatch.setattr(ledger, "ENTRIES_READ", 3)
    machine = type("Streams", (StreamMachine,), {"client": redis_client})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
        ),
    )
