"""The names that people may rely on."""

from __future__ import annotations

import subprocess
import sys

import mosaic_tasks

PUBLIC = [
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


def test_the_exported_names_are_these_in_this_order() -> None:
    assert mosaic_tasks.__all__ == PUBLIC == sorted(PUBLIC)


def test_every_exported_name_is_there_and_documented() -> None:
    for name in PUBLIC:
        assert getattr(mosaic_tasks, name).__doc__, name


def test_a_misspelt_name_is_an_attribute_error() -> None:
    assert not hasattr(mosaic_tasks, "sumbit")


def test_importing_the_package_loads_neither_celery_nor_redis() -> None:
    code = "import mosaic_tasks, sys; sys.exit(any(name in sys.modules for name in ('celery', 'redis')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
