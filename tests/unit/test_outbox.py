"""Messages that cannot be sent are left to the sweeper."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from celery import Celery

from mosaic_queues.outbox import Outbox


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    """Of an app whose broker is down from the first connection on."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        app = Celery("down", broker=f"redis://127.0.0.1:{nobody.getsockname()[1]}/0", set_as_current=False)
        app.conf.broker_transport_options = {"max_retries": 0}
        yield Outbox(app)
        app.close()


def test_a_broker_that_is_down_from_the_start_is_told_by_the_answer(outbox: Outbox) -> None:
    assert outbox.publish("run", [("queue", ["0"])]) is False
    assert outbox.publish_chord("run", [("queue", ["0.0"])], ("queue", ["0.c"])) is False
    assert outbox.letters("run", [("queue", ["0.m"])]) is None
    assert outbox.publish("run", []) is True
