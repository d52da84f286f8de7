"""The lower bound of a run's time: its critical path with overlap, if everything but the recorded answers took no time.

A run is a set of steps. A step is an answer with its recorded timing (what comes how long after the request), or a tool
that takes a measured time. It begins as soon as what it is `after` has come: the whole of an earlier step, or of an
answer the beginning up to and including a certain text. So

    begin(step)       = max over (earlier, text) in after: begin(earlier) + when(earlier, text)
    when(step, text)  = the time of the piece that completes `text`; without a text: of the last piece
    bound             = max over steps: begin(step) + when(step, "")

The calls that a workflow makes are given by its definition (a call a batch, a call an item); an agent's batches follow
each other, which is an `after` too. Nothing is counted for the engine, the server, or for waiting: no run of these
calls with these timings can be shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mosaic_tasks.engines.protocol import EngineRequest
from mosaic_tasks.engines.recordings import Recording
from mosaic_tasks.engines.replay import Timed, performance

_REQUEST = EngineRequest(messages=())
After = tuple[str, str]
"""An earlier step, and the text whose end must have come; an empty one: the whole."""


@dataclass(frozen=True)
class Step:
    """A piece of work.

    Attributes:
        timed: seconds since its beginning, and the text that comes then.
        after: what must have come before.
    """

    name: str
    timed: Timed
    after: Sequence[After] = ()

    @property
    def text(self) -> str:
        """All that comes."""
        return "".join(piece for _, piece in self.timed)

    def when(self, text: str) -> float:
        """How long after its beginning `text` is there.

        Raises:
            ValueError: it never comes.
        """
        if not text:
            return self.timed[-1][0]
        end = self.text.index(text) + len(text)
        for at_s, piece in self.timed:
            end -= len(piece)
            if end <= 0:
                return at_s
        raise AssertionError("a text ends within its pieces")


def answer(name: str, recorded: Recording, *, after: Sequence[After] = ()) -> Step:
    """The step of a recorded answer."""
    pieces, _ = performance(recorded, _REQUEST)
    return Step(name, pieces, after)


def batches(name: str, asked: Iterable[tuple[Recording, Sequence[After]]]) -> list[Step]:
    """The steps of an agent that is asked batch after batch, each time when the answer before is whole.

    Args:
        asked: the answer to each batch, and what that batch is made of.
    """
    steps: list[Step] = []
    for place, (recorded, came) in enumerate(asked):
        earlier = [(each.name, "") for each in steps[-1:]]
        steps.append(answer(f"{name}{place}", recorded, after=[*came, *earlier]))
    return steps


def tool(name: str, length_s: float, *, after: Sequence[After] = ()) -> Step:
    """The step of a tool that takes so long."""
    return Step(name, [(length_s, "")], after)


def bound_s(steps: Iterable[Step]) -> float:
    """The bound, of steps in an order in which they may begin."""
    known: dict[str, Step] = {}
    begins: dict[str, float] = {}
    for step in steps:
        known[step.name] = step
        begins[step.name] = max(
            (begins[name] + known[name].when(text) for name, text in step.after), default=0.0
        )
    return max(begins[name] + step.when("") for name, step in known.items())
