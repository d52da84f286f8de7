"""JSON Schemas as tables, and the page of workflow files that is made of them."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from manual.words import anchor, page, plain, prose, table, unwrapped

_SHAPES = {
    "Workflow": "The file",
    "Node": "nodes.NAME",
    "Defaults": "defaults",
    "AgentSpec": "agent",
    "Requirement": "requires",
    "MemoryNeed": "requires.memory",
    "MixtureSpec": "mixture",
    "ExpertSpec": "mixture.experts.NAME",
    "AnswerSpec": "mixture.answer",
    "GateSpec": "mixture.gate",
    "Selection": "mixture.selection",
    "BudgetSpec": "mixture.budget",
    "RulesSpec": "mixture.rules",
    "JudgeSpec": "mixture.verifier",
    "AggregatorSpec": "mixture.aggregator",
    "EdgeRule": "edges.NAME",
    "BatchRule": "batch",
    "RetryRule": "retry",
    "ScheduleSpec": "schedules.NAME",
}
"""The shapes of a workflow file in the order of the page, and where they stand in it."""


def workflow_page() -> str:
    """Workflow files."""
    from mosaic_tasks import Workflow

    schema = Workflow.json_schema()
    found = {"Workflow": schema, **schema["$defs"], **_inner(schema["$defs"])}
    return page(
        "Workflow files",
        "The keys of a workflow file, from its JSON Schema, which `mosaic schema` prints for editors. A duration is "
        "a number of seconds, or a text such as `90s`, `5m`, `1h`. [Concepts](../concepts.md) tells what nodes and "
        "edges are.",
        *shapes(found, titles=_SHAPES),
    )


def _inner(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Shapes that stand inside of others, by their titles."""
    found: dict[str, Any] = {}

    def look(part: Any) -> None:
        if isinstance(part, dict):
            if "properties" in part and part.get("title") in _SHAPES:
                found[part["title"]] = part
            for each in part.values():
                look(each)
        elif isinstance(part, list):
            for each in part:
                look(each)

    look(schemas)
    return found


def shapes(found: Mapping[str, Any], *, titles: Mapping[str, str]) -> Iterator[str]:
    for name, title in titles.items():
        shape = found[name]
        yield f"## {title}"
        yield from _described(shape.get("description", ""))
        yield _fields(shape, titles)


def _described(text: str) -> Iterator[str]:
    """A description without the list of its attributes, which the table has."""
    for paragraph in text.split("\n\n"):
        if paragraph and not paragraph.startswith("Attributes:"):
            yield prose(paragraph)


def _fields(shape: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    abouts = attributes(shape.get("description", ""))
    rows = []
    for name, field in shape.get("properties", {}).items():
        needed = "needed" if name in shape.get("required", ()) else literal(field.get("default"))
        about = field.get("description") or abouts.get(name, "")
        rows.append((f"`{name}`", type_of(field, titles), needed, unwrapped(about)))
    return table(("key", "type", "default", "meaning"), rows)


def attributes(text: str) -> dict[str, str]:
    """What a docstring says of its attributes."""
    _, _, body = text.partition("Attributes:\n")
    lines = filter(None, re.split(r"\n(?=\S)", textwrap.dedent(body)))
    told = (line.partition(":")[::2] for line in lines)
    return {
        name.strip(): unwrapped(about).removesuffix(".") for names, about in told for name in names.split(",")
    }


def literal(value: Any) -> str:
    """A default; of one that has keys of its own these tell."""
    return "" if value in (None, "") or isinstance(value, dict) else f"`{json.dumps(value)}`"


def type_of(field: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The type of a field in words."""
    if "$ref" in field or field.get("title") in titles:
        name = field.get("$ref", field.get("title", "")).rpartition("/")[2]
        return f"[{titles[name]}](#{anchor(titles[name])})"
    if "anyOf" in field:
        kinds = [type_of(each, titles) for each in field["anyOf"] if each.get("type") != "null"]
        return _duration(field) or " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    return _simple(field, titles)


def _simple(field: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {type_of(field['items'], titles)}" if field.get("items") else "list"
    below = field.get("additionalProperties")
    if kind == "object" and isinstance(below, dict) and below:
        return f"mapping to {type_of(below, titles)}"
    if kind == "object" and "patternProperties" in field:
        return f"mapping to {type_of(next(iter(field['patternProperties'].values())), titles)}"
    return f"{kind}{_bounds(field)}" if kind != "object" else "mapping"


def _bounds(field: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {plain(field[key])}" for key, sign in signs.items() if key in field]
    return f" {', '.join(found)}" if found else ""


def _duration(field: Mapping[str, Any]) -> str:
    return "duration" if any("ms|s|m|h|d" in each.get("pattern", "") for each in field["anyOf"]) else ""
