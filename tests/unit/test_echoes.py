"""Echoes between machines: what is answered, and what is not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from mosaic_queues.errors import ConfigurationError
from mosaic_routing.echoes import ANSWER_BYTES, ASK_BYTES, Echo, parse_address, round_trips

WAIT_S = 10.0


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo("127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def asking(echo: Echo) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(WAIT_S)
        made.connect(parse_address(echo.address))
        yield made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.5", ("10.0.0.5", 0)),
        (" 10.0.0.5:7070 ", ("10.0.0.5", 7070)),
        ("fd00::5", ("fd00::5", 0)),
        ("[fd00::5]", ("fd00::5", 0)),
        ("[fd00::5]:7070", ("fd00::5", 7070)),
    ],
)
def test_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.0.0.0",
        "0.0.0.0:7070",
        "::",
        "[::]:7070",
        "224.0.0.1",
        "gpu1",
        "gpu1:7070",
        "10.0.0.5:x",
        "10.0.0.5:70000",
    ],
)
def test_what_is_no_address_of_a_machine_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"MOSAIC_MACHINE_ADDRESS=.* is no address of this machine"):
        parse_address(text)


def test_an_answer_is_the_first_half_of_what_was_asked(asking: socket.socket) -> None:
    asked = bytes(range(ASK_BYTES))
    asking.send(asked)
    assert asking.recv(100) == asked[:ANSWER_BYTES]


def test_nothing_else_is_answered_an_answer_least_of_all(asking: socket.socket) -> None:
    for size in (0, 1, ANSWER_BYTES, ASK_BYTES - 1, ASK_BYTES + 1, 9_000):
        asking.send(b"x" * size)
    asking.send(b"y" * ASK_BYTES)
    assert asking.recv(100) == b"y" * ANSWER_BYTES  # they came before it, in this order
    asking.settimeout(0)
    with pytest.raises(BlockingIOError):
        asking.recv(100)


def test_it_listens_on_its_one_address(echo: Echo) -> None:
    assert echo.address.startswith("127.0.0.1:")
    assert not echo.address.endswith(":0")


def test_round_trips_are_measured_to_those_that_answer(echo: Echo) -> None:
    with closing(Echo("127.0.0.1")) as as_well, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        found = round_trips([echo.address, as_well.address, mute, "nonsense", "127.0.0.1"])
    assert set(found) == {echo.address, as_well.address}
    assert all(0 < seconds < WAIT_S for seconds in found.values())


def test_where_nobody_listens_costs_the_others_nothing(echo: Echo) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{gone.getsockname()[1]}"
    assert set(round_trips([dead, echo.address])) == {echo.address}


def test_an_address_that_another_has_is_told(echo: Echo) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be used .*; give an address of this machine"):
        Echo(echo.address)


def test_an_address_of_another_machine_is_told() -> None:
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Echo("192.0.2.1")  # for documentation: no machine has it


def test_nobody_to_ask_asks_nobody() -> None:
    assert round_trips([]) == {}
