"""The shape of a workflow file, as pydantic models: what may stand where, and its normal form.

Short forms (`retry: 3`, `timeout: 5m`, `repo: string`) become the long ones here, so that equal workflows are
equal objects however they were written.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from mosaic_routing.targets import Objective
from mosaic_tasks.definition.mixtures import MixtureSpec
from mosaic_tasks.definition.parts import AgentSpec, Duration, Part
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.schedules import NAME, ScheduleSpec
from mosaic_tasks.definition.schemas import TYPES
from mosaic_tasks.definition.terms import MOST_USD


class RetryRule(Part):
    """How often a call is tried, and the pauses between: `delay * factor**(n - 1)`, at most `max_delay`."""

    attempts: int = Field(default=1, ge=1, le=1000, description="tries, the first included")
    delay: Duration = Field(default=1.0, description="pause before the second try")
    factor: float = Field(default=2.0, ge=1, le=100, description="each pause is so many times the last one")
    max_delay: Duration = Field(default=60.0, description="no pause is longer")


def _retry(value: Any) -> Any:
    return {"attempts": value} if isinstance(value, int) and not isinstance(value, bool) else value


class FailureRule(Part):
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


class EdgeRule(Part):
    """When a node may start that reads from another, and what it sees.

    `final`: when that one closed; `fields`: when these parts of its output are complete; `stream`: at its first chunk,
    and again for each batch of them.
    """

    kind: Literal["final", "fields", "stream"] = Field(
        default="final", description="when: its end, some parts of its output, or each chunk"
    )
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


class BatchRule(Part):
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


NodeKind = Literal["tool", "task", "agent", "mixture"]
KINDS: tuple[NodeKind, ...] = ("tool", "task", "agent", "mixture")


class Defaults(Part):
    """What nodes use that do not say otherwise."""

    retry: Retry | None = Field(default=None, description="as a node's")
    timeout: Duration | None = Field(default=None, gt=0, description="as a node's")
    queue: str | None = Field(default=None, description="as a node's")
    model: str | None = Field(default=None, description="as an agent's; else MOSAIC_MODEL of who submits")
    on_failure: Failure | None = Field(default=None, description="as a node's")


class Node(Part):
    """One step: exactly one of `tool`, `task`, `agent` and `mixture`, and how it runs."""

    tool: str | None = Field(default=None, description="module:function")
    task: str | None = Field(default=None, description="name of a Celery task of your app")
    agent: AgentSpec | None = Field(default=None, description="a prompt to a model")
    mixture: MixtureSpec | None = Field(default=None, description="several experts, and when it is enough")
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
    retry: Retry | None = Field(
        default=None, description="how often a call is tried; a number: so many attempts"
    )
    timeout: Duration | None = Field(default=None, gt=0, description="seconds, or a text like 90s, 5m, 1h")
    on_failure: Failure | None = Field(
        default=None,
        description="`fail` the run, `skip` the node, or {default: VALUE} in the place of its output",
    )
    tags: tuple[str, ...] = Field(
        default=(), description="words by which people find it; they change nothing"
    )
    queue: str | None = Field(default=None, min_length=1, description="Celery queue")
    detached: bool = Field(default=False, description="runs although the output does not depend on it")
    description: str = Field(default="", description="for people")

    @model_validator(mode="after")
    def _one_kind(self) -> Node:
        named = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(named) != 1:
            told = f"it has {' and '.join(named)}" if named else "it has none of them"
            raise ValueError(f"a node has exactly one of tool, task, agent and mixture; {told}")
        return self

    @property
    def kind(self) -> NodeKind:
        """Which of the four it is."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)


class Definition(Part):
    """A whole workflow, as data."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9-]*$", max_length=100, description="lower case, digits and hyphens"
    )
    description: str = Field(default="", description="for people")
    inputs: dict[str, Input] = Field(
        default_factory=dict, description="name -> type, or a schema with a default"
    )
    defaults: Defaults = Field(default_factory=Defaults, description="of nodes that do not say otherwise")
    objective: Objective = Field(
        default="latency", description="what the router cares for most: latency, throughput, cost"
    )
    deadline: Duration | None = Field(default=None, gt=0, description="a run that takes longer fails")
    budget: float | None = Field(
        default=None,
        ge=0,
        le=MOST_USD,
        allow_inf_nan=False,
        description="US dollars that a run may cost",
    )
    schedules: dict[Annotated[str, StringConstraints(pattern=NAME, max_length=100)], ScheduleSpec] = Field(
        default_factory=dict,
        description="name -> when runs start by themselves, once `mosaic schedule add` ran",
    )
    nodes: dict[str, Node] = Field(min_length=1, description="id -> node")
    output: str = Field(description="id of the node whose output is the result")


__all__ = [
    "BatchRule",
    "Defaults",
    "Definition",
    "EdgeRule",
    "FailureRule",
    "Node",
    "RetryRule",
]
