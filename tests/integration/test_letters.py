"""Letters: messages that a transition puts into the queue of the mailbox that it wakes."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from redis import Redis

from mosaic_queues.deliveries import Delivery
from mosaic_queues.ledger import Ledger
from mosaic_queues.outbox import CONSUME_TASK, Outbox
from mosaic_queues.streams import Flush, Letter, Piece
from mosaic_queues.transitions import Claim, Group

pytestmark = pytest.mark.integration
QUEUE = "q"
READER = "1.m"
PREFIX = "ns:"


def app_of(broker_url: str, **transport: Any) -> Celery:
    made = Celery("letters", broker=broker_url, set_as_current=False)
    made.conf.broker_transport_options = transport
    return made


def alike(raw: bytes | str) -> Any:
    """A message without what is its own."""
    message = json.loads(raw)
    ids = {message["headers"].pop("id"), message["properties"].pop("correlation_id")}
    tag, sent_at = message["properties"].pop("delivery_tag"), message["headers"].pop("sent_at")
    assert len(ids) == 1
    assert tag
    assert sent_at > 0
    return message


@pytest.mark.parametrize("priority", [0, 6])
@pytest.mark.parametrize("transport", [{}, {"global_keyprefix": PREFIX}], ids=["plain", "prefix"])
def test_a_letter_is_what_the_outbox_would_send(
    redis_client: Redis, broker_url: str, priority: int, transport: dict[str, Any]
) -> None:
    with app_of(broker_url, **transport) as made:
        outbox = Outbox(made, ledger=redis_client)
        letters = outbox.letters("run", [(QUEUE, [READER])], priority=priority, plan="hash")
        assert letters is not None
        assert redis_client.keys("*q*") == []
        outbox.publish("run", [(QUEUE, [READER])], priority=priority, plan="hash")
    (letter,) = letters
    (sent,) = redis_client.lrange(letter.key, 0, -1)
    assert alike(letter.text) == alike(sent)
    assert json.loads(letter.text)["headers"]["task"] == CONSUME_TASK


def test_each_letter_has_an_id_and_a_time_of_its_own(redis_client: Redis, broker_url: str) -> None:
    times = iter([1.5, 2.5])
    with app_of(broker_url) as made:
        outbox = Outbox(made, clock=lambda: next(times), ledger=redis_client)
        found = [outbox.letters("run", [(QUEUE, [READER])]) or [] for _ in range(2)]
    letters = [json.loads(letter.text) for (letter,) in found]
    assert [letter["headers"]["sent_at"] for letter in letters] == [1.5, 2.5]
    assert len({letter["headers"]["id"] for letter in letters}) == 2
    assert len({letter["properties"]["delivery_tag"] for letter in letters}) == 2


def test_a_broker_elsewhere_gets_no_letters(redis_client: Redis, broker_url: str) -> None:
    """The ledger's scripts cannot reach it, or must not touch its database."""
    other_database = app_of(broker_url.replace("virtual_host=0", "virtual_host=1"))
    assert other_database.conf.broker_url != broker_url
    for made in (other_database, app_of("memory://")):
        with made:
            assert Outbox(made, ledger=redis_client).letters("run", [(QUEUE, [READER])]) is None


# -- the transition ------------------------------------------------------------------------------------------------


class Woken:
    """A producer `0` that runs, and a mailbox that waits for its chunks."""

    def __init__(self, client: Redis) -> None:
        self.ledger, self.run_id = Ledger(client), uuid4().hex
        roots: list[Any] = [(QUEUE, ["0"], {}), (QUEUE, [READER], {READER: ["0"]})]
        self.ledger.open_run(
            self.run_id, plan="p", name="n", inputs=b"", roots=roots, retention_s=60, max_run_s=60
        )
        (self.claim,) = self._claimed("0")

    def _claimed(self, call: str) -> list[Claim]:
        return list(self.ledger.advance(self.run_id, holder="me", claim=[call]).claimed)

    def says(self, number: int, *letters: Letter) -> list[Group]:
        """The producer publishes an item; answers with what is left to publish."""
        flush = Flush("0", number, [READER], [Piece("item", number - 1, 1, b"x")])
        delivery = Delivery(self.run_id, self.claim, "me", [flush], letters=letters)
        (ready,) = self.ledger.publish([delivery])
        assert not isinstance(ready, Exception)
        return ready

    def reads(self) -> None:
        """The mailbox is claimed."""
        assert len(self._claimed(READER)) == 1


LETTER = Letter(READER, QUEUE, "list", "message")


@pytest.fixture
def woken(redis_client: Redis) -> Woken:
    return Woken(redis_client)


def test_a_mailbox_is_woken_by_its_letter(woken: Woken, redis_client: Redis) -> None:
    assert woken.says(1, LETTER) == []
    assert redis_client.lrange("list", 0, -1) == [b"message"]
    woken.reads()


def test_a_letter_is_sent_once(woken: Woken, redis_client: Redis) -> None:
    """Neither when its flush is repeated, nor to who has one already or reads."""
    for number in (1, 1, 2):
        assert woken.says(number, LETTER) == []
    woken.reads()
    assert woken.says(3, LETTER) == []
    assert redis_client.llen("list") == 1


def test_who_has_no_letter_is_left_to_the_caller(woken: Woken) -> None:
    assert woken.says(1, LETTER._replace(call="2.m")) == [(QUEUE, [READER])]


def test_a_letter_for_another_queue_is_not_sent(woken: Woken, redis_client: Redis) -> None:
    assert woken.says(1, LETTER._replace(queue="elsewhere")) == [(QUEUE, [READER])]
    assert redis_client.exists("list") == 0


def test_a_letter_that_is_refused_is_left_to_the_caller(woken: Woken, redis_client: Redis) -> None:
    """The chunk is there, and the mailbox ready."""
    redis_client.set("list", "taken")
    assert woken.says(1, LETTER) == [(QUEUE, [READER])]
    assert len(woken.ledger.chunks(woken.run_id, "0")) == 1
    woken.reads()
