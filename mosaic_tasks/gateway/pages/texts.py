"""What a node put out, as text for people: so much of it as a page can show."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from mosaic_tasks.client import Run
from mosaic_tasks.inspection.parts import StreamEvent
from mosaic_tasks.inspection.wording import counted

MOST_CHARACTERS = 20_000
MOST_ITEMS = 200


class Text(NamedTuple):
    """A text, and what is left out of it; empty: nothing."""

    text: str
    left_out: str = ""


NOTHING = Text("")


def output_text(value: Any) -> Text:
    """A whole output: its beginning."""
    text = value if isinstance(value, str) else _pretty(value)
    if len(text) <= MOST_CHARACTERS:
        return Text(text)
    return Text(text[:MOST_CHARACTERS], f"the first {MOST_CHARACTERS:,} of {counted(len(text), 'character')}")


def said_text(run: Run) -> Text:
    """What the output node has said so far: its end."""
    with run.pieces() as reading:
        return _folded(reading)


def _folded(events: Iterable[StreamEvent]) -> Text:
    text, items = _Text(), _Items()
    for event in events:
        if event.kind == "retract":
            text.cut(event.offset)
            items.cut(event.offset)
        elif event.kind == "text":
            text.put(event.offset, event.value)
        elif event.kind == "items":
            items.put(event.offset, event.value)
        elif event.kind == "value":
            return output_text(event.value)
    return items.shown() if items.count else text.shown()


class _Text:
    """The end of a text, of any length: no more of it is held than twice what is shown."""

    def __init__(self) -> None:
        self._begin, self._end = 0, ""

    def cut(self, at: int) -> None:
        """What was said from a place on does not hold."""
        self._begin, self._end = min(self._begin, at), self._end[: max(at - self._begin, 0)]

    def put(self, at: int, text: str) -> None:
        """It goes on."""
        self.cut(at)
        self._end += text
        if len(self._end) > 2 * MOST_CHARACTERS:
            dropped = len(self._end) - MOST_CHARACTERS
            self._begin, self._end = self._begin + dropped, self._end[dropped:]

    def shown(self) -> Text:
        """As much of it as a page has room for; less, where its end was taken back."""
        return _last(self._end, self._begin + len(self._end))


class _Items:
    """The end of a list, of any length: no more of it is held than twice what is shown."""

    def __init__(self) -> None:
        self._held, self._dropped = dict[int, Any](), 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self._dropped + len(self._held)

    def cut(self, at: int) -> None:
        """What was put from a place on does not hold."""
        self._held = {place: item for place, item in self._held.items() if place < at}
        self._dropped = min(self._dropped, at - len(self._held))

    def put(self, at: int, items: list[Any]) -> None:
        """Some come from a place on, which need not be the end."""
        self._held |= enumerate(items, at)
        if len(self._held) > 2 * MOST_ITEMS:
            kept = sorted(self._held)[-MOST_ITEMS:]
            self._dropped += len(self._held) - len(kept)
            self._held = {place: self._held[place] for place in kept}

    def shown(self) -> Text:
        """As many of them as a page has room for; fewer, where their end was taken back."""
        held = sorted(self._held)[-MOST_ITEMS:]
        text = "\n".join(_line(self._held[place]) for place in held)
        lines = _last(text, len(text))
        if len(held) == self.count:
            return lines
        return lines._replace(left_out=f"the last {len(held)} of {counted(self.count, 'item')}")


def _last(text: str, length: int) -> Text:
    """The end of a text of some length, of which so much is known."""
    end = text[-MOST_CHARACTERS:]
    return Text(end, f"the last {len(end):,} of {counted(length, 'character')}" if len(end) < length else "")


def _line(item: Any) -> str:
    return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)


def _pretty(value: Any) -> str:
    """A value as JSON; an object that has texts of several lines part by part, these as they are."""
    if isinstance(value, dict) and any(isinstance(part, str) and "\n" in part for part in value.values()):
        return "\n".join(_part(name, part) for name, part in value.items())
    return _json(value)


def _part(name: str, part: Any) -> str:
    if isinstance(part, str) and "\n" in part:
        return f"{name}:\n\n{part.strip()}\n"
    return f"{name}: {part if isinstance(part, str) else _json(part)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
