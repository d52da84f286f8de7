"""Work in steps, between which the server is asked: alone, or several pieces of work that share their trips.

Each piece is a generator, which yields what it asks and is sent the answer, so that what goes wrong with one is raised
in that one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


class Errand(Generic[Asked, Answer]):
    """One piece of work.

    Attributes:
        asked: what it asks now; None: it is over.
        error: why it did not end well.
    """

    def __init__(self, steps: Generator[Asked, Answer, object]) -> None:
        self._steps = steps
        self.asked: Asked | None = None
        self.error: Exception | None = None

    def begin(self) -> None:
        """Up to what it asks first."""
        self._go_on(partial(next, self._steps))

    def answered(self, answer: Answer | Exception) -> None:
        """Up to what it asks next."""
        go_on = self._steps.throw if isinstance(answer, Exception) else self._steps.send
        self._go_on(partial(go_on, answer))  # type: ignore[arg-type]

    def _go_on(self, step: Callable[[], Asked]) -> None:
        self.asked = None
        try:
            self.asked = step()
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - told to whoever sent it
            self.error = error

    def close(self) -> None:
        """Lets go of what it holds, also where it was interrupted."""
        self._steps.close()


E = TypeVar("E", bound="Errand[Any, Any]")


def go_together(errands: Sequence[E], send: Callable[[Sequence[E]], object]) -> None:
    """Takes all of them to their ends, each of which holds its error then.

    Args:
        send: gives each of those that ask something its answer.
    """
    try:
        for each in errands:
            each.begin()
        while asking := [each for each in errands if each.asked is not None]:
            send(asking)
    finally:
        for each in errands:
            each.close()


def go_alone(steps: Generator[Asked, Answer, Result], ask: Callable[[Asked], Answer]) -> Result:
    """Takes one to its end; what goes wrong is raised."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = ask(asked)
            except Exception as error:  # noqa: BLE001 - the steps make of it what they have to
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
