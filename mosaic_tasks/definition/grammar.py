"""The shape of a workflow file, as pydantic models: what may stand where, and its normal form.

Short forms (`retry: 3`, `timeout: 5m`, `repo: string`) become the long ones here, so that equal workflows are
equal objects however they were written.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from mosaic_routing.requirements import Requirement, read_requirement
from mosaic_routing.targets import Objective
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.schemas import TYPES

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


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RetryRule(_Part):
    """How often a call is tried, and the pauses between: `delay * factor**(n - 1)`, at most `max_delay`."""

    attempts: int = Field(default=1, ge=1, le=1000, description="tries, the first included")
    delay: Duration = Field(default=1.0, description="pause before the second try")
    factor: float = Field(default=2.0, ge=1, le=100)
    max_delay: Duration = 60.0


def _retry(value: Any) -> Any:
    return {"attempts": value} if isinstance(value, int) and not isinstance(value, bool) else value


class FailureRule(_Part):
    """What a node that failed for good does to the run."""

    action: Literal["fail", "skip", "default"] = "fail"
    default: Any = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if value in ("fail", "skip"):
            return {"action": value}
        if isinstance(value, dict) and list(value) == ["default"]:
            return {"action": "default", "default": value["default"]}
        if isinstance(value, FailureRule):
            return value
        raise ValueError(f"{value!r} is not 'fail', 'skip' or {{default: VALUE}}")

    @model_serializer
    def _written(self) -> Any:
        return {"default": self.default} if self.action == "default" else self.action


Retry = Annotated[
    RetryRule,
    BeforeValidator(_retry),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, RetryRule.model_json_schema()]}),
]
Failure = Annotated[
    FailureRule,
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["fail", "skip"]},
                {
                    "type": "object",
                    "properties": {"default": {}},
                    "required": ["default"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class EdgeRule(_Part):
    """When a node may start that reads from another, and what it sees.

    `final`: when that one closed; `fields`: when these parts of its output are complete; `stream`: at its first chunk,
    and again for each batch of them.
    """

    kind: Literal["final", "fields", "stream"] = "final"
    fields: tuple[str, ...] = Field(
        default=(), description="parts, such as `revenue` or `risk.level`; default: those read"
    )
    by: Literal["", "sentence"] = Field(
        default="", description="`sentence`: a streamed text as a list of sentences"
    )
    stable: bool = Field(default=False, description="wait until the producer closed all the same")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, dict) and "fields" in value and "kind" not in value:
            return {"kind": "fields", **value}
        return value


class BatchRule(_Part):
    """How a node that reads a stream takes its chunks: whatever is there, within these bounds."""

    min_items: int = Field(default=1, ge=1, description="wait for so many, but no longer than max_wait")
    max_items: int | None = Field(default=None, ge=1, description="take no more at once")
    max_wait: Duration = Field(
        default=0.0, le=10, description="wait for min_items no longer than this; 0: until they are there"
    )

    @model_validator(mode="after")
    def _fits(self) -> BatchRule:
        if self.max_items is not None and self.max_items < self.min_items:
            raise ValueError(
                f"a batch of at least {self.min_items} items cannot have at most {self.max_items}"
            )
        return self


def _input(value: Any) -> Any:
    if isinstance(value, str):
        value = {} if value == "any" else {"type": value}
    if not isinstance(value, dict):
        raise ValueError(
            f"{value!r} is no type; write one of {', '.join(TYPES)}, or {{type: ..., default: ...}}"
        )
    declared = value.get("type", [])
    for name in declared if isinstance(declared, list) else [declared]:
        if name not in TYPES:
            raise ValueError(
                f"no type {name!r}; the types are {', '.join(TYPES)}{did_you_mean(str(name), TYPES)}"
            )
    return value


Input = Annotated[
    dict[str, Any],
    BeforeValidator(_input),
    WithJsonSchema({"anyOf": [{"enum": [*TYPES, "any"]}, {"type": "object"}]}),
]


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


class AgentSpec(_Part):
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
    temperature: float | None = Field(default=None, ge=0, le=10)
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="draw from the likeliest tokens that together have this probability",
    )
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: Texts = ()
    adapter: str = Field(default="", description="a LoRA adapter that the model's workers host")


class Defaults(_Part):
    """What nodes use that do not say otherwise."""

    retry: Retry | None = None
    timeout: Duration | None = Field(default=None, gt=0)
    queue: str | None = None
    model: str | None = None
    on_failure: Failure | None = None


class Node(_Part):
    """One step: exactly one of `tool`, `task` and `agent`, and how it runs."""

    tool: str | None = Field(default=None, description="module:function")
    task: str | None = Field(default=None, description="name of a Celery task of your app")
    agent: AgentSpec | None = None
    arguments: dict[str, Any] = Field(default_factory=dict, alias="with", description="arguments by name")
    for_each: str | None = Field(
        default=None, description="reference to a list: one call for each of its items"
    )
    item_name: str = Field(
        default="item", alias="as", pattern=r"^[a-z][a-z0-9_]*$", description="name of the item"
    )
    when: str | None = Field(default=None, description="Jinja expression; false: the node is skipped")
    edges: dict[str, EdgeRule] = Field(
        default_factory=dict,
        description="producer -> `final`, `fields`, `stream`, or {fields: [...], stable: true}",
    )
    batch: BatchRule | None = Field(
        default=None, description="how many chunks of its streams it takes at once"
    )
    after: tuple[str, ...] = Field(default=(), description="nodes that end first, without data from them")
    retry: Retry | None = None
    timeout: Duration | None = Field(default=None, gt=0, description="seconds, or a text like 90s, 5m, 1h")
    on_failure: Failure | None = None
    tags: tuple[str, ...] = ()
    queue: str | None = Field(default=None, min_length=1, description="Celery queue")
    detached: bool = Field(default=False, description="runs although the output does not depend on it")
    description: str = ""

    @model_validator(mode="after")
    def _one_kind(self) -> Node:
        named = [kind for kind in ("tool", "task", "agent") if getattr(self, kind) is not None]
        if len(named) != 1:
            told = f"it has {' and '.join(named)}" if named else "it has none of them"
            raise ValueError(f"a node has exactly one of tool, task and agent; {told}")
        return self

    @property
    def kind(self) -> Literal["tool", "task", "agent"]:
        """Which of the three it is."""
        return "tool" if self.tool is not None else "task" if self.task is not None else "agent"


class Definition(_Part):
    """A whole workflow, as data."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9-]*$", max_length=100, description="lower case, digits and hyphens"
    )
    description: str = ""
    inputs: dict[str, Input] = Field(
        default_factory=dict, description="name -> type, or a schema with a default"
    )
    defaults: Defaults = Field(default_factory=Defaults)
    objective: Objective = Field(
        default="latency", description="what the router cares for most: latency, throughput, cost"
    )
    deadline: Duration | None = Field(default=None, gt=0, description="a run that takes longer fails")
    budget: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="US dollars that a run may cost"
    )
    nodes: dict[str, Node] = Field(min_length=1, description="id -> node")
    output: str = Field(description="id of the node whose output is the result")


__all__ = [
    "AgentSpec",
    "BatchRule",
    "Defaults",
    "Definition",
    "EdgeRule",
    "FailureRule",
    "Node",
    "RetryRule",
    "seconds",
]
