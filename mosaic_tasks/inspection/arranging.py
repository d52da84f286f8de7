"""Where nodes stand in lists and drawings: what a mixture asked stands below it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Shown(Protocol):
    """A node, or one execution of it, as it is shown."""

    @property
    def name(self) -> str:
        """The node's."""

    @property
    def asked_by(self) -> str:
        """The mixture that asks it."""

    @property
    def epoch(self) -> int:
        """In which it ran."""

    @property
    def calls(self) -> int:
        """How many it has."""


ShownT = TypeVar("ShownT", bound=Shown)


def arranged(shown: Iterable[ShownT]) -> list[ShownT]:
    """In the same order, but that what mixtures asked stands below them; whom they did not ask is left out."""
    own: list[ShownT] = []
    asked: dict[tuple[str, int], list[ShownT]] = {}
    for each in shown:
        if not each.asked_by:
            own.append(each)
        elif each.calls:
            asked.setdefault((each.asked_by, each.epoch), []).append(each)
    return [each for one in own for each in (one, *asked.get((one.name, one.epoch), ()))]


def label(shown: Shown) -> str:
    """The name as it stands in an arranged list."""
    return f"  {shown.name}" if shown.asked_by else shown.name


__all__ = ["Shown", "arranged", "label"]
