"""How many messages a channel takes: as the header of a message says. And what it needs of kombu's inside."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.scheduling import round_robin_cycle

from mosaic_queues import intake
from mosaic_queues.intake import Intake, install_intake, weight_of

NEEDED: dict[type, set[str]] = {
    kombu_redis.Channel: {
        *("_in_poll", "_q_for_pri", "_qos", "_queue_cycle", "ack_emulation", "active_queues", "closed"),
        *("client", "connection", "connection_errors", "global_keyprefix", "pool", "priority_steps", "qos"),
    },
    kombu_redis.QoS: {
        *("_delivered", "_dirty", "_on_collect", "ack", "append", "channel"),
        *("prefetch_count", "reject", "restore_unacked_once", "unacked_index_key", "unacked_key"),
    },
    kombu_redis.Transport: {"_callbacks", "_deliver"},
    round_robin_cycle: {"consume", "rotate"},
    virtual.Message: {"_raw", "delivery_info", "headers"},
}
"""What the intake takes from kombu's classes."""


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


@pytest.mark.parametrize(
    ("of", "name"), [(of, name) for of, names in NEEDED.items() for name in sorted(names)]
)
def test_kombu_still_has_what_the_intake_needs_of_it(of: type, name: str) -> None:
    assert name in attributes(of), (
        f"kombu's {of.__name__} has no {name!r} any more; see mosaic_queues/intake.py"
    )


def test_all_private_names_of_kombu_that_the_intake_needs_are_guarded() -> None:
    tree = ast.parse(inspect.getsource(intake))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)}
    own = {name for of in (Intake, intake._Keys) for name in {*assigned(of), *vars(of)}}
    guarded = {name for names in NEEDED.values() for name in names if is_private(name)}
    assert used - own <= guarded <= used


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def attributes(of: type) -> set[str]:
    """The attributes of a class and of what it makes."""
    return {*dir(of), *(name for one in of.__mro__[:-1] for name in assigned(one))}


def assigned(of: type) -> Iterator[str]:
    """What the methods of a class set on `self`."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(of)))):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr
