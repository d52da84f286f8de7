"""Workflow files: YAML as `mosaic_queues.documents` reads it, and how problems of a workflow are told."""

from __future__ import annotations

from typing import NamedTuple

from mosaic_queues.documents import DataPath, Document, path_text
from mosaic_queues.settings import settings


class Problem(NamedTuple):
    """What is wrong with the part of a workflow at `path`."""

    path: DataPath
    message: str


class Source(Document):
    """Where a workflow was read from."""

    kind = "workflow"

    def place(self, path: DataPath) -> str:
        """A part is named by its node."""
        return _place(path)

    def empty(self) -> str:
        """What a workflow needs."""
        return "the file is empty; a workflow has name, nodes and output"

    def too_many(self, path: DataPath, count: int) -> str | None:
        """Bounds the nodes, while they are read."""
        if path != ("nodes",) or count <= (most := settings().max_nodes):
            return None
        return too_large(f"more than {most:,}", most)


def told(problem: Problem, *, source: Source | None, workflow: str) -> str:
    """One readable line: `FILE:LINE: node 'x', field 'with.commits': what is wrong`."""
    origin = f"{source.name}:{source.line(problem.path)}" if source else f"workflow {workflow!r}"
    place = _place(problem.path)
    return f"{origin}: {place}: {problem.message}" if place else f"{origin}: {problem.message}"


def _place(path: DataPath) -> str:
    parts = []
    if len(path) > 1 and path[0] == "nodes":
        parts.append(f"node {path[1]!r}")
        path = path[2:]
    if path:
        parts.append(f"field {path_text(path).lstrip('.')!r}")
    return ", ".join(parts)


def too_large(nodes: str, limit: int) -> str:
    """The refusal of a workflow with too many nodes."""
    return (
        f"the workflow has {nodes} nodes and the limit is {limit:,}; use for_each for repeated steps, "
        "or raise MOSAIC_MAX_NODES"
    )


__all__ = ["Problem", "Source", "told", "too_large"]
