"""How many messages a channel takes: as the header of a message says."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection

from mosaic_queues.intake import install_intake, weight_of


@pytest.mark.parametrize(
    ("headers", "weight"),
    [
        ({}, 1),
        ({"mosaic_slots": 7}, 7),
        ({"mosaic_slots": None}, 1),
        ({"mosaic_slots": "A1"}, 1),
        ({"mosaic_slots": [2]}, 1),
        ({"mosaic_slots": 0}, 1),
        ({"mosaic_slots": -3}, 1),
        (None, 1),
    ],
)
def test_a_message_weighs_what_its_header_says(headers: Any, weight: int) -> None:
    assert weight_of(headers) == weight


def test_other_brokers_stay_as_they_are() -> None:
    with Connection("memory://") as connection, connection.channel() as channel:
        before = channel.qos
        assert install_intake(channel, lambda: 1) is None
        assert channel.qos is before
