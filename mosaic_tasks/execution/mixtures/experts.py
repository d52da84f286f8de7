"""Asks an expert, a verifier or an aggregator of a mixture, and makes of what it writes what the mixture hears."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mosaic_queues.errors import ContentRefused, OutputInvalid
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.execution.agents import AgentAnswer
from mosaic_tasks.execution.outcomes import Work
from mosaic_tasks.execution.placing.asking import Asking
from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.checks import problems
from mosaic_tasks.mixtures.fields import ABSENT, encodable, last_field, storable
from mosaic_tasks.mixtures.mixture import Mixture
from mosaic_tasks.mixtures.signals import AnswerReader, signals
from mosaic_tasks.mixtures.values import Answer, Heard, Problem

MISSING = "missing"
"""The field of an answer in which an expert says what it lacked, such as `["data"]`."""
_MOST_MISSING, _LONGEST = 8, 100
_KINDS: dict[str, Problem] = {OutputInvalid.__name__: "schema", ContentRefused.__name__: "refused"}
"""Failures that are the expert's own."""
_NODE = re.compile(r"\Anode '[^']*'(?:, item \d+)?: ")


async def asked(
    asking: Asking, work: Work, agent: AgentPlan, mixture: Mixture
) -> tuple[dict[str, Any], AgentAnswer]:
    """What the mixture hears of a call, as it is stored, and the answer with what it used.

    An expert stops writing as soon as its answer is complete, unless the mixture wants all of it, or asks what is
    missing.
    """
    clock = asyncio.get_running_loop().time
    begun = clock()
    options: dict[str, Any] = {}
    is_enough = not mixture.whole and MISSING not in (agent.output_schema or {}).get("properties", {})
    if work.names["kind"] == "expert" and is_enough:
        reader = AnswerReader(mixture.form, agent.output_schema)
        options = {"on_delta": reader.feed, "is_enough": lambda: reader.answer is not None}
    answer = await asking.ask(work, agent, work.names, **options)
    heard = heard_of(answer, work.names, agent, mixture)
    heard = msgspec.structs.replace(heard, seconds=round(clock() - begun, 3))
    return msgspec.to_builtins(heard), answer


def heard_of(answer: AgentAnswer, names: Mapping[str, Any], agent: AgentPlan, mixture: Mixture) -> Heard:
    """What an answer comes to."""
    used = answer.usage
    heard = Heard(
        names["index"],
        names["expert"],
        model=answer.model,
        round=names["round"],
        text=encodable(answer.text),
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cost_usd=used.cost_usd,
        signals=signals(answer.logprobs),
    )
    if names["kind"] == "verifier":
        return msgspec.structs.replace(heard, support=float(answer.value["support"]))
    schema = None if answer.is_cut else agent.output_schema
    found = problems(answer.text, answer.value, mixture.rules, schema, answer.finish_reason)
    read = None if found else _read(answer, mixture)
    if read is None and not found:
        found = ("unreadable",)
    missing = _missing(answer.value, answer.text)
    return msgspec.structs.replace(heard, answer=read, problems=found, missing=missing)


def _read(answer: AgentAnswer, mixture: Mixture) -> Answer | None:
    """The answer that is compared, with what the mixture gives where it decides for it."""
    if not mixture.whole:
        return normalise(answer.text, mixture.form)
    read, value = normalise(answer.value, mixture.form), storable(answer.value)
    return None if read is None or value is ABSENT else msgspec.structs.replace(read, value=value)


def _missing(value: Any, text: str) -> tuple[str, ...]:
    """What an answer in JSON says that its expert lacked; of an expert that was stopped, what it had said so far."""
    said = value.get(MISSING) if isinstance(value, dict) else last_field(text, MISSING)
    listed = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    named = (encodable(each.strip().lower()) for each in listed if isinstance(each, str))
    return tuple(dict.fromkeys(each for each in named if 0 < len(each) <= _LONGEST))[:_MOST_MISSING]


def failed(names: Mapping[str, Any], error: str) -> dict[str, Any]:
    """What the mixture hears of a call that failed for good; where it names the expert, the node need not be named."""
    why = _NODE.sub("", error)
    kind = why.partition(": ")[0]
    problems = (_KINDS[kind],) if kind in _KINDS else ()
    heard = Heard(names["index"], names["expert"], round=names["round"], problems=problems, failed=why)
    return dict(msgspec.to_builtins(heard))


__all__ = ["asked", "failed", "heard_of"]
