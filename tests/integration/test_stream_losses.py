"""A server that lost its last writes in the middle of a stream, and readers that must not read for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from redis import Redis

from mosaic_queues.content import content_of
from mosaic_queues.errors import IllegalTransition, PayloadError
from mosaic_queues.ledger import Ledger
from mosaic_queues.transitions import Claim, Done
from mosaic_tasks.definition.plan import Batch
from mosaic_tasks.execution.endings import Endings
from mosaic_tasks.execution.holding import Holding
from mosaic_tasks.execution.outcomes import Value
from mosaic_tasks.execution.prepared import CallId
from mosaic_tasks.execution.settling import Settling
from mosaic_tasks.execution.streams.consuming import Applied, Folding, Mailbox, Stores
from mosaic_tasks.execution.streams.publishing import Publication
from tests.integration.stream_runs import agent, tool
from tests.integration.test_stream_faults import Producer, keeps_publisher
from tests.services import READY_S

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
ITEMS = 60
"""Of a fan-out."""


class Snapshot:
    """A run as its server has it now. What comes after `restore` is what a server says that lost the writes since."""

    def __init__(self, client: Redis, producer: Producer) -> None:
        self._client, self._pattern = client, f"*{{{producer.run.id}}}*"
        self._held = {key: (client.dump(key), client.pttl(key)) for key in client.scan_iter(self._pattern)}

    def restore(self) -> None:
        self._client.delete(*self._client.scan_iter(self._pattern))
        for key, (data, left_ms) in self._held.items():
            self._client.restore(key, left_ms, data)


def said(producer: Producer, stream: str = "0", kind: Any = "item") -> Any:
    """What a stream says."""
    chunks = producer.ledger.chunks(producer.run.id, stream)
    return content_of(
        chunks, lambda found: producer.process.payloads.unpack_many(producer.run.id, found), kind
    )


def claimed(producer: Producer, call: str) -> Claim:
    (claim,) = producer.ledger.advance(producer.run.id, holder="me", claim=[call]).claimed
    return claim


# -- producers -------------------------------------------------------------------------------------------------------


@keeps_publisher
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_call_whose_end_does_not_follow_is_recorded_once_all_of_it_was_said_again(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """It has run, so it need not run again, unless it cannot be said any more."""
    monkeypatch.setattr("mosaic_tasks.execution.streams.publisher.Publisher.due", lambda *_, **__: None)
    producer = Producer()
    holding = Holding(producer.process, producer.run.id, producer.plan, ["0"])
    holding.advance()
    claim = holding.next_claim()
    assert claim is not None
    publication = Publication(
        producer.process, producer.run.id, producer.plan, claim, holder=holding.claimant
    )
    publication.items([0, 1])
    publication.flush()
    before = Snapshot(redis_client, producer)
    publication.items([2, 3])
    publication.flush()
    before.restore()
    publication.items([4])
    ending = holding.execution.endings.of_value(CallId("0"), list(range(5)), publication)
    assert ending.flushes
    envelope = producer.process.payloads.pack(producer.run.id, list(range(5)))
    Settling(holding).settle(claim, Value(envelope, "", ending), 0.1)
    if not is_stored:
        monkeypatch.setattr(publication, "_unpack", unreadable)
    holding.advance()
    assert producer.process.value(producer.run.id, 0, "0") is None
    holding.advance()
    assert not holding.finished
    if not is_stored:
        assert claimed(producer, "0").fence == claim.fence + 1
        return
    assert said(producer) == list(range(5))
    assert producer.kinds()[-1] == "end"
    assert {chunk.attempt for chunk in producer.ledger.chunks(producer.run.id, "0")} == {claim.fence}
    assert "0" not in {live.call for live in producer.ledger.live_calls(producer.run.id)}


def unreadable(*_given: Any) -> Any:
    raise PayloadError("the store is away")


@keeps_publisher
def test_a_producer_says_again_what_the_server_lost(redis_client: Redis) -> None:
    producer = Producer()
    claim = producer.claim()
    publication = producer.publication(claim)
    publication.items([0, 1])
    publication.flush()
    before = Snapshot(redis_client, producer)
    for items in ([2, 3], [4]):
        publication.items(items)
        publication.flush()
    before.restore()
    publication.items([5])
    assert producer.end(claim, publication, range(6)) == []
    assert said(producer) == list(range(6))
    assert producer.kinds()[-1] == "end"


@keeps_publisher
def test_what_an_earlier_attempt_said_stands_or_is_taken_back_again(redis_client: Redis) -> None:
    """The server lost the retraction too."""
    producer = Producer()
    first = producer.claim()
    publication = producer.publication(first)
    publication.items([0, 1, 2, 3])
    publication.flush()
    producer.ledger.take_back(producer.run.id, [(first.call, first.fence)], holder="me")
    claim = producer.claim()
    before = Snapshot(redis_client, producer)
    publication = producer.publication(claim)
    publication.items([0, 7])
    publication.flush()
    before.restore()
    publication.items([8])
    assert producer.end(claim, publication, [0, 7, 8]) == []
    assert said(producer) == [0, 7, 8]


@keeps_publisher
def test_a_retraction_alone_does_not_follow_on_a_stream_that_is_too_short(redis_client: Redis) -> None:
    producer = Producer()
    first = producer.claim()
    before = Snapshot(redis_client, producer)
    publication = producer.publication(first)
    publication.items([0, 1])
    publication.flush()
    publication.settle([0])
    before.restore()
    assert producer.end(first, publication, [0]) == []
    assert said(producer) == [0]


class Extract(Producer):
    """An agent whose answer is read as a text, and of which a part is waited for."""

    nodes: ClassVar[dict[str, Any]] = {
        "extract": agent("extractive"),
        "seen": tool("told", with_={"x": "${extract.revenue}"}, edges={"extract": "fields"}),
    }
    output = "seen"

    def loses_the_part(self, client: Redis, text: str) -> tuple[Claim, Publication]:
        """A claim and its publication, of which the server has lost the text and the part that is waited for."""
        claim = self.claim()
        publication, before = self.publication(claim), Snapshot(client, self)
        publication.text(text)
        publication.flush()
        publication.field(("revenue",), 12)
        publication.flush()
        before.restore()
        return claim, publication


@keeps_publisher
def test_a_part_of_the_output_is_announced_again_with_the_chunks(redis_client: Redis) -> None:
    producer = Extract()
    _, publication = producer.loses_the_part(redis_client, '{"revenue": 12')
    publication.text("}")
    publication.flush()
    assert said(producer, kind="text") == '{"revenue": 12}'
    assert claimed(producer, "1")


@keeps_publisher
def test_a_part_that_was_announced_is_announced_again_at_the_end(redis_client: Redis) -> None:
    """Where nothing follows that tells of the loss."""
    producer = Extract()
    claim, publication = producer.loses_the_part(redis_client, "")
    ending = Endings(producer.process, producer.run.id, producer.plan).of_value(
        CallId("0"), {"revenue": 12}, publication
    )
    done = Done(
        "0",
        claim.fence,
        b"\x00\xc0",
        "done",
        producer.plan.raised(CallId("0")),
        ending.marks,
        ending.fields,
        ending.flushes,
    )
    steps = producer.plan.steps(CallId("0"))
    producer.ledger.advance(producer.run.id, holder="me", done=[done], joins=steps)
    assert claimed(producer, "1")


@keeps_publisher
def test_a_call_whose_last_chunks_were_lost_before_it_was_recorded_runs_again(redis_client: Redis) -> None:
    """Nothing follows the last chunk but the end."""
    producer = Producer()
    claim = producer.claim()
    publication = producer.publication(claim)
    publication.items([0, 1])
    publication.flush()
    before = Snapshot(redis_client, producer)
    publication.items([2])
    publication.flush()
    before.restore()
    ended = producer.end(claim, publication, [0, 1, 2])
    assert ended == [claim.call]
    again = claimed(producer, claim.call)
    assert again.fence == claim.fence + 1
    publication = producer.publication(again)
    publication.items([0, 1, 2])
    assert producer.end(again, publication, [0, 1, 2]) == []
    assert said(producer) == [0, 1, 2]
    assert producer.kinds()[-1] == "end"


# -- readers ---------------------------------------------------------------------------------------------------------


ONE = Batch(1, 1)


class Reader:
    """A process that reads the stream `0` in the test's own hands.

    Args:
        meet: is called with each batch.
        tells: it puts out a total after each batch; else only the last one.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        meet: Callable[[list[int]], None] = lambda _batch: None,
        tells: bool = True,
        batch: Batch = ONE,
    ) -> None:
        self._producer, self._meet, self._tells, self._batch = producer, meet, tells, batch
        self.batches: list[list[int]] = []

    def _box(self) -> dict[str, Any]:
        payloads, run_id = self._producer.process.payloads, self._producer.run.id
        stores = Stores(
            self._producer.ledger,
            pack=lambda value: payloads.pack(run_id, value),
            unpack=lambda envelopes: payloads.unpack_many(run_id, envelopes),
            publish=lambda _groups: None,
            has_room=lambda: False,
        )
        return {"holder": "me", "stores": stores, "streams": {"0": "item"}, "batch": self._batch}

    async def _totals(self, state: int, batch: Mapping[str, Any]) -> Applied:
        (values,) = batch.values()
        self.batches.append(values)
        self._meet(values)
        total = state + sum(values)
        return Applied(total, [total] if self._tells else [])

    def fold(self) -> Folding:
        """A session of a fold that puts out running totals."""
        return Folding(
            self._producer.run.id,
            claimed(self._producer, "1.m"),
            **self._box(),
            initial=0,
            own=("1", "item", []),
            apply=self._totals,
            finish=lambda total: [] if self._tells else [total],
            is_skipped=bool,
        )


def read(mailbox: Mailbox) -> bool:
    """Lets a session read until it waits (False) or is over."""
    try:
        mailbox.run(None).send(None)
    except StopIteration as ended:
        return bool(ended.value)
    pytest.fail("a session that waits for something")


class Once:
    """Does something when it is asked for the first time."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._acts = [act]

    def __call__(self) -> None:
        for act in self._acts:
            self._acts = []
            act()


@keeps_publisher
def test_a_fold_goes_on_from_its_last_commit_that_is_there(redis_client: Redis) -> None:
    producer = Producer()
    claim = producer.claim()
    publication = producer.publication(claim)
    for number in range(4):
        publication.items([number])
        publication.flush()
    producer.end(claim, publication, range(4))
    held: list[Snapshot] = []
    lose = Once(lambda: held[0].restore())

    def meet(values: list[int]) -> None:
        if values == [1] and not held:
            held.append(Snapshot(redis_client, producer))
        if values == [2]:
            lose()

    reader = Reader(producer, meet=meet)
    assert read(reader.fold())
    assert reader.batches == [[0], [1], [2], [1], [2], [3]]
    assert said(producer, "1") == [0, 1, 3, 6]


@keeps_publisher
def test_a_fold_forgets_what_the_server_lost_of_its_producer(redis_client: Redis) -> None:
    """The producer's next attempt says something else, and has nothing to take back. Nor has the fold."""
    producer = Producer()
    first = producer.claim()
    publication = producer.publication(first)
    publication.items([0])
    publication.flush()
    held: list[Snapshot] = []

    def lose() -> None:
        held[0].restore()
        producer.ledger.take_back(producer.run.id, [(first.call, first.fence)], holder="me")
        claim = producer.claim()
        again = producer.publication(claim)
        again.items([0, 7])
        producer.end(claim, again, [0, 7])

    loses = Once(lose)

    def meet(values: list[int]) -> None:
        if values == [0] and not held:
            held.append(Snapshot(redis_client, producer))
            publication.items([1])
            publication.flush()
        if values == [1]:
            loses()

    reader = Reader(producer, meet=meet, tells=False)
    assert read(reader.fold())
    assert reader.batches == [[0], [1], [0], [7]]
    assert said(producer, "1") == [7]


@keeps_publisher
def test_a_fold_that_has_read_on_forgets_what_the_server_lost_before(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits with a part of a batch; the rest comes from the next attempt, which says something else before."""
    producer = Producer()
    first = producer.claim()
    publication = producer.publication(first)
    publication.items([0])
    publication.flush()
    reader = Reader(producer, batch=Batch(3, 0, max_wait_s=READY_S))
    fold = reader.fold()
    before = Snapshot(redis_client, producer)
    publication.items([1])
    publication.flush()

    def lose() -> None:
        before.restore()
        producer.ledger.take_back(producer.run.id, [(first.call, first.fence)], holder="me")
        claim = producer.claim()
        again = producer.publication(claim)
        again.items([0, 7, 8])
        producer.end(claim, again, [0, 7, 8])

    await_chunks, loses = producer.ledger.await_chunks, Once(lose)

    def after_the_loss(*arguments: Any, **options: Any) -> Any:
        loses()
        return await_chunks(*arguments, **options)

    monkeypatch.setattr(producer.ledger, "await_chunks", after_the_loss)
    assert read(fold)
    assert reader.batches == [[0, 1, 8], [0, 7, 8]]
    assert said(producer, "1") == [15]


@keeps_publisher
def test_a_fold_that_meets_a_gap_again_and_again_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer()
    publication = producer.publication(producer.claim())
    publication.items([0])
    publication.flush()
    fold, consume = Reader(producer).fold(), producer.ledger.consume

    def refuse(*arguments: Any, commit: Any = None, **options: Any) -> Any:
        if commit is not None:
            raise IllegalTransition("a gap")
        return consume(*arguments, commit=commit, **options)

    monkeypatch.setattr(producer.ledger, "consume", refuse)
    with pytest.raises(IllegalTransition, match="a gap"):
        read(fold)


# -- reading once ------------------------------------------------------------------------------------------------------


class FanOut(Producer):
    """A fan-out, and a fold that reads its results."""

    nodes: ClassVar[dict[str, Any]] = {
        "doubled": tool("double", with_={"x": "${item}"}, for_each="${inputs.xs}"),
        "totals": tool("totals", with_={"values": "${doubled}"}, edges={"doubled": "stream"}),
    }
    more: ClassVar[dict[str, Any]] = {"inputs": {"xs": {"default": list(range(ITEMS))}}}

    def open(self) -> list[Claim]:
        """All its calls, claimed."""
        calls = [f"0.{item}" for item in range(ITEMS)]
        close, group = self.plan.close_of(0), ("mosaic.cpu", calls)
        options: dict[str, Any] = {"join": "n0", "items": [group], "size": ITEMS, "close": close}
        self.ledger.expand(self.run.id, self.claim(), holder="me", **options)
        return self.ledger.advance(self.run.id, holder="me", claim=calls).claimed

    def finish(self, claim: Claim) -> None:
        """A call ends; its result is its number."""
        call = CallId(claim.call)
        envelope = self.process.payloads.pack(self.run.id, call.item)
        endings = Endings(self.process, self.run.id, self.plan)
        ending = endings.of_value(call, call.item)
        done = Done(
            claim.call,
            claim.fence,
            envelope,
            "done",
            self.plan.raised(call),
            ending.marks,
            ending.fields,
            ending.flushes,
        )
        self.ledger.advance(self.run.id, holder="me", done=[done], joins=self.plan.steps(call))


def test_results_that_come_before_the_first_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fan = FanOut()
    reader = Reader(fan)
    entries, results = 0, 0
    consume, outputs = Ledger.consume, Ledger.outputs

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal entries
        drain = consume(*arguments, **options)
        entries += sum(map(len, drain.chunks.values()))
        return drain

    def counted_outputs(ledger: Ledger, run_id: str, calls: Any) -> Any:
        nonlocal results
        results += len(calls)
        return outputs(ledger, run_id, calls)

    slow, *others = fan.open()
    monkeypatch.setattr(Ledger, "consume", counted)
    monkeypatch.setattr(Ledger, "outputs", counted_outputs)
    for claim in [*others, slow]:
        assert reader.batches == []
        fan.finish(claim)
        assert read(reader.fold()) is False
    assert reader.batches == [[number] for number in range(ITEMS)]
    assert (entries, results) == (ITEMS, ITEMS)
