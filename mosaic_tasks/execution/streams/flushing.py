"""Flushes several publications together: what they have for a server goes there in one trip.

Each is a generator of its own, so that what goes wrong with one of them is raised in that one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

from mosaic_queues.deliveries import Delivery
from mosaic_queues.ledger import Ledger
from mosaic_queues.transitions import Group

Steps = Generator[Delivery, Sequence[Group], None]
"""The flush of one publication: yields what is to be sent, and is sent the calls to publish, or why it was refused."""


class Flushing:
    """One publication that is being flushed.

    Attributes:
        delivery: what it has to send now; None: it is over.
        error: why it did not end well.
    """

    def __init__(self, ledger: Ledger, steps: Steps) -> None:
        self.ledger, self._steps = ledger, steps
        self.delivery: Delivery | None = None
        self.error: Exception | None = None

    def begin(self) -> None:
        """Up to what it sends first."""
        self._go_on(partial(next, self._steps))

    def answered(self, answer: Sequence[Group] | Exception) -> None:
        """Up to what it sends next."""
        go_on = self._steps.throw if isinstance(answer, Exception) else self._steps.send
        self._go_on(partial(go_on, answer))  # type: ignore[arg-type]

    def _go_on(self, step: Callable[[], Delivery]) -> None:
        self.delivery = None
        try:
            self.delivery = step()
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - told to whoever flushes
            self.error = error

    def close(self) -> None:
        """Lets go of what it holds, also where it was interrupted."""
        self._steps.close()


def flush_together(flushes: Sequence[Flushing]) -> None:
    """Takes all of them to their ends, each of which holds its error then."""
    try:
        for each in flushes:
            each.begin()
        while asking := [each for each in flushes if each.delivery is not None]:
            for ledger in dict.fromkeys(each.ledger for each in asking):
                _send([each for each in asking if each.ledger is ledger], ledger)
    finally:
        for each in flushes:
            each.close()


def _send(flushes: Sequence[Flushing], ledger: Ledger) -> None:
    deliveries = [each.delivery for each in flushes if each.delivery is not None]
    answers: Sequence[Sequence[Group] | Exception]
    try:
        answers = ledger.publish(deliveries)
    except Exception as error:  # noqa: BLE001 - each of them makes of it what it has to
        answers = [error] * len(flushes)
    for each, answer in zip(flushes, answers, strict=True):
        each.answered(answer)
