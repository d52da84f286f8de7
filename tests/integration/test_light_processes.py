"""Our processes load no more than they need, and spare the collector of cycles what stays loaded."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mosaic_tasks import Workflow, submit
from tests.integration.json_worker import JsonWorker
from tests.services import READY_S

HEAVY = {
    "anyio",
    "fastapi",
    "httpx2",
    "numpy",
    "obstore",
    "openai",
    "opentelemetry.exporter",
    "opentelemetry.sdk.trace",
    "prometheus_client",
    "redbeat",
    "typer",
    "uvicorn",
    "vllm",
    "weasyprint",
}
LOADED = 50_000
"""Objects that a worker has at least when it starts."""


def python(code: str, cwd: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_worker_loads_nothing_heavy_until_a_call_needs_it(tmp_path: Path) -> None:
    code = f"import sys, mosaic_tasks.app, mosaic_tasks.pool; print(sorted({HEAVY!r} & set(sys.modules)))"
    assert python(code, tmp_path) == "[]"


@pytest.mark.integration
@pytest.mark.usefixtures("mosaic_process")
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_no_collection_in_a_worker_walks_over_what_was_loaded(pool: str, tmp_path: Path) -> None:
    both = {"tool": "tests.integration.run_tools:echo", "with": {"value": ["${kept}", "${usual}"]}}
    nodes = {"kept": {"tool": "gc:get_freeze_count"}, "usual": {"tool": "gc:get_threshold"}, "both": both}
    data = {"name": "n", "nodes": nodes, "output": "both"}
    with JsonWorker("--pool", pool, "--concurrency", "1", environment=os.environ, cwd=tmp_path):
        kept, usual = submit(Workflow.from_data(data)).result(READY_S)
    assert kept > LOADED
    assert usual[0] <= gc.get_threshold()[0]  # what calls leave is collected as in any process


def test_a_command_spares_the_collector_while_it_loads_and_in_the_end(tmp_path: Path) -> None:
    told = "atexit.register(lambda: print(gc.get_threshold()[0] > 10_000, gc.get_freeze_count() > 0))"
    begun = f"import atexit, gc, sys; {told}; sys.argv = ['mosaic', '--version']"
    assert (
        python(f"{begun}; from mosaic_tasks.cli import main; main()", tmp_path).splitlines()[1] == "True True"
    )
