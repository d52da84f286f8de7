"""A workflow as a picture: Mermaid for documents, text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mosaic_queues.documents import path_text
from mosaic_tasks.definition.grammar import Node
from mosaic_tasks.definition.mixtures import MixtureSpec
from mosaic_tasks.definition.plan import Edge
from mosaic_tasks.definition.validation import Facts
from mosaic_tasks.definition.workflow import Workflow

_SHAPES = {"tool": ("[", "]"), "task": ("[[", "]]"), "agent": ("([", "])"), "mixture": ("{{", "}}")}
_WIDTH = 60


def mermaid(workflow: Workflow, *, import_tools: bool = True) -> str:
    """The graph as a Mermaid flowchart. Dotted edges carry order only; those that do not wait for the end of their
    producer say how they read it.

    Args:
        workflow: the workflow.
        import_tools: False: tools are not imported here, and what only they tell stays unseen.

    Raises:
        DefinitionError: the workflow is wrong.
    """
    facts = workflow.analysed(import_tools=import_tools).facts
    names = list(workflow.nodes)
    lines = ["flowchart TD"]
    for number, (name, node) in enumerate(workflow.nodes.items()):
        opening, closing = _SHAPES[node.kind]
        lines.append(f'    n{number}{opening}"{_label(name, node)}"{closing}')
    for number, name in enumerate(names):
        after = set(workflow.nodes[name].after)
        lines += [
            f"    n{dep} {'-.->' if names[dep] in after else '-->'}{_written(facts[number].edges.get(dep))} n{number}"
            for dep in facts[number].deps
        ]
    lines.append(f"    style n{names.index(workflow.output)} stroke-width:3px")
    return "\n".join(lines) + "\n"


def _written(edge: Edge | None) -> str:
    return f'|"{_escaped(reads(edge))}"|' if edge is not None else ""


def reads(edge: Edge) -> str:
    """How an edge reads its producer, in a few words."""
    parts = ", ".join(_printable(path_text(path).lstrip(".")) for path in edge.paths if path)
    words = edge.kind + (f": {parts}" if parts else "")
    words += f" by {edge.by}" if edge.by else ""
    return words + (", when it closed" if edge.stable else "")


def _label(name: str, node: Node) -> str:
    parts = [f"<b>{name}</b>", _escaped(_does(node))]
    parts += [_escaped(part) for part in _decides(node.mixture)] if node.mixture is not None else []
    parts += [f"for each of {_escaped(_inner(node.for_each))}"] if node.for_each else []
    parts += [f"when {_escaped(_shortened(node.when))}"] if node.when else []
    parts += [f"tags: {_escaped(', '.join(map(_printable, node.tags)))}"] if node.tags else []
    return "<br/>".join(parts)


def _escaped(text: str) -> str:
    """Text that Mermaid shows as it is."""
    return "".join(f"#{ord(char)};" if char in '"<>&#;`\\[](){}|' else char for char in text)


def _does(node: Node) -> str:
    """What the node runs, in a few words."""
    if node.agent is not None:
        needs = f"requires {node.agent.requires}" if node.agent.requires is not None else ""
        return _shortened(" ".join(filter(None, ("agent", node.agent.model, needs))))
    if node.mixture is not None:
        return _printable(f"mixture of {_experts(node.mixture)}")
    return _printable(f"{node.kind} {node.tool or node.task}")


def _experts(mixture: MixtureSpec) -> str:
    if mixture.select is not None:
        return f"{mixture.select.count} experts in {mixture.select.capability}"
    samples = [(e.name, e.samples or mixture.samples) for e in mixture.named()]
    return _shortened(", ".join(f"{count} x {name}" if count > 1 else name for name, count in samples))


def _decides(mixture: MixtureSpec) -> list[str]:
    """When a mixture stops asking, and what becomes of the answers where it is not certain then."""
    gate, aggregator = mixture.gate, mixture.aggregator
    enough = {
        "probability": gate.confidence,
        "posterior": gate.confidence,
        "dirichlet": gate.confidence,
        "unanimous": gate.window,
        "margin": gate.margin,
        "quorum": gate.quorum,
    }.get(gate.kind)
    gated = f"gate {gate.kind}" if enough is None else f"gate {gate.kind} {enough:g}"
    parts = ["no gate" if gate.kind == "none" else gated]
    parts += [" ".join(filter(None, ("verifier", mixture.verifier.model)))] if mixture.verifier else []
    parts += [" ".join(filter(None, ("aggregator", aggregator.kind, aggregator.model)))]
    return [_shortened(part) for part in parts]


def _inner(reference: str) -> str:
    return _printable(reference.removeprefix("${").removesuffix("}"))


def _shortened(text: str) -> str:
    line = _printable(" ".join(text.split()))
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def text(workflow: Workflow, *, import_tools: bool = True) -> str:
    """The graph in layers: a node stands below all that it reads.

    Args:
        workflow: the workflow.
        import_tools: False: tools are not imported here, and what only they tell stays unseen.

    Raises:
        DefinitionError: the workflow is wrong.
    """
    facts = workflow.analysed(import_tools=import_tools).facts
    names = list(workflow.nodes)
    width = max(len(name) for name in names)
    lines = [workflow.name + (f": {_shortened(workflow.description)}" if workflow.description else "")]
    for layer, numbers in enumerate(_layers([each.deps for each in facts]), start=1):
        for position, number in enumerate(numbers):
            line = _line(workflow, names, facts[number], number, width)
            lines.append(f"{layer if position == 0 else '':>4}  {line}")
    return "\n".join(lines) + "\n"


def _line(workflow: Workflow, names: Sequence[str], facts: Facts, number: int, width: int) -> str:
    name = names[number]
    node = workflow.nodes[name]
    parts = [f"{name:<{width}}  {_does(node)}"]
    parts += _decides(node.mixture) if node.mixture is not None else []
    parts += [f"for each {node.item_name} of {_inner(node.for_each)}"] if node.for_each else []
    parts += [f"when {_shortened(node.when)}"] if node.when else []
    parts += (
        [f"<- {', '.join(_source(names[dep], facts.edges, dep) for dep in facts.deps)}"] if facts.deps else []
    )
    parts += [f"tags: {', '.join(map(_printable, node.tags))}"] if node.tags else []
    parts += ["=> output"] if name == workflow.output else []
    return "  ".join(parts)


def _source(name: str, edges: Mapping[int, Edge], dep: int) -> str:
    return f"{name} ({reads(edges[dep])})" if dep in edges else name


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


__all__ = ["mermaid", "reads", "text"]
