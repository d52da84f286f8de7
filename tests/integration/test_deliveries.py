"""What several calls publish in one trip: a step each, with an answer each."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from mosaic_queues.deliveries import Delivery
from mosaic_queues.errors import ClaimLost, IllegalTransition
from mosaic_queues.ledger import Ledger
from mosaic_queues.streams import Flush, Piece
from mosaic_queues.transitions import Claim

pytestmark = pytest.mark.integration


class Producer(NamedTuple):
    """A call that runs, in a run of its own."""

    ledger: Ledger
    run_id: str
    claim: Claim

    def says(self, number: int, *, offset: int = 0) -> Delivery:
        flush = Flush("0", number, [], [Piece("item", offset, 1, b"x")])
        return Delivery(self.run_id, self.claim, "me", [flush])

    def said(self) -> list[tuple[int, int]]:
        """Flushes and offsets of what is there."""
        return [(chunk.flush, chunk.offset) for chunk in self.ledger.chunks(self.run_id, "0")]


@pytest.fixture
def producers(redis_client: Redis) -> list[Producer]:
    return [_producer(Ledger(redis_client)) for _ in range(4)]


def _producer(ledger: Ledger) -> Producer:
    run_id, roots = uuid4().hex, [("mosaic.cpu", ["0"])]
    ledger.open_run(run_id, plan="p", name="n", inputs=b"", roots=roots, retention_s=60, max_run_s=60)
    (claim,) = ledger.advance(run_id, holder="me", claim=["0"]).claimed
    return Producer(ledger, run_id, claim)


def answers(*deliveries: Delivery, ledger: Ledger) -> list[Any]:
    """Errors by their kind."""
    found = ledger.publish(deliveries)
    return [type(answer) if isinstance(answer, Exception) else answer for answer in found]


def test_each_is_answered_for_itself(producers: list[Producer], redis_client: Redis) -> None:
    """One was taken back, one does not follow on, and of one the server has something else under its key."""
    lost, gap, broken, good = producers
    lost.ledger.take_back(lost.run_id, [("0", lost.claim.fence)], holder="me")
    redis_client.set(f"mosaic:{{{broken.run_id}}}:s:0", "no stream", ex=60)
    deliveries = [lost.says(1), gap.says(1, offset=5), broken.says(1), good.says(1)]
    assert answers(*deliveries, ledger=good.ledger) == [ClaimLost, IllegalTransition, ResponseError, []]
    assert [each.said() for each in (lost, gap, good)] == [[], [], [(1, 0)]]


def test_it_is_one_trip(producers: list[Producer], redis_client: Redis) -> None:
    deliveries = [each.says(1) for each in producers]
    producers[0].ledger.publish(deliveries)  # the server knows the script
    before = redis_client.info("stats")["total_reads_processed"]
    producers[0].ledger.publish([each.says(2, offset=1) for each in producers])
    after = redis_client.info("stats")["total_reads_processed"]
    assert after - before == 2  # the second one asks for this
    assert [each.said() for each in producers] == [[(1, 0), (2, 1)]] * 4


def test_a_server_that_forgot_the_script_is_told_it_again(
    producers: list[Producer], redis_client: Redis
) -> None:
    redis_client.script_flush()
    broken, good = producers[:2]
    redis_client.set(f"mosaic:{{{broken.run_id}}}:s:0", "no stream", ex=60)
    found = answers(broken.says(1), good.says(1), ledger=good.ledger)
    assert found == [ResponseError, []]
    assert good.said() == [(1, 0)]


def test_what_was_published_is_not_repeated(producers: list[Producer]) -> None:
    """As where an answer was lost: all of a trip is made again."""
    deliveries = [each.says(1) for each in producers]
    for _ in range(2):
        assert answers(*deliveries, ledger=producers[0].ledger) == [[]] * 4
    assert [each.said() for each in producers] == [[(1, 0)]] * 4
