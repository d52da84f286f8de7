"""Shows again and again what workers report: in its place on a terminal, below each other elsewhere, or as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mosaic_tasks.cli.output import console, print_json_line

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY_S = 1.0
"""Workers report so often, or less."""
FoundT = TypeVar("FoundT")


def follow(
    read: Callable[[], FoundT], rendered: Callable[[FoundT], RenderableType], *, as_json: bool
) -> None:
    """Goes on until Ctrl-C.

    Args:
        read: asks what there is now.
        rendered: for people.
        as_json: a line of JSON each time instead.
    """
    out = console()
    if as_json:
        _repeat(lambda: print_json_line(read()))
    elif not out.is_terminal or out.is_dumb_terminal:
        _repeat(lambda: out.print(rendered(read()), soft_wrap=True))
    else:
        from rich.live import Live

        with Live(rendered(read()), console=out, auto_refresh=False) as live:
            _repeat(lambda: live.update(rendered(read()), refresh=True))


def _repeat(show: Callable[[], object]) -> None:
    while True:
        show()
        time.sleep(EVERY_S)
