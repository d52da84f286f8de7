"""What the page of a run shows, read in one go: blocking, and as much as fits on a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mosaic_queues.connection import server_ms
from mosaic_queues.errors import InputError
from mosaic_queues.ledger import Ledger
from mosaic_queues.transitions import RunRecord
from mosaic_tasks.client import Run
from mosaic_tasks.definition.plan import NodePlan
from mosaic_tasks.gateway.pages.charts import Chart
from mosaic_tasks.gateway.pages.texts import NOTHING, Text, output_text, said_text
from mosaic_tasks.inspection.arranging import arranged
from mosaic_tasks.inspection.diagram import URGENCY, Box, Diagram, boxes, is_done
from mosaic_tasks.inspection.explaining import Explanation
from mosaic_tasks.inspection.gantt import Gantt, gantt
from mosaic_tasks.inspection.progress import NodeView, RunView
from mosaic_tasks.inspection.timeline import Timeline

MOST_NODES = 100
MOST_EXPLANATIONS = 20


class Detail(NamedTuple):
    """One node, with what it put out."""

    node: NodeView
    plan: NodePlan
    output: Text


class Look(NamedTuple):
    """A run at one moment.

    Attributes:
        waits: what each node waits for; of a run that is over how it ended, and what its mixtures came to.
        nodes: those that are listed, of `own` in all.
        detail: the node that was asked for.
        said: what the output node has said.
    """

    record: RunRecord
    view: RunView
    tenant: str
    diagram: Diagram
    boxes: tuple[Box, ...]
    timeline: Timeline
    gantt: Gantt
    waits: Sequence[Explanation]
    nodes: Sequence[NodeView]
    own: int
    output: str
    said: Text
    detail: Detail | None
    now_ms: int

    @property
    def is_running(self) -> bool:
        """Whether it is not over."""
        return self.record.status == "running"

    @property
    def done(self) -> int:
        """How many nodes are done, or need not be."""
        return sum(is_done(node) for node in self.view.nodes if not node.asked_by)

    @property
    def tokens(self) -> tuple[int, int]:
        """Of all nodes: in and out."""
        return sum(node.tokens[0] for node in self.view.nodes), sum(
            node.tokens[1] for node in self.view.nodes
        )

    @property
    def cost_usd(self) -> float:
        """Of all nodes, as far as known."""
        return sum(node.cost_usd for node in self.view.nodes)

    @property
    def took_ms(self) -> int:
        """From its beginning, or the latest one, to its end, or to now."""
        begun = self.view.begun_ms or self.record.created_ms
        return max((self.record.ended_ms or self.now_ms) - begun, 0)


def look(run: Run, chart: Chart, ledger: Ledger, *, node: str = "") -> Look:
    """The run as it is now.

    Args:
        node: the one to show all of; empty: none.

    Raises:
        InputError: the workflow has no such node.
    """
    now_ms = server_ms(ledger.client)
    record = run.record()
    view, timeline = chart.look(now_ms=now_ms)
    plan, drawn = chart.plan, chart.diagram()
    own = [each for each in view.nodes if not each.asked_by]
    return Look(
        record,
        view,
        plan.tenant,
        drawn,
        tuple(boxes(drawn, view.nodes)),
        timeline,
        gantt(timeline),
        run.explain(view)[:MOST_EXPLANATIONS],
        arranged(_listed(view.nodes)),
        len(own),
        plan.nodes[plan.output].name,
        _said(run, view.nodes[plan.output]),
        _detail(run, chart, view, node) if node else None,
        now_ms,
    )


def _listed(nodes: Sequence[NodeView]) -> list[NodeView]:
    """At most so many as a table has, in their order: those first of which people want to hear."""
    urgent = sorted(nodes, key=lambda node: URGENCY.index(node.state))[:MOST_NODES]
    kept = {node.name for node in urgent}
    return [node for node in nodes if node.name in kept]


def _said(run: Run, node: NodeView) -> Text:
    return said_text(run) if node.started_ms is not None or node.is_over else NOTHING


def _detail(run: Run, chart: Chart, view: RunView, name: str) -> Detail:
    for node, plan in zip(view.nodes, chart.plan.nodes, strict=True):
        if node.name == name:
            return Detail(node, plan, _output(run, node))
    raise InputError(f"workflow {view.name!r} has no node {name!r}")


def _output(run: Run, node: NodeView) -> Text:
    if node.asked_by or node.state != "done":
        return NOTHING
    try:
        return output_text(run.node_output(node.name))
    except KeyError:  # it runs again since
        return NOTHING
