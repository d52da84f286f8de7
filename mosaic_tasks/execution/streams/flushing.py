"""Flushes several publications together: what they have for a server goes there in one trip."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from mosaic_queues.deliveries import Delivery
from mosaic_queues.ledger import Ledger
from mosaic_queues.transitions import Group
from mosaic_tasks.execution.together import Errand, go_together

Steps = Generator[Delivery, Sequence[Group], None]
"""The flush of one publication: yields what is to be sent, and is sent the calls to publish, or why it was refused."""


class Flushing(Errand[Delivery, Sequence[Group]]):
    """One publication that is being flushed."""

    def __init__(self, ledger: Ledger, steps: Steps) -> None:
        super().__init__(steps)
        self.ledger = ledger


def flush_together(flushes: Sequence[Flushing]) -> None:
    """Takes all of them to their ends, each of which holds its error then."""
    go_together(flushes, _send)


def _send(asking: Sequence[Flushing]) -> None:
    for ledger in dict.fromkeys(each.ledger for each in asking):
        flushes = [each for each in asking if each.ledger is ledger]
        for each, answer in zip(flushes, _answers(flushes, ledger), strict=True):
            each.answered(answer)


def _answers(flushes: Sequence[Flushing], ledger: Ledger) -> Sequence[Sequence[Group] | Exception]:
    try:
        return ledger.publish([each.asked for each in flushes if each.asked is not None])
    except Exception as error:  # noqa: BLE001 - each of them makes of it what it has to
        return [error] * len(flushes)
