"""The command that shows which workers a deployment has, and whether they fit the model pool: topology."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import console, print_json, table

if TYPE_CHECKING:
    from rich.table import Table

    from mosaic_queues.topology import Topology, WorkerGroup
    from mosaic_routing.deployment import Report
    from mosaic_routing.pool import ModelPool


class Action(StrEnum):
    """What to do with it."""

    SHOW = "show"
    CHECK = "check"


def topology(
    action: Annotated[Action, typer.Argument(help="Show it, or tell what contradicts itself.")] = Action.SHOW,
    as_json: JsonOption = False,
) -> None:
    """Show the groups of workers of this deployment, their queues and the priorities, or check them.

    The file is queues/topology.yaml, or what MOSAIC_TOPOLOGY names. `check` compares it with the model pool: classes,
    models, whether they fit on their GPUs, and queues that a group cannot serve. Exit code 1: there are contradictions.
    Models of the pool that no group answers for are told too, and are none.

    \b
    Examples:
      mosaic topology
      mosaic topology check
      mosaic topology --json | jq '.queues[] | select(.groups | length > 1)'
    """
    from mosaic_queues.topology import topology as read
    from mosaic_queues.topology import topology_path
    from mosaic_routing.pool import pool

    found, models = read(), pool()
    if action is Action.SHOW:
        _show(found, models, as_json=as_json)
        return
    from mosaic_routing.deployment import check

    report = check(found, models)
    if as_json:
        print_json(report)
    else:
        _tell(report, str(topology_path()))
    raise typer.Exit(ExitCode.FAILED if report.contradictions else ExitCode.OK)


def _show(found: Topology, models: ModelPool, *, as_json: bool) -> None:
    from mosaic_routing.deployment import served

    if as_json:
        groups = [_facts(group, models) for group in found.workers]
        known = {"workers": groups, "queues": served(found), "priorities": found.priorities}
        print_json({**known, "dead_letter": found.dead_letter})
        return
    out = console()
    out.print(_group_table(found, models), soft_wrap=True)
    out.print()
    out.print(_queue_table(found), soft_wrap=True)
    levels = ", ".join(f"{name} {level}" for name, level in found.priorities.items())
    out.print(f"\npriorities (0 first): {levels}\ndead letters: {found.dead_letter}", soft_wrap=True)


def _facts(group: WorkerGroup, models: ModelPool) -> dict[str, Any]:
    """A group as its file says it, with what follows from that."""
    from mosaic_routing.deployment import gpus_of, queues_of

    told = group.model_dump(mode="json", by_alias=True)
    return {**told, "gpus": gpus_of(group, models), "queues": queues_of(group)}


def _group_table(found: Topology, models: ModelPool) -> Table:
    from mosaic_routing.deployment import gpus_of

    rows = table("GROUP", "CLASS", "WORKERS", "GPUS", "POOL", "CONCURRENCY", "MODELS")
    for column in (*rows.columns[2:4], rows.columns[5]):
        column.justify = "right"
    for group in found.workers:
        gpus, concurrency = gpus_of(group, models), group.concurrency or ""
        counts = (str(group.replicas), str(gpus or ""), group.pool, str(concurrency))
        rows.add_row(group.name, group.gpu_class, *counts, ", ".join(group.models))
    return rows


def _queue_table(found: Topology) -> Table:
    from mosaic_routing.deployment import served

    rows = table("QUEUE", "SERVED BY", "MODEL")
    for each in served(found):
        rows.add_row(each.queue, ", ".join(each.groups), each.model)
    return rows


def _tell(report: Report, file: str) -> None:
    out = console()
    for problem in report.contradictions:
        out.print(f"wrong: {problem}", soft_wrap=not out.is_terminal)
    if report.gaps:
        named = ", ".join(gap.model for gap in report.gaps)
        out.print(
            f"note: agents that name one of these as pool:NAME wait, no group answers: {named}",
            soft_wrap=not out.is_terminal,
        )
    if not report.contradictions:
        out.print(f"{file} contradicts neither itself nor the model pool", soft_wrap=True)
