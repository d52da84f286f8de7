"""mosaic-tasks: workflows of LLM agents on Celery and Redis.

from mosaic_tasks import Workflow, submit

run = submit(Workflow.from_file("report.yaml"), {"repo": "."})
print(run.result())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mosaic_queues.errors import (
        CallError,
        DefinitionError,
        InputError,
        MosaicError,
        NoWorker,
        RunCancelled,
        RunFailed,
        ServerUnavailable,
        UnknownRun,
        WaitTimeout,
    )
    from mosaic_tasks.app import install
    from mosaic_tasks.client import Run, asubmit, get_run, list_runs, submit
    from mosaic_tasks.definition.builder import Flow
    from mosaic_tasks.definition.compiling import compile_workflow
    from mosaic_tasks.definition.folding import fold
    from mosaic_tasks.definition.tools import agent, mixture, tool
    from mosaic_tasks.definition.workflow import Workflow
    from mosaic_tasks.execution.mixtures.scoring import Score
    from mosaic_tasks.inspection.parts import StreamEvent
    from mosaic_tasks.mixtures.recording import Record

_HOMES = {
    "CallError": "mosaic_queues.errors",
    "DefinitionError": "mosaic_queues.errors",
    "Flow": "mosaic_tasks.definition.builder",
    "InputError": "mosaic_queues.errors",
    "MosaicError": "mosaic_queues.errors",
    "NoWorker": "mosaic_queues.errors",
    "Record": "mosaic_tasks.mixtures.recording",
    "Run": "mosaic_tasks.client",
    "RunCancelled": "mosaic_queues.errors",
    "RunFailed": "mosaic_queues.errors",
    "Score": "mosaic_tasks.execution.mixtures.scoring",
    "ServerUnavailable": "mosaic_queues.errors",
    "StreamEvent": "mosaic_tasks.inspection.parts",
    "UnknownRun": "mosaic_queues.errors",
    "WaitTimeout": "mosaic_queues.errors",
    "Workflow": "mosaic_tasks.definition.workflow",
    "agent": "mosaic_tasks.definition.tools",
    "asubmit": "mosaic_tasks.client",
    "compile_workflow": "mosaic_tasks.definition.compiling",
    "fold": "mosaic_tasks.definition.folding",
    "get_run": "mosaic_tasks.client",
    "install": "mosaic_tasks.app",
    "list_runs": "mosaic_tasks.client",
    "mixture": "mosaic_tasks.definition.tools",
    "submit": "mosaic_tasks.client",
    "tool": "mosaic_tasks.definition.tools",
}
"""Where each public name lives; loaded when first asked for, so that `mosaic --help` does not load Celery."""

__all__ = [
    "CallError",
    "DefinitionError",
    "Flow",
    "InputError",
    "MosaicError",
    "NoWorker",
    "Record",
    "Run",
    "RunCancelled",
    "RunFailed",
    "Score",
    "ServerUnavailable",
    "StreamEvent",
    "UnknownRun",
    "WaitTimeout",
    "Workflow",
    "agent",
    "asubmit",
    "compile_workflow",
    "fold",
    "get_run",
    "install",
    "list_runs",
    "mixture",
    "submit",
    "tool",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mosaic_tasks' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
