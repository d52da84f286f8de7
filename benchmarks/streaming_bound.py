"""The lower bound of a run's time: its critical path with overlap, if everything but the recorded answers took no time.

A run is a set of steps. A step is an answer with its recorded timing (what comes how long after the request), or a tool
that takes a measured time. It begins as soon as what it is `after` has come: the whole of an earlier step, or of an
answer the beginning up to and including a certain text. So

    begin(step)       = max over (earlier, text) in after: begin(earlier) + when(earlier, text)
    when(step, text)  = the time of the piece that completes `text`; without a text: of the last piece
    critical path     = max over steps: begin(step) + when(step, "")

Steps may stand in a line that has a number of places: so many of them at once. Such a line is not over before its first
step could begin, all its work has been done by all places without a pause, and what at least follows each of its steps:

    length(step)      = when(step, "")
    span(step)        = max of length(step), and over (later, text) that are after it: when(step, text) + span(later)
    line              = min begin(step) + sum length(step) / places + min (span(step) - length(step)), over its steps
    bound             = max of the critical path and of the lines

The calls that a workflow makes are given by its definition (a call a batch, a call an item); an agent's batches follow
each other, which is an `after` too. Nothing is counted for the engine, the server, or for waiting: no run of these
calls with these timings can be shorter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
        line: whose places it needs; empty: it waits for none.
    """

    name: str
    timed: Timed
    after: Sequence[After] = ()
    line: str = ""

    @property
    def text(self) -> str:
        """All that comes."""
        return "".join(piece for _, piece in self.timed)

    @property
    def length_s(self) -> float:
        """Until all has come."""
        return self.timed[-1][0]

    def when(self, text: str) -> float:
        """How long after its beginning `text` is there.

        Raises:
            ValueError: it never comes.
        """
        if not text:
            return self.length_s
        end = self.text.index(text) + len(text)
        for at_s, piece in self.timed:
            end -= len(piece)
            if end <= 0:
                return at_s
        raise AssertionError("a text ends within its pieces")


def answer(name: str, recorded: Recording, *, after: Sequence[After] = (), line: str = "") -> Step:
    """The step of a recorded answer."""
    pieces, _ = performance(recorded, _REQUEST)
    return Step(name, pieces, after, line)


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


def tool(name: str, length_s: float, *, after: Sequence[After] = (), line: str = "") -> Step:
    """The step of a tool that takes so long."""
    return Step(name, [(length_s, "")], after, line)


def bound_s(steps: Sequence[Step], places: Mapping[str, int] | None = None) -> float:
    """The bound.

    Args:
        steps: in an order in which they may begin.
        places: of each line.
    """
    begins, spans = _begins(steps), _spans(steps)
    critical_path_s = max(begins[step.name] + step.length_s for step in steps)
    lines = [
        min(begins[step.name] for step in line)
        + sum(step.length_s for step in line) / count
        + min(spans[step.name] - step.length_s for step in line)
        for name, count in (places or {}).items()
        if (line := [step for step in steps if step.line == name])
    ]
    return max(critical_path_s, *lines, 0.0)


def _begins(steps: Iterable[Step]) -> dict[str, float]:
    """When each step begins at the earliest."""
    known: dict[str, Step] = {}
    begins: dict[str, float] = {}
    for step in steps:
        known[step.name] = step
        begins[step.name] = max(
            (begins[name] + known[name].when(text) for name, text in step.after), default=0.0
        )
    return begins


def _spans(steps: Sequence[Step]) -> dict[str, float]:
    """How long it takes at least from the beginning of each step to the end of all that follows it."""
    following: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    spans: dict[str, float] = {}
    for step in reversed(steps):
        later = (step.when(text) + span_s for text, span_s in following[step.name])
        spans[step.name] = max(step.length_s, *later, 0.0)
        for name, text in step.after:
            following[name].append((text, spans[step.name]))
    return spans
