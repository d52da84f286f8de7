"""Parts of workflow files that several of their shapes share: durations, texts, requirements, and agents."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from mosaic_routing.requirements import Requirement, read_requirement

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_NO_DURATION = "is no duration; write a number of seconds or a text like '90s', '5m', '1h'"
_MAX_DURATION_S = 366 * 86_400.0


def seconds(value: Any) -> float:
    """A duration in seconds, from a number or a text such as `90s`, `5m`, `1h`.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} {_NO_DURATION}")
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} {_NO_DURATION}")
        value = float(match[1]) * _UNITS[match[2]]
    if not 0 <= value <= _MAX_DURATION_S:
        raise ValueError(f"{value!r} s is no duration between 0 and 366 days")
    return float(value)


Duration = Annotated[
    float,
    BeforeValidator(seconds),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _DURATION.pattern}]}
    ),
]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(_texts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


def _requirement(value: Any) -> Any:
    return value if value is None or isinstance(value, Requirement) else read_requirement(value)


def _requirement_schema() -> dict[str, Any]:
    (whole,), parts = msgspec.json.schema_components([Requirement], ref_template="{name}")
    schema: dict[str, Any] = parts[whole["$ref"]]
    memory = {"anyOf": [{"type": "null"}, parts["MemoryNeed"]], "default": None}
    return {**schema, "properties": {**schema["properties"], "memory": memory}}


Requires = Annotated[
    Requirement,
    PlainValidator(_requirement),
    PlainSerializer(msgspec.to_builtins),
    WithJsonSchema(_requirement_schema()),
]


class AgentSpec(Part):
    """An agent: prompts (Jinja), the schema of its answer, and how it is sampled."""

    prompt: str = Field(
        description="Jinja template; sees node ids, `inputs`, the item, and the node's `with`"
    )
    system: str = Field(default="", description="Jinja template of the system message")
    output: str | dict[str, Any] | None = Field(
        default=None,
        description="JSON Schema of the answer, or `module:Model`; without it the answer is text",
    )
    model: str | None = Field(
        default=None,
        description="PROVIDER:NAME, such as openai:gpt-5; pool:NAME: the router picks who answers",
    )
    requires: Requires | None = Field(
        default=None, description="what a model and its GPU must have; the router picks who answers"
    )
    temperature: float | None = Field(
        default=None, ge=0, le=10, description="how freely tokens are drawn; default: the model's own"
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="draw from the likeliest tokens that together have this probability",
    )
    max_tokens: int | None = Field(default=None, ge=1, description="the answer ends there")
    seed: int | None = Field(default=None, description="of the draw, where the engine heeds it")
    stop: Texts = Field(default=(), description="texts at which the answer ends, itself without them")
    adapter: str = Field(default="", description="a LoRA adapter that the model's workers host")


__all__ = ["AgentSpec", "Duration", "Part", "Requires", "Texts", "seconds"]
