"""Tools of the runs that these tests look at in a browser; workers import them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.integration.stream_tools import gate

HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script>\"'><svg onload=alert(3)></title></pre>"
    "<a href=javascript:alert(4)>x</a>&lt;b&gt;<iframe src=//127.0.0.1:9/>"
)
"""What would run a script, load something, or make an element, wherever it came into a page as it is."""


def waits(name: str, value: object = None) -> object:
    """Gives `value` once the test opens the gate `name`."""
    gate(name)
    return value


def lines() -> Iterator[str]:
    """One line at once, another once the test opens the gate `more`, and goes on at the gate `end`."""
    yield "the first line"
    gate("more")
    yield "the second line"
    gate("end")


def hostile_lines() -> Iterator[str]:
    """Output that is an attack."""
    yield HOSTILE
    yield "</script>" + HOSTILE


def hostile_failure(said: object = None) -> None:
    """Fails with an error that is an attack."""
    raise ValueError(HOSTILE)


def numbers(n: int) -> list[int]:
    """0..n-1."""
    return list(range(n))


def same(x: object) -> object:
    """What it gets."""
    return x
