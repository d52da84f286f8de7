"""What is wrong with an answer by the rules of its mixture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mosaic_tasks.engines.protocol import FinishReason
from mosaic_tasks.engines.schema import mismatch
from mosaic_tasks.mixtures.patterns import has_pattern
from mosaic_tasks.mixtures.values import Problem, Rules

_HEAD = 300
_REFUSES = re.compile(
    r"(?:\bi(?:['’]m| am)? ?(?:can(?:['’]t|not| not)|won['’]t|will not|unable to|not able to|must decline to"
    r"|do not feel comfortable|don['’]t feel comfortable)\s+(?:\w+\s+){0,3}?(?:help|assist|comply|answer"
    r"|provide|fulfil+|continue|discuss|create|generate|write|engage|share|do (?:that|this)))"
    r"|\bas an ai(?: language)? model\b|\bi must decline\b|\bagainst my (?:guidelines|programming)\b",
    re.IGNORECASE,
)


def problems(
    text: str,
    value: Any,
    rules: Rules,
    schema: dict[str, Any] | None = None,
    finish_reason: FinishReason = "stop",
) -> tuple[Problem, ...]:
    """What is wrong with an answer, in the order of `Problem`; nothing where it counts.

    Args:
        text: as it was written.
        value: what was read of it; None where nothing could be.
        schema: that the value shall fit.

    Raises:
        ConfigurationError: the pattern of the rules is none.
        EngineRefused: the schema is none.
    """
    return tuple(_problems(text, value, rules, schema, finish_reason))


def _problems(
    text: str, value: Any, rules: Rules, schema: dict[str, Any] | None, finish_reason: FinishReason
) -> Iterator[Problem]:
    empty = not text.strip() and value in (None, "", [], {})
    if empty:
        yield "empty"
    elif value is None:
        yield "unreadable"
    if rules.refusals and (finish_reason == "refused" or _refuses(text) or _refuses(value)):
        yield "refused"
    if finish_reason == "length":
        yield "truncated"
    if schema is not None and value is not None and mismatch(value, schema) is not None:
        yield "schema"
    if rules.pattern and not has_pattern(text, rules.pattern):
        yield "pattern"
    if any(not _names(text, entity) for entity in rules.entities):
        yield "entity"


def _refuses(said: Any) -> bool:
    """Whether a text begins with a refusal."""
    return isinstance(said, str) and _REFUSES.search(said[:_HEAD]) is not None


def _names(text: str, entity: str) -> bool:
    """Whether the text names it, as words of their own."""
    return re.search(rf"(?<!\w){re.escape(entity.casefold())}(?!\w)", text.casefold()) is not None


__all__ = ["problems"]
