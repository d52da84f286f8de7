"""Bad producers, bad consumers and bad answers: a stream ends well, or its run fails at once and says why."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from redis import Redis

from mosaic_queues.content import content_of
from mosaic_queues.errors import ClaimLost, PayloadError, RunFailed
from mosaic_queues.settings import settings
from mosaic_queues.streams import Commit
from mosaic_queues.transitions import Claim, Done
from mosaic_tasks import submit
from mosaic_tasks.app import app
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.execution.calls import Execution
from mosaic_tasks.execution.holding import Holding
from mosaic_tasks.execution.outcomes import Failure, Value, Work
from mosaic_tasks.execution.prepared import CallId, PreparedPlan
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.execution.settling import Settling
from mosaic_tasks.execution.streams import publishing
from mosaic_tasks.execution.streams.flushing import flush_together
from mosaic_tasks.execution.streams.outlets import FLUSH_ITEMS
from mosaic_tasks.execution.streams.publishing import FLUSHES_AHEAD, Publication
from mosaic_tasks.execution.streams.sources import Source
from tests.integration import stream_tools as tools
from tests.integration.stream_runs import agent, recorded, run, tool, workflow
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
TOO_MANY = 2 * FLUSHES_AHEAD * FLUSH_ITEMS
"""More items than a producer may be ahead of its publishing."""
keeps_publisher = pytest.mark.leaves("threads", reason="a process keeps its publisher as long as it lives")
MILLION = 1_000_000


@pytest.fixture
def serving(workers: Workers) -> Workers:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=4).wait_ready()
    return workers


def endless(**options: Any) -> dict[str, Any]:
    return {
        "numbers": tool("endless", **options),
        "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
    }


# -- producers -------------------------------------------------------------------------------------------------------


def test_a_producer_that_never_ends_is_cancelled(serving: Workers, redis_client: Redis) -> None:
    started = run(endless(), "totals")
    tools.await_told(redis_client, "totals", 1)
    started.cancel()
    assert started.record().status == "cancelled"
    assert started.live_calls() == []
    redis_client.delete("test:told:totals", "test:bell:totals")
    assert run({"numbers": tool("numbers", with_={"n": 3})}, "numbers").result(30) == [0, 1, 2]


def test_a_producer_that_never_ends_meets_its_timeout(serving: Workers) -> None:
    with pytest.raises(RunFailed, match=r"node 'numbers': CallTimeout: .* timeout of 0\.5 s"):
        run(endless(timeout=0.5), "totals").result(30)


class Producer:
    """A process that runs the producer of a fold, in the test's own hands."""

    nodes: ClassVar[dict[str, Any]] = {
        "numbers": tool("numbers", with_={"n": 3}),
        "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
    }
    output = "totals"
    more: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        made = workflow(self.nodes, self.output, **self.more)
        self.run, self.process = submit(made), process_for(app)
        self.plan, self.ledger = PreparedPlan("hash", compile_workflow(made)), self.process.ledger

    def claim(self) -> Claim:
        (claim,) = self.ledger.advance(self.run.id, holder="me", claim=["0"]).claimed
        return claim

    def publication(self, claim: Claim) -> Publication:
        return Publication(self.process, self.run.id, self.plan, claim, holder="me")

    def end(self, claim: Claim, publication: Publication, items: Sequence[Any]) -> list[str]:
        """Closes the producer; answers with the calls that were refused."""
        marks, flushes = publication.finish()
        envelope = self.process.payloads.pack(self.run.id, list(items))
        done = Done("0", claim.fence, envelope, "done", self.plan.raised(CallId("0")), marks, (), flushes)
        steps = self.plan.steps(CallId("0"))
        answer = self.ledger.advance(self.run.id, holder="me", done=[done], joins=steps)
        if answer.gaps:  # as whoever holds it does
            publication.flush()
            return self.end(claim, publication, items)
        return answer.stale

    def kinds(self) -> list[str]:
        return [chunk.kind for chunk in self.ledger.chunks(self.run.id, "0")]


@keeps_publisher
def test_a_producer_ends_once() -> None:
    producer = Producer()
    claim = producer.claim()
    publication = producer.publication(claim)
    publication.items([1, 2])
    assert producer.end(claim, publication, [1, 2]) == []
    assert producer.end(claim, publication, [1, 2]) == ["0"]
    assert producer.kinds() == ["item", "end"]


@pytest.fixture
def no_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is published but what is flushed."""
    monkeypatch.setattr("mosaic_tasks.execution.streams.publisher.Publisher.due", lambda *_, **__: None)


def partly_published() -> tuple[Producer, Claim, Publication]:
    producer = Producer()
    claim = producer.claim()
    publication = producer.publication(claim)
    publication.items([1])
    publication.flush()
    publication.items([2, 3])
    return producer, claim, publication


@keeps_publisher
@pytest.mark.usefixtures("no_publisher")
def test_the_last_chunks_go_with_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trip is made for them."""
    producer, claim, publication = partly_published()
    monkeypatch.setattr(producer.ledger, "publish", lambda _deliveries: 1 / 0)
    assert producer.end(claim, publication, [1, 2, 3]) == []
    assert producer.kinds() == ["item", "item", "end"]


@keeps_publisher
@pytest.mark.usefixtures("no_publisher")
def test_the_publisher_has_nothing_to_say_for_a_call_that_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = Producer()
    holding = Holding(producer.process, producer.run.id, producer.plan, ["0"])
    holding.advance()
    claim = holding.next_claim()
    assert claim is not None
    publication = producer.publication(claim)
    publication.items([1])
    publication.flush()
    monkeypatch.setattr(producer.ledger, "publish", lambda _deliveries: 1 / 0)
    publication.items([2, 3])
    ending = holding.execution.endings.of_value(CallId("0"), [1, 2, 3], publication)
    envelope = producer.process.payloads.pack(producer.run.id, [1, 2, 3])
    Settling(holding).settle(claim, Value(envelope, "", ending), 0.1)
    beats = [publication.flushing(all_=True) for _ in range(2)]
    flush_together(beats[:1])
    holding.advance()
    flush_together(beats[1:])
    assert producer.kinds() == ["item", "item", "end"]
    assert [beat.error for beat in beats] == [None, None]


@keeps_publisher
@pytest.mark.usefixtures("no_publisher")
def test_a_call_whose_value_cannot_be_stored_says_no_more_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for it is not mixed with it."""
    producer, claim, publication = partly_published()
    execution = Execution(producer.process, producer.run.id, producer.plan)
    execution._publications[claim] = publication
    call = CallId("0")
    work = SimpleNamespace(claim=claim, call=call, node=producer.plan.node(0))
    with monkeypatch.context() as refusing:
        refusing.setattr(execution, "_value", refused)
        outcome = execution._outcome(cast("Work", work), [1, 2, 3], publication=publication)
    assert isinstance(outcome, Failure)
    execution.abandon(claim)
    ending = execution.endings.replaced(claim, [7, 8, 9], holder="me")
    flush_together([publication.flushing(all_=True)])  # its beat
    envelope = producer.process.payloads.pack(producer.run.id, [7, 8, 9])
    done = Done(
        "0",
        claim.fence,
        envelope,
        "done",
        producer.plan.raised(call),
        ending.marks,
        ending.fields,
        ending.flushes,
    )
    steps = producer.plan.steps(call)
    answer = producer.ledger.advance(producer.run.id, holder="me", done=[done], joins=steps)
    assert (answer.stale, answer.gaps) == ([], [])
    chunks = producer.ledger.chunks(producer.run.id, "0")
    unpack = producer.process.payloads.unpack_many
    assert content_of(chunks, lambda found: unpack(producer.run.id, found), "item") == [7, 8, 9]


def refused(*_given: Any) -> Any:
    raise PayloadError("the store refuses it")


@keeps_publisher
@pytest.mark.usefixtures("no_publisher")
def test_the_last_chunks_of_a_call_that_is_lost_are_not_published() -> None:
    producer, claim, publication = partly_published()
    lost = claim._replace(fence=claim.fence + 1)
    assert producer.end(lost, publication, [1, 2, 3]) == ["0"]
    assert producer.kinds() == ["item"]


@keeps_publisher
def test_a_reader_is_woken_by_the_flush_itself(monkeypatch: pytest.MonkeyPatch, redis_client: Redis) -> None:
    """No trip of its own is made for the message."""
    producer = Producer()
    publication = producer.publication(producer.claim())
    monkeypatch.setattr(producer.process.outbox, "publish", refuse)
    for items in ([1], [2]):
        publication.items(items)
        publication.flush()
    messages = redis_client.lrange("mosaic.cpu", 0, -1)
    tasks = sorted(json.loads(message)["headers"]["task"] for message in messages)
    assert tasks == ["mosaic.call", "mosaic.consume"]


def refuse(*_arguments: Any, **_options: Any) -> None:
    raise AssertionError("published apart")


class Told:
    """A publisher that notes when it is to flush."""

    times: ClassVar[list[float]] = []

    def due(self, _publication: Publication, *, at: float) -> None:
        self.times.append(at)


def test_the_publisher_is_told_once_of_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with each token; and again where it has become so much that it does not wait."""
    monkeypatch.setattr(publishing, "publisher", Told)
    monkeypatch.setattr(Told, "times", [])
    producer = Producer()
    publication = producer.publication(producer.claim())
    for items in ([0], [1], [2]):
        publication.items(items)
    assert len(Told.times) == 1
    publication.flush()
    publication.items([3])
    publication.items(list(range(FLUSH_ITEMS)))
    publication.items([4])
    assert len(Told.times) == 3
    assert Told.times[2] == 0.0


@keeps_publisher
def test_what_a_producer_says_after_its_end_is_refused() -> None:
    producer = Producer()
    claim = producer.claim()
    publication = producer.publication(claim)
    publication.items([1, 2])
    producer.end(claim, publication, [1, 2])
    publication.items([3])
    with pytest.raises(ClaimLost, match=r"call '0' of run .* is not held by claim 1 any more"):
        publication.flush()
    with pytest.raises(ClaimLost):
        publication.items([4])
    assert producer.kinds() == ["item", "end"]


@pytest.mark.parametrize("bad", [object(), "lost"], ids=["payload", "claim"])
def test_the_publisher_leaves_alone_what_failed(bad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is it sent again, nor looked at for ever."""
    monkeypatch.setattr(publishing, "publisher", Told)
    producer = Producer()
    claim = producer.claim()
    publication = producer.publication(claim)
    if bad == "lost":
        producer.ledger.take_back(producer.run.id, [(claim.call, claim.fence)], holder="me")
    publication.items([bad])
    with pytest.raises((PayloadError, ClaimLost)) as failed:
        publication.flush()
    assert publication.next_due() == math.inf
    monkeypatch.setattr(producer.ledger, "publish", refuse)
    with pytest.raises(failed.type):
        publication.flush()


@pytest.mark.parametrize("on_failure", ["skip", {"default": []}])
def test_who_fails_after_its_claim_was_lost_decides_nothing(serving: Workers, on_failure: Any) -> None:
    """Its retractions are refused; the attempt that has the claim now ends the node."""
    nodes = {
        "numbers": tool("loses_its_claim_once", with_={"n": 3}, on_failure=on_failure),
        "totals": tool("totals", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
    }
    assert run(nodes, "totals").result(30) == [0, 1, 3]


def test_a_million_items(serving: Workers, redis_client: Redis) -> None:
    """They share chunks and batches, however slowly they are taken."""
    nodes = {
        "numbers": tool("numbers", with_={"n": MILLION}),
        "total": tool("total", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
    }
    started = run(nodes, "total")
    assert started.result(100) == MILLION * (MILLION - 1) // 2
    assert redis_client.xlen(f"mosaic:{{{started.id}}}:s:0") <= MILLION / FLUSH_ITEMS + 1000


def test_a_chunk_of_50_megabytes(serving: Workers) -> None:
    nodes = {
        "pieces": tool("large_pieces", with_={"n": 2, "megabytes": 50}),
        "digests": tool("digests", with_={"pieces": "${pieces}"}, edges={"pieces": "stream"}),
    }
    expected = [sha256(Random(seed).randbytes(50 << 20)).hexdigest() for seed in range(2)]
    assert run(nodes, "digests").result(60) == expected


# -- what cannot be said -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ("strict", "node 'texts': ToolError: UnicodeDecodeError: .*can't decode byte 0xc3"),
        ("surrogateescape", r"node 'texts': NotSerializable: .*lone surrogate '\\udcc3' at position 3"),
    ],
)
def test_a_character_cut_in_two_is_told(serving: Workers, errors: str, message: str) -> None:
    """`é` is two bytes."""
    pieces = [b"caf\xc3".hex(), b"\xa9".hex()]
    nodes = {
        "texts": tool("texts_of_bytes", with_={"pieces": pieces, "errors": errors}),
        "listed": tool("listed", with_={"texts": "${texts}"}, edges={"texts": "stream"}),
    }
    with pytest.raises(RunFailed, match=message):
        run(nodes, "listed").result(30)


def test_a_fold_that_puts_out_no_text_is_told(serving: Workers) -> None:
    nodes = {
        "numbers": tool("numbers", with_={"n": 2}),
        "spelled": tool("surrogate", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
    }
    with pytest.raises(RunFailed, match=r"node 'spelled': NotSerializable: .*lone surrogate"):
        run(nodes, "spelled").result(30)


@keeps_publisher
@pytest.mark.parametrize("bad", ["object", "\ud800"])
def test_an_item_that_cannot_be_stored_fails_its_producer_and_does_not_stop_it(bad: str) -> None:
    """The producer does not wait for a publisher that cannot go on."""
    producer = Producer()
    publication = producer.publication(producer.claim())

    def publish() -> None:
        for item in tools.numbers_then(TOO_MANY, bad):
            publication.items([item])
        publication.finish()

    with pytest.raises(PayloadError, match="cannot be stored"):
        publish()


# -- answers of agents -------------------------------------------------------------------------------------------------


def answers(path: Path, first: str, second: str, pause_s: float = 0.0) -> str:
    """The model name of a recording: an answer, and what is said when it does not fit."""
    lines = [
        {
            "match": [""],
            "text": first,
            "deltas": [(pause_s * place, part) for place, part in enumerate(first)],
        },
        {"match": ["That answer does not fit"], "text": second},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return f"replay:{path}"


def reading_revenue(model: str) -> dict[str, Any]:
    return {
        "extract": agent(model),
        "seen": tool("told", with_={"x": "${extract.revenue}"}, edges={"extract": "fields"}),
        "both": tool("both", with_={"a": "${extract.revenue}", "b": "${seen}"}),
    }


@pytest.mark.parametrize("first", ['{"revenue": 12, "warnings": ["a", ', '{"revenue": 12, "warnings": [a]}'])
def test_an_answer_that_breaks_off_is_asked_for_again(serving: Workers, tmp_path: Path, first: str) -> None:
    """What was announced of the first is corrected."""
    model = answers(tmp_path / "answers.jsonl", first, '{"revenue": 13}')
    assert run(reading_revenue(model), "both").result(30) == [13, 13]


@pytest.mark.parametrize("broken", ['{"revenue": 12, "warn', "no JSON at all", '{"revenue": }'])
def test_an_answer_that_is_no_json_fails_the_run(serving: Workers, tmp_path: Path, broken: str) -> None:
    model = answers(tmp_path / "answers.jsonl", broken, broken)
    with pytest.raises(RunFailed, match="node 'extract': OutputInvalid"):
        run(reading_revenue(model), "both").result(30)


def test_a_field_of_another_type_is_not_announced(
    serving: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    model = answers(tmp_path / "answers.jsonl", '{"revenue": "12", "profit": 1}', '{"revenue": 12}')
    assert run(reading_revenue(model), "both").result(30) == [12, 12]
    assert tools.happened(redis_client, "seen") == ["12"]


def test_of_a_key_that_comes_twice_the_last_value_counts(serving: Workers, tmp_path: Path) -> None:
    """As everywhere in JSON; who has read the first runs again."""
    model = recorded(tmp_path / "answer.jsonl", (0.0, '{"revenue": 12, '), (0.5, '"revenue": 13}'))
    assert run(reading_revenue(model), "both").result(30) == [13, 13]


# -- consumers ---------------------------------------------------------------------------------------------------------


def test_a_consumer_may_be_slower_than_its_producer(serving: Workers, redis_client: Redis) -> None:
    """What came meanwhile makes one batch; its producer has long ended."""
    nodes = {
        "numbers": tool("gated_numbers", with_={"n": 5000, "gate_at": 1}),
        "sizes": tool("slow_sizes", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
    }
    started = run(nodes, "sizes")
    tools.await_told(redis_client, "slow", 1)
    tools.open_gate(redis_client, "more")
    ended = (event for event in started.events(follow=True) if event is not None and event.kind == "done")
    assert next(ended).calls == ("0",)
    tools.open_gate(redis_client, "slow")
    assert started.result(30) == [1, 4999]


def test_what_small_chunks_take_of_the_server_is_bounded(
    workers: Workers, redis_client: Redis, tmp_path: Path
) -> None:
    """Beyond the limit they go to the object store, many in one, while their reader is held."""
    limit, size = 20_000, 100_000
    env = {"MOSAIC_STREAM_BYTES": str(limit)}
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=4, env=env).wait_ready()
    nodes = {
        "numbers": tool("numbers", with_={"n": size}),
        "slow": tool("gated_count", with_={"values": "${numbers}"}, edges={"numbers": "stream"}),
    }
    started = run(nodes, "slow")
    tools.await_told(redis_client, "holds", 1)
    ended = (event for event in started.events(follow=True) if event is not None and event.kind == "done")
    assert next(ended).calls == ("0",)
    stream = f"mosaic:{{{started.id}}}:s:0"
    objects = [path for path in (tmp_path / "home" / "objects").rglob("*") if path.is_file()]
    assert redis_client.memory_usage(stream, samples=0) < 2 * limit
    assert 1 <= len(objects) < size / FLUSH_ITEMS / 4
    tools.open_gate(redis_client, "more")
    assert started.result(60) == list(range(size))


@keeps_publisher
def test_what_goes_outside_is_gathered_but_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call says nothing more, and is not over."""
    monkeypatch.setenv("MOSAIC_STREAM_BYTES", "0")
    settings.cache_clear()
    producer = Producer()
    publication = producer.publication(producer.claim())
    publication.items([0])
    publication.flush()
    for number in (1, 2):
        publication.items([number])
    (first,) = producer.ledger.chunks(producer.run.id, "0")
    (second,) = producer.ledger.await_chunks(producer.run.id, {"0": first.id}, block_ms=30_000)["0"]
    assert (first.data[:1], second.data[:1], second.size) == (b"\x00", b"\x03", 2)


@keeps_publisher
def test_a_reader_in_the_middle_of_a_chunk_is_behind_by_that_chunk() -> None:
    """Its cursor, just before the chunk, is no entry of the stream."""
    producer = Producer()
    publication = producer.publication(producer.claim())
    for _ in range(2):
        publication.items(list(range(5)))
        publication.flush()
    (reader,) = producer.ledger.advance(producer.run.id, holder="me", claim=["1.m"]).claimed
    chunks = producer.ledger.chunks(producer.run.id, "0")
    source = Source("0", kind="item")
    source.take_in(chunks, {chunk.id: list(range(5)) for chunk in chunks})
    source.consume(7)
    commit = Commit({"0": source.mark()}, {"0": source.cursor}, b"")
    producer.ledger.consume(producer.run.id, reader, holder="me", sources=["0"], need=None, commit=commit)
    assert producer.ledger.lag(producer.run.id, {"0": ["1.m"]}) == 5
