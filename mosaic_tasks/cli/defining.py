"""Commands on workflow files: validate, graph, schema."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mosaic_tasks.cli.options import FileArgument, JsonOption
from mosaic_tasks.cli.output import print_json
from mosaic_tasks.inspection.wording import counted


class GraphFormat(StrEnum):
    """Forms in which a workflow can be drawn."""

    TEXT = "text"
    MERMAID = "mermaid"


def validate(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a workflow file.

    Every problem is told with file, line, node and field. Exit code 0: it is right. 2: it is not.

    \b
    Examples:
      mosaic validate report.yaml
      mosaic validate report.yaml --json
    """
    from mosaic_tasks.definition.compiling import compile_workflow
    from mosaic_tasks.definition.workflow import Workflow

    workflow = Workflow.from_file(file)
    plan = compile_workflow(workflow)
    queues = sorted({node.queue for node in plan.nodes})
    if as_json:
        print_json(
            {
                "name": plan.name,
                "nodes": [node.name for node in plan.nodes],
                "queues": queues,
                "output": plan.nodes[plan.output].name,
                "inputs": plan.inputs_schema,
            }
        )
        return
    size = counted(len(plan.nodes), "node")
    typer.echo(f"{file}: right: workflow {plan.name!r}, {size}, for the queues {', '.join(queues)}")


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
    from mosaic_tasks.definition.compiling import compile_workflow
    from mosaic_tasks.definition.workflow import Workflow

    workflow = Workflow.from_file(file)
    plan = compile_workflow(workflow)
    if as_json:
        kinds = [{edge.source: edge.kind for edge in node.edges} for node in plan.nodes]
        edges = [
            {"from": plan.nodes[dep].name, "to": node.name, "kind": early.get(dep, "final")}
            for node, early in zip(plan.nodes, kinds, strict=True)
            for dep in node.deps
        ]
        nodes = [
            {"name": node.name, "kind": node.kind, "queue": node.queue, "tags": node.tags}
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
