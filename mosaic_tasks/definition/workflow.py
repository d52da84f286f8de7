"""The workflow that people hold: read from YAML or built in Python, checked, written back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, PrivateAttr, ValidationError

from mosaic_queues.documents import dump
from mosaic_queues.errors import DefinitionError
from mosaic_tasks.definition.collector import collector_paused
from mosaic_tasks.definition.grammar import (
    BatchRule,
    Defaults,
    Definition,
    EdgeRule,
    Node,
    RetryRule,
)
from mosaic_tasks.definition.loading import Problem, Source, told
from mosaic_tasks.definition.mixtures import part_at
from mosaic_tasks.definition.parts import AgentSpec
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.definition.references import Path as DataPath
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.schedules import ScheduleSpec
from mosaic_tasks.definition.schemas import complete_inputs, inputs_schema, read_inputs
from mosaic_tasks.definition.validation import Analysis, analyse

_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SHOWN_PROBLEMS = 100
_WORDS = {
    "missing": "it is missing",
    "string_pattern_mismatch": "{input!r} does not match {pattern}",
    "string_type": "{input!r} is no text; put it in quotes if it is meant as one",
    "model_type": "{input!r} is no mapping of keys to values",
    "dict_type": "{input!r} is no mapping of keys to values",
}


class Workflow(Definition):
    """A workflow: inputs, nodes, and which node's output is the result.

    Equal workflows whose nodes stand in the same order compile into equal plans. It cannot be changed; what
    compiles it keeps the plan with it.
    """

    _source: Source | None = PrivateAttr(default=None)
    _plans: dict[Any, Plan] = PrivateAttr(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same, wherever they were read."""
        return isinstance(other, Workflow) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_yaml(cls, text: str, *, source: str = "<string>") -> Self:
        """Reads a workflow.

        Args:
            text: YAML.
            source: what to call it in messages.

        Raises:
            DefinitionError: with all problems of form, and then also those of meaning in the other nodes.
        """
        return cls._from_source(Source(source, text))

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Reads a workflow file.

        Raises:
            DefinitionError: as `from_yaml`, or the file cannot be read.
        """
        return cls._from_source(Source.read(path))

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, source: Source | None = None) -> Self:
        """A workflow from the data that a file would hold.

        Raises:
            DefinitionError: as `from_yaml`.
        """
        try:
            with collector_paused():
                workflow = cls.model_validate(data)
        except ValidationError as error:
            name = str(data.get("name", "?")) if isinstance(data, Mapping) else "?"
            problems = [*_problems_of_form(error), *_problems_elsewhere(data, error)]
            raise DefinitionError(_lines(problems, source, name)) from None
        workflow._source = source
        return workflow

    @classmethod
    def _from_source(cls, source: Source) -> Self:
        with collector_paused():
            data = source.load()
        if not isinstance(data, dict):
            raise DefinitionError([f"{source.name}:1: a workflow is a mapping with name, nodes and output"])
        return cls.from_data(data, source=source)

    def to_yaml(self) -> str:
        """The workflow as a file; what is default is left out."""
        return dump(self.model_dump(by_alias=True, exclude_defaults=True))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON Schema of workflow files, for editors."""
        return {"$schema": _SCHEMA_DIALECT, **cls.model_json_schema(by_alias=True)}

    @property
    def inputs_schema(self) -> dict[str, Any]:
        """JSON Schema of the inputs of a run."""
        return inputs_schema(self.inputs)

    def validate_inputs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a run, with defaults filled in.

        Raises:
            InputError: unknown or missing names, values of a wrong type; tells all of them.
        """
        return complete_inputs(self.inputs_schema, given)

    def parse_inputs(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Values given as text, on a command line, read by the type of each input; not yet validated.

        Raises:
            InputError: a text cannot be read as its input's type.
        """
        return read_inputs(self.inputs_schema, texts)

    def analysed(self, *, import_tools: bool = True) -> Analysis:
        """What the workflow means.

        Raises:
            DefinitionError: with all of its problems.
        """
        with collector_paused():
            analysis = analyse(self, import_tools=import_tools)
        if analysis.problems:
            raise DefinitionError(_lines(analysis.problems, self._source, self.name))
        return analysis


def _lines(problems: list[Problem], source: Source | None, workflow: str) -> list[str]:
    """One line a problem; of very many the first, and how many more there are."""
    lines = [told(problem, source=source, workflow=workflow) for problem in problems[:_SHOWN_PROBLEMS]]
    more = len(problems) - _SHOWN_PROBLEMS
    return [*dict.fromkeys(lines), *([f"and {more:,} more problems"] if more > 0 else [])]


def _problems_of_form(error: ValidationError) -> list[Problem]:
    return [_problem(dict(detail)) for detail in error.errors(include_url=False)]


def _problem(detail: dict[str, Any]) -> Problem:
    path: DataPath = tuple(step for step in detail["loc"] if step != "[key]")
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = _keys_at(path[:-1])
        hint = did_you_mean(str(path[-1]), known) or f"; the keys are: {', '.join(known)}"
        return Problem(path, f"unknown key {path[-1]!r}{hint}")
    if kind == "value_error":
        return Problem(path, str(detail["ctx"]["error"]))
    values = {"input": _shown(path, detail["input"]), **detail.get("ctx", {})}
    message = _WORDS[kind].format(**values) if kind in _WORDS else f"{values['input']!r}: {detail['msg']}"
    return Problem(path, message)


class _Shown(str):
    """A value as messages show it: its own `repr`, shortened."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(path: DataPath, value: Any) -> _Shown:
    if _may_hold_webhook(path, value):
        return _Shown(f"what stands there ({type(value).__name__})")
    text = repr(value)
    return _Shown(text if len(text) <= 80 else f"{text[:77]}...")


def _may_hold_webhook(path: DataPath, value: Any) -> bool:
    """Whether a value may be the URL of a webhook, or have one in it: services keep tokens there."""
    if path[:1] != ("schedules",):
        return False
    return path[-1] == "webhook" or isinstance(value, (dict, list))


def _keys_at(path: DataPath) -> list[str]:
    """The keys that may stand at a place of a workflow file."""
    model: type[BaseModel] = Definition
    match path:
        case ("defaults",):
            model = Defaults
        case ("schedules", _):
            model = ScheduleSpec
        case ("nodes", _):
            model = Node
        case ("nodes", _, "agent"):
            model = AgentSpec
        case ("nodes", _, "mixture", *rest):
            model = part_at(rest)
        case (*_, "retry"):
            model = RetryRule
        case ("nodes", _, "batch"):
            model = BatchRule
        case ("nodes", _, "edges", _):
            model = EdgeRule
    return [part.alias or name for name, part in model.model_fields.items()]


def _problems_elsewhere(data: Mapping[str, Any], error: ValidationError) -> list[Problem]:
    """Problems of meaning in the nodes whose form is right, so that one look tells all."""
    places = [
        detail["loc"]
        for detail in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    nodes = data.get("nodes")
    if not isinstance(nodes, dict) or ("nodes",) in places:
        return []
    broken = {str(place[1]) for place in places if len(place) > 1 and place[0] == "nodes"}
    kept = {
        key: value
        for key, value in data.items()
        if key == "nodes"
        or (key in Definition.model_fields and not any(place[:1] == (key,) for place in places))
    }
    rest = {**kept, "nodes": {key: node for key, node in nodes.items() if key not in broken}}
    try:
        remaining = Definition.model_validate({"name": "unnamed", "output": next(iter(nodes)), **rest})
    except ValidationError:
        return []
    no_inputs = any(place[:1] == ("inputs",) for place in places)
    return [] if no_inputs else analyse(remaining, broken=broken, whole="output" in kept).problems


__all__ = ["Workflow"]
