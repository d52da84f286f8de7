"""A workflow as a picture: Mermaid for documents, text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from mosaic_tasks.definition.grammar import Node
from mosaic_tasks.definition.workflow import Workflow

_SHAPES = {"tool": ("[", "]"), "task": ("[[", "]]"), "agent": ("([", "])")}
_WIDTH = 60


def mermaid(workflow: Workflow) -> str:
    """The graph as a Mermaid flowchart. Dotted edges carry order only.

    Raises:
        DefinitionError: the workflow is wrong.
    """
    deps = _deps(workflow)
    names = list(workflow.nodes)
    lines = ["flowchart TD"]
    for number, (name, node) in enumerate(workflow.nodes.items()):
        opening, closing = _SHAPES[node.kind]
        lines.append(f'    n{number}{opening}"{_label(name, node)}"{closing}')
    for number, name in enumerate(names):
        after = set(workflow.nodes[name].after)
        lines += [f"    n{dep} {'-.->' if names[dep] in after else '-->'} n{number}" for dep in deps[number]]
    lines.append(f"    style n{names.index(workflow.output)} stroke-width:3px")
    return "\n".join(lines) + "\n"


def _label(name: str, node: Node) -> str:
    parts = [f"<b>{name}</b>", _escaped(_does(node))]
    parts += [f"for each of {_escaped(_inner(node.for_each))}"] if node.for_each else []
    parts += [f"when {_escaped(_shortened(node.when))}"] if node.when else []
    return "<br/>".join(parts)


def _escaped(text: str) -> str:
    """Text that Mermaid shows as it is."""
    return "".join(f"#{ord(char)};" if char in '"<>&#;`\\[](){}|' else char for char in text)


def _does(node: Node) -> str:
    """What the node runs, in a few words."""
    if node.agent is not None:
        return f"agent {_printable(node.agent.model)}" if node.agent.model else "agent"
    return _printable(f"{node.kind} {node.tool or node.task}")


def _inner(reference: str) -> str:
    return _printable(reference.removeprefix("${").removesuffix("}"))


def _shortened(text: str) -> str:
    line = _printable(" ".join(text.split()))
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def text(workflow: Workflow) -> str:
    """The graph in layers: a node stands below all that it waits for.

    Raises:
        DefinitionError: the workflow is wrong.
    """
    deps = _deps(workflow)
    names = list(workflow.nodes)
    width = max(len(name) for name in names)
    lines = [workflow.name + (f": {_shortened(workflow.description)}" if workflow.description else "")]
    for layer, numbers in enumerate(_layers(deps), start=1):
        for position, number in enumerate(numbers):
            lines.append(
                f"{layer if position == 0 else '':>4}  {_line(workflow, names, deps[number], number, width)}"
            )
    return "\n".join(lines) + "\n"


def _line(workflow: Workflow, names: list[str], deps: tuple[int, ...], number: int, width: int) -> str:
    name = names[number]
    node = workflow.nodes[name]
    parts = [f"{name:<{width}}  {_does(node)}"]
    parts += [f"for each {node.item_name} of {_inner(node.for_each)}"] if node.for_each else []
    parts += [f"when {_shortened(node.when)}"] if node.when else []
    parts += [f"<- {', '.join(names[dep] for dep in deps)}"] if deps else []
    parts += ["=> output"] if name == workflow.output else []
    return "  ".join(parts)


def _deps(workflow: Workflow) -> list[tuple[int, ...]]:
    return [facts.deps for facts in workflow.analysed(import_tools=False).facts]


def _layers(deps: list[tuple[int, ...]]) -> Iterator[list[int]]:
    """Node numbers by the length of the longest way that leads to them."""
    waiting = [len(before) for before in deps]
    readers: list[list[int]] = [[] for _ in deps]
    for number, before in enumerate(deps):
        for dep in before:
            readers[dep].append(number)
    ready = [number for number, count in enumerate(waiting) if count == 0]
    while ready:
        yield sorted(ready)
        released = []
        for number in ready:
            for reader in readers[number]:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    released.append(reader)
        ready = released


__all__ = ["mermaid", "text"]
