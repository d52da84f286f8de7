"""What a node put out, as text for people: so much of it as a page can show."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from mosaic_tasks.client import Run
from mosaic_tasks.inspection.reading import StreamEvent
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
    with run.stream(follow=False) as reading:
        return _folded(reading)


def _folded(events: Iterable[StreamEvent]) -> Text:
    text, items = "", dict[int, Any]()
    for event in events:
        if event.kind == "retract":
            text, items = text[: event.offset], {at: item for at, item in items.items() if at < event.offset}
        elif event.kind == "text":
            text = text[: event.offset] + event.value
        elif event.kind == "items":
            items |= enumerate(event.value, event.offset)
        elif event.kind == "value":
            return output_text(event.value)
    return _last_items(items) if items else _last(text)


def _last(text: str) -> Text:
    if len(text) <= MOST_CHARACTERS:
        return Text(text)
    return Text(text[-MOST_CHARACTERS:], f"the last {MOST_CHARACTERS:,} of {counted(len(text), 'character')}")


def _last_items(items: dict[int, Any]) -> Text:
    shown = sorted(items)[-MOST_ITEMS:]
    lines = _last("\n".join(_line(items[at]) for at in shown))
    if len(shown) == len(items):
        return lines
    return lines._replace(left_out=f"the last {MOST_ITEMS} of {counted(len(items), 'item')}")


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
