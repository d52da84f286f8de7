"""Tells events to people: a line each, but for a mailbox that reads again and again, which would fill the page.

Pure: a plan and its events in, lines out.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mosaic_queues.events import Event
from mosaic_queues.transitions import CLOSE, MAILBOX, is_shadow, shadowed
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.inspection.decisions import in_short
from mosaic_tasks.inspection.progress import node_of
from mosaic_tasks.inspection.wording import counted, dollars, duration, listed
from mosaic_tasks.mixtures.recording import Record


class Teller:
    """Tells the events of a run in order. Of a mailbox it tells the first claim and, in the end, how many there were;
    of a list that grows, how many items it has in the end.

    Args:
        created_ms: the time that lines count from.
    """

    def __init__(self, plan: Plan, created_ms: int) -> None:
        self._plan, self._created_ms = plan, created_ms
        self._claims: dict[str, int] = {}
        self._sizes: dict[str, str] = {}
        self._quiet: set[str] = set()

    def lines(self, event: Event) -> Iterator[str]:
        """What to print for an event: one line or none."""
        calls = tuple(call for call in event.calls if not _is_mailbox(call) or self._tells(call, event))
        if calls or not event.calls:
            line = event_line(self._plan, event._replace(calls=calls), self._created_ms)
            yield line + self._behind(event)

    def _tells(self, call: str, event: Event) -> bool:
        """Whether what happened to a mailbox is news."""
        if event.kind == "expanded":
            return self._tells_size(call, event.detail)
        is_quiet = call in self._quiet
        if event.kind == "claimed":
            self._claims[call] = self._claims.get(call, 0) + 1
            return not is_quiet
        if event.kind == "idle":
            self._quiet.add(call)
            return not is_quiet
        if event.kind != "usage":
            self._quiet.discard(call)
        return True

    def _tells_size(self, call: str, size: str) -> bool:
        """Whether the list is complete: then it is told again with the same size."""
        before = self._sizes.get(call, "0")
        self._sizes[call] = size
        return before == size

    def _behind(self, event: Event) -> str:
        """How often a mailbox was claimed that is over now; of nodes that run again, it counts anew."""
        for number in event.calls if event.kind == "redo" else ():
            box = f"{number}.{MAILBOX}"
            self._claims.pop(box, None)
            self._sizes.pop(box, None)
            self._quiet.discard(box)
        if event.kind not in ("done", "skipped", "failed"):
            return ""
        times = sum(self._claims.pop(call, 0) for call in event.calls)
        return f"  claimed {counted(times, 'time')}" if times else ""


def event_line(plan: Plan, event: Event, created_ms: int) -> str:
    """An event for people: when, what, to which calls, by whom."""
    parts = [f"{duration(event.at_ms - created_ms):>10}  {event.kind:<8}"]
    if event.calls:
        parts.append(
            listed([call_name(plan, call) + _doing(plan, event, call) for call in event.calls], most=4)
        )
    if about := _about(event):
        parts.append(about)
    if event.holder:
        parts.append(f"[{event.holder}]")
    return "  ".join(parts)


def _about(event: Event) -> str:
    if event.kind == "retry":
        return f"in {duration(event.pause_ms)}, after: {event.detail}"
    if event.kind == "redo":
        return f"again, in epoch {event.detail}"
    if event.kind == "expanded":
        return f"into {event.detail}"
    if event.kind == "ready":
        return f"in queue {event.detail}"
    if event.kind == "hedged":
        return f"to {event.detail}"
    if event.kind == "cut":
        return "not needed any more"
    if event.kind == "decided":
        return in_short(msgspec.json.decode(event.detail, type=Record))
    if event.kind == "overtaken":
        return "answered first where it was asked again"
    if event.kind == "routed":
        return event.detail if event.target else f"nowhere for {duration(event.pause_ms)}: {event.detail}"
    if any(event.tokens):
        return f"{event.detail}: {event.tokens[0]} tokens in{_cached(event)}, {event.tokens[1]} out{_cost(event)}"
    return event.detail


_READS = {"claimed": " (reads its streams)", "idle": " (waits for more)"}
_ASKS = {"claimed": " (reads the answers)", "idle": " (waits for answers)"}


def _doing(plan: Plan, event: Event, call: str) -> str:
    """What a mailbox does, which is claimed for each of its readings."""
    if not _is_mailbox(call):
        return ""
    is_mixture = plan.nodes[node_of(call)].mixture is not None
    return (_ASKS if is_mixture else _READS).get(event.kind, "")


def _cached(event: Event) -> str:
    return f" ({event.cached_tokens} from the prefix cache)" if event.cached_tokens else ""


def _cost(event: Event) -> str:
    return "" if event.cost_usd is None else f", {dollars(event.cost_usd)}"


def call_name(plan: Plan, call: str) -> str:
    """A call for people: `people`, `sections[3]`, `sections[close]`; a mailbox has the name of its node, a shadow is
    `people (again)`."""
    number, dot, rest = shadowed(call).partition(".")
    name, again = plan.nodes[int(number)].name, " (again)" if is_shadow(call) else ""
    if not dot or rest == MAILBOX:
        return name + again
    return f"{name}[{'close' if rest == CLOSE else rest}]{again}"


def _is_mailbox(call: str) -> bool:
    return call.endswith(f".{MAILBOX}")
