"""Workflows in Python: the same `Workflow`, and so the same plan, as the file would give.

    flow = Flow("weekly-report")
    repo = flow.input("repo", str, default=".")
    commits = flow.tool(read_commits, id="commits", repo=repo)
    people = flow.tool(by_person, id="people", commits=commits["items"])
    sections = flow.agent(section, id="sections", for_each=people["people"], as_="person")
    report = flow.tool(edit, id="report", sections=sections)
    flow.output(report)
    workflow = flow.build()

Strings have the grammar of workflow files: `"${commits.items}"` and f-strings with handles are references.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from mosaic_queues.errors import DefinitionError
from mosaic_routing.targets import Objective
from mosaic_tasks.definition.mixtures import MixtureSpec
from mosaic_tasks.definition.parts import AgentSpec
from mosaic_tasks.definition.references import Path, Reference
from mosaic_tasks.definition.schemas import schema_of
from mosaic_tasks.definition.tools import target_of
from mosaic_tasks.definition.workflow import Workflow

_NO_ID = re.compile(r"[^a-z0-9_]+")
S = TypeVar("S")
_PLAIN = (str, int, float, bool, type(None))


class Handle:
    """The output of a node, an input or an item, or a part of it: `commits["items"][0]`."""

    __slots__ = ("_reference",)
    __iter__ = None
    """Its length is not known before a run."""

    def __init__(self, name: str, path: Path = ()) -> None:
        self._reference = Reference(name, path)

    def __getitem__(self, step: str | int) -> Handle:
        return Handle(self._reference.name, (*self._reference.path, step))

    def __str__(self) -> str:
        return str(self._reference)

    def __repr__(self) -> str:
        return f"<Handle {self}>"

    @property
    def name(self) -> str:
        """The id of the node, or the name of what else it belongs to."""
        return self._reference.name


item = Handle("item")
"""The item of a `for_each`; with `as_="person"` write `Handle("person")`."""


class AddNode(Generic[S]):
    """Adds nodes of one kind to a flow.

    Args:
        add: takes the node's id, the name to make one from, and what a file would write.
        describe: the name and the kind of a node for what is given first.
    """

    def __init__(
        self,
        add: Callable[[str | None, str, dict[str, Any]], Handle],
        describe: Callable[[S], tuple[str, dict[str, Any]]],
    ) -> None:
        self._add, self._describe = add, describe

    def __call__(
        self,
        subject: S,
        /,
        *,
        id: str | None = None,
        for_each: Handle | str | None = None,
        as_: str = "item",
        when: str | None = None,
        edges: Mapping[Handle | str, Any] | None = None,
        batch: Mapping[str, Any] | None = None,
        after: Iterable[Handle | str] = (),
        retry: Any = None,
        timeout: float | str | None = None,
        on_failure: Any = None,
        tags: Iterable[str] = (),
        queue: str | None = None,
        detached: bool = False,
        description: str = "",
        with_: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Handle:
        """Adds the node with these arguments.

        Args:
            subject: what it runs.
            id: by default made from the name of what it runs.
            for_each: the list to fan out over; `as_` names its item (default `item`).
            when: Jinja expression over ids and `inputs`; false skips the node.
            edges: by a node that it reads, or its id: `"final"`, `"fields"`, `"stream"`, or the fields of an edge in a
                file.
            batch: how many chunks it takes at once, as in a file.
            after: nodes that end first, without data from them.
            retry: number of attempts, or the fields of `retry` in a file.
            timeout: seconds, or a text such as `"5m"`.
            on_failure: `"fail"`, `"skip"` or `{"default": VALUE}`.
            detached: it runs although the output does not depend on it.
            with_: arguments whose names are those of options.
        """
        base, kind = self._describe(subject)
        options = {
            "for_each": str(for_each) if for_each is not None else None,
            "as": as_ if as_ != "item" else None,
            "when": when,
            "edges": _edges(edges) if edges else None,
            "batch": _plain(batch) if batch else None,
            "after": [_node_name(node) for node in after] or None,
            "retry": retry,
            "timeout": timeout,
            "on_failure": on_failure,
            "tags": list(tags) or None,
            "queue": queue,
            "detached": detached or None,
            "description": description or None,
        }
        given = {key: _plain(value) for key, value in {**arguments, **(with_ or {})}.items()}
        said = {key: value for key, value in options.items() if value is not None}
        return self._add(id, base, {**kind, "with": given, **said})


def _tool_kind(function: Callable[..., Any] | str) -> tuple[str, dict[str, Any]]:
    target = function if isinstance(function, str) else target_of(function)
    return target.rpartition(":")[2], {"tool": target}


def _task_kind(task: Any) -> tuple[str, dict[str, Any]]:
    name = task if isinstance(task, str) else str(task.name)
    return name, {"task": name}


def _agent_kind(agent: AgentSpec) -> tuple[str, dict[str, Any]]:
    return "agent", {"agent": agent}


def _mixture_kind(mixture: MixtureSpec) -> tuple[str, dict[str, Any]]:
    return "mixture", {"mixture": mixture}


class Flow:
    """Collects inputs and nodes, and builds the workflow.

    Args:
        objective: what the router cares for most.
        deadline: a run that takes longer fails; seconds, or a text like `5m`.
        budget: US dollars that a run may cost.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        defaults: Mapping[str, Any] | None = None,
        objective: Objective = "latency",
        deadline: float | str | None = None,
        budget: float | None = None,
    ) -> None:
        self._data: dict[str, Any] = {
            "name": name, "description": description, "defaults": dict(defaults or {}),
            "objective": objective, "deadline": deadline, "budget": budget,
        }  # fmt: skip
        self._inputs: dict[str, Any] = {}
        self._nodes: dict[str, Any] = {}
        self._taken: dict[str, int] = {}
        self._output: str | None = None

    def input(self, name: str, type_: Any = Any, *, default: Any = ..., description: str = "") -> Handle:
        """Declares an input of the run.

        Args:
            name: of the input.
            type_: a type, or a JSON Schema.
            default: without it the input must be given.
            description: for people.
        """
        schema = dict(type_) if isinstance(type_, dict) else schema_of(type_)
        if default is not ...:
            schema["default"] = _plain(default)
        if description:
            schema["description"] = description
        self._inputs[name] = schema
        return Handle("inputs", (name,))

    @property
    def tool(self) -> AddNode[Callable[..., Any] | str]:
        """Adds a call of a function of a module (or `"module:function"`) with these arguments.

        Raises:
            DefinitionError: workers cannot import the function.
        """
        return AddNode(self._add, _tool_kind)

    @property
    def task(self) -> AddNode[Any]:
        """Adds a Celery task, by its name or itself, with these keyword arguments."""
        return AddNode(self._add, _task_kind)

    @property
    def agent(self) -> AddNode[AgentSpec]:
        """Adds an agent; its templates see the arguments by name, beside node ids, `inputs` and the item."""
        return AddNode(self._add, _agent_kind)

    @property
    def mixture(self) -> AddNode[MixtureSpec]:
        """Adds a mixture of experts; its templates see what an agent's see, and what a mixture adds."""
        return AddNode(self._add, _mixture_kind)

    def output(self, node: Handle | str) -> None:
        """Says whose output is the result of a run."""
        self._output = _node_name(node)

    def build(self) -> Workflow:
        """The workflow.

        Raises:
            DefinitionError: no output is set, or the form of something is wrong.
        """
        if self._output is None:
            raise DefinitionError([f"workflow {self._data['name']!r}: no output; call flow.output(node)"])
        return Workflow.from_data(
            {**self._data, "inputs": dict(self._inputs), "nodes": dict(self._nodes), "output": self._output}
        )

    def _add(self, id: str | None, base: str, node: dict[str, Any]) -> Handle:
        name = id if id is not None else self._free_id(base)
        if name in self._nodes:
            raise DefinitionError(
                [f"workflow {self._data['name']!r}: node {name!r} is there twice; give another id"]
            )
        self._nodes[name] = node
        return Handle(name)

    def _free_id(self, base: str) -> str:
        base = _NO_ID.sub("_", base.rpartition(".")[2].lower()).strip("_") or "node"
        name = base
        while name in self._nodes:
            self._taken[base] = self._taken.get(base, 1) + 1
            name = f"{base}_{self._taken[base]}"
        return name


def _node_name(node: Handle | str) -> str:
    return node.name if isinstance(node, Handle) else node


def _edges(edges: Mapping[Handle | str, Any]) -> dict[str, Any]:
    """The edges of a node by the ids of its producers.

    Raises:
        DefinitionError: a node is there twice.
    """
    named = {_node_name(node): _plain(rule) for node, rule in edges.items()}
    if len(named) < len(edges):
        raise DefinitionError(
            [f"`edges` has a node twice: {', '.join(map(_node_name, edges))}; an edge is of a whole node"]
        )
    return named


def _plain(value: Any) -> Any:
    """The value as data of a workflow file.

    Raises:
        DefinitionError: it has no such form.
    """
    if isinstance(value, Handle):
        return str(value)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    raise DefinitionError(
        [
            f"{value!r:.80} is a {type(value).__name__}, which a workflow cannot hold; "
            "give text, numbers, lists or dicts"
        ]
    )


__all__ = ["Flow", "Handle", "item"]
