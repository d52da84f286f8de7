"""Commands on workflow files: validate, graph, schema."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_tasks.cli.options import FileArgument, JsonOption
from mosaic_tasks.cli.output import print_json
from mosaic_tasks.inspection.wording import counted

if TYPE_CHECKING:
    from mosaic_tasks.definition.plan import AgentPlan, Plan


class GraphFormat(StrEnum):
    """Forms in which a workflow can be drawn."""

    TEXT = "text"
    MERMAID = "mermaid"


def validate(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a workflow file.

    Every problem is told with file, line, node and field. Agents without a model are taken to ask that of MOSAIC_MODEL,
    as they would in a run. What may be a mistake is warned of, and what the model pool cannot satisfy.
    Exit code 0: it is right. 2: it is not.

    \b
    Examples:
      mosaic validate report.yaml
      mosaic validate report.yaml --json
    """
    from mosaic_tasks.definition.workflow import Workflow
    from mosaic_tasks.submission import plan_for

    plan = plan_for(Workflow.from_file(file))
    queues, warnings = sorted({node.queue for node in plan.nodes}), list(_warnings(plan))
    if as_json:
        print_json(
            {
                "name": plan.name,
                "nodes": [node.name for node in plan.nodes if node.asked_by is None],
                "queues": queues,
                "output": plan.nodes[plan.output].name,
                "inputs": plan.inputs_schema,
                "warnings": warnings,
            }
        )
        return
    for warning in warnings:
        typer.echo(f"{file}: warning: {warning}", err=True)
    typer.echo(f"{file}: right: workflow {plan.name!r}, {_size(plan)}, for the queues {', '.join(queues)}")


def _size(plan: Plan) -> str:
    asked = sum(node.asked_by is not None for node in plan.nodes)
    size = counted(len(plan.nodes) - asked, "node")
    return f"{size} and {counted(asked, 'model')} that mixtures ask" if asked else size


def _warnings(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if node.agent is not None:
            yield from (f"node {node.name!r}: {doubt}" for doubt in _doubts(node.agent))


def _doubts(agent: AgentPlan) -> Iterator[str]:
    """What is wrong with an agent by what is known here; a worker may have engines and a pool of its own."""
    from mosaic_routing.pool import pool
    from mosaic_routing.queues import provider_of
    from mosaic_routing.requirements import problems
    from mosaic_tasks.engines.registry import meant_engine

    if agent.requires is not None:
        yield from problems(agent.requires, pool())
    elif agent.model and (meant := meant_engine(agent.model)):
        yield f"no engine is called {provider_of(agent.model)!r} (model {agent.model!r}); did you mean {meant!r}?"


def graph(
    file: FileArgument,
    form: Annotated[GraphFormat, typer.Option("--format", help="How to draw it.")] = GraphFormat.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Draw the graph of a workflow file.

    \b
    Examples:
      mosaic graph report.yaml
      mosaic graph report.yaml --format mermaid > report.mmd
      mosaic graph report.yaml --json          # nodes and edges
    """
    from mosaic_tasks.definition import drawing
    from mosaic_tasks.definition.workflow import Workflow
    from mosaic_tasks.submission import plan_for

    workflow = Workflow.from_file(file)
    plan = plan_for(workflow)
    if as_json:
        kinds = [{edge.source: edge.kind for edge in node.edges} for node in plan.nodes]
        edges = [
            {"from": plan.nodes[dep].name, "to": node.name, "kind": early.get(dep, "final")}
            for node, early in zip(plan.nodes, kinds, strict=True)
            for dep in node.deps
        ]
        nodes = [
            {
                "name": node.name,
                "kind": node.kind,
                "queue": node.queue,
                "tags": node.tags,
                "asked_by": None if node.asked_by is None else plan.nodes[node.asked_by].name,
            }
            for node in plan.nodes
        ]
        print_json({"name": plan.name, "nodes": nodes, "edges": edges})
        return
    draw = drawing.mermaid if form is GraphFormat.MERMAID else drawing.text
    typer.echo(draw(workflow))


def schema(as_json: JsonOption = True) -> None:
    """Print the JSON Schema of workflow files.

    For editors that complete and check while you write.

    \b
    Example:
      mosaic schema > mosaic.schema.json
      # then, as the first line of a workflow file:
      # yaml-language-server: $schema=mosaic.schema.json
    """
    from mosaic_tasks.definition.workflow import Workflow

    del as_json  # it is JSON either way
    print_json(Workflow.json_schema())
