"""GPU workers as tests start them, the runs that they work on, and what they leave behind."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import yaml

from mosaic_queues.events import Event
from mosaic_queues.liveness import live_processes
from mosaic_routing.inventory import EngineReport, engines
from mosaic_tasks import Run, Workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.engines.vllm.orphans import VARIABLE
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.submission import open_run
from tests.services import SESSION_VARIABLE, Worker, Workers

START_S = 180.0
"""An engine takes 10 to 20 s to start, and several at once on few processors more."""
RUN_S = 120.0
ORPHANS_END_S = 10.0
TRIES = {"attempts": 20, "delay": 0.5, "factor": 1.5, "max_delay": 5}
NO_SPACES = {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}}
"""A model with random weights fills a grammar's optional white space without end."""


class GpuWorkers(Workers):
    """Starts `mosaic worker --model`."""

    def host(self, *specs: Path | str, args: Sequence[str] = ()) -> Worker:
        """Starts a worker; it is not ready yet (`ready`)."""
        name = f"gpu{len(self._started)}-{os.getpid()}@localhost"
        command = [sys.executable, "-m", "mosaic_tasks.cli", "worker", "--gpu", "cpu", "--name", name]
        command += [word for spec in specs for word in ("--model", str(spec))]
        worker = Worker(name, [*command, *args], environment=self._environment({}), cwd=self._directory)
        self._started.append(worker)
        return worker

    def ready(self, *specs: Path | str, args: Sequence[str] = ()) -> Worker:
        """A worker that takes calls."""
        return self.host(*specs, args=args).wait_ready(START_S)

    def refused(self, *specs: Path | str, args: Sequence[str] = ()) -> str:
        """What a worker that cannot start says, in one line; it ended with code 1, and left nothing."""
        worker = self.host(*specs, args=args)
        assert worker.wait(START_S) == 1, worker.log
        worker.kill()  # reads its log to the end
        assert "Traceback" not in worker.log, worker.log
        (line,) = [line for line in worker.log.splitlines() if "engine.refused" in line]
        assert left_behind() == []
        return line


def spec_file(folder: Path, model: Path, **fields: Any) -> Path:
    """A model's settings for a machine without a GPU: small blocks show prefix caching, a small cache starts soon."""
    options = {"block_size": 32, **NO_SPACES, **fields.pop("options", {})}
    chosen = {"model": str(model), "alias": model.name, "kv_memory_gb": 1 / 16, "max_length": 1024} | fields
    path = folder / f"{chosen['alias']}-{len(list(folder.glob('*.yaml')))}.yaml"
    path.write_text(yaml.safe_dump({**chosen, "options": options}), "utf-8")
    return path


# -- runs


def agent(prompt: str, **fields: Any) -> dict[str, Any]:
    """An agent that gives the same answer each time; `node` are the fields of its node."""
    node = fields.pop("node", {})
    chosen = {"prompt": prompt, "model": "vllm:tiny", "temperature": 0.0, "max_tokens": 24, **fields}
    return {"agent": chosen, **node}


def fan_out(**fields: Any) -> dict[str, Any]:
    """A node that asks a question for each of `inputs.items`."""
    node = {"for_each": "${inputs.items}", **fields.pop("node", {})}
    return agent("Item {{ item }} of the report", **fields, node=node)


def submitted(nodes: dict[str, Any], output: str = "", *, items: int = 0, priority: int = 0) -> Run:
    """Submits a workflow of these nodes; `inputs.items` counts to `items`."""
    data = {
        "name": "gpu",
        "inputs": {"items": "array"},
        "nodes": nodes,
        "output": output or next(iter(nodes)),
    }
    workflow = Workflow.from_data(data)
    inputs = {"items": list(range(items))}
    if not priority:
        return submit(workflow, inputs)
    process = process_for(app)
    plan = msgspec.structs.replace(compile_workflow(workflow), priority=priority)
    return Run(open_run(process, plan, inputs).run_id, process)


def result(nodes: dict[str, Any], output: str = "", *, items: int = 0) -> Any:
    """What a workflow of these nodes gives."""
    return submitted(nodes, output, items=items).result(RUN_S)


def usage(run: Run) -> list[Event]:
    """What the engines told of the run's calls, in order."""
    return [event for event in run.events() if event.kind == "usage"]


def done(run: Run) -> list[str]:
    """The calls that were recorded, each as often as it was."""
    return [call for event in run.events() if event.kind == "done" for call in event.calls]


def streamed(run: Run) -> str:
    """What a reader of the output has at the end, who minds what is taken back."""
    text = ""
    for event in run.stream(timeout_s=RUN_S):
        if event.kind == "text":
            assert event.offset == len(text), f"at {len(text)} came {event}"
            text += event.value
        elif event.kind == "retract":
            text = text[: event.offset]
    return text


# -- what is there


def reports() -> dict[str, EngineReport]:
    """What the engines say of themselves, by alias."""
    return {report.model: report for report in engines(process_for(app).client)}


def wait_served(worker: Worker) -> None:
    """Waits until the server knows a worker and its engines, once it was emptied after a test."""
    process = process_for(app)

    def is_known() -> bool:
        known = live_processes(process.client, process.ledger.keys)
        return any(each.pid == worker.pid for each in known) and all(r.slots for r in reports().values())

    wait_until(lambda: reports() and is_known(), "a worker that the server knows")


def reports_of(worker: Worker) -> list[EngineReport]:
    """What one worker's engines say of themselves."""
    found = engines(process_for(app).client)
    return [report for report in found if report.holder.split("/")[1] == str(worker.pid)]


def wait_until(holds: Callable[[], Any], what: str, timeout_s: float = RUN_S) -> Any:
    """Looks until it holds, for what no event tells of; fails the test when that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:g} s: {what}", pytrace=False)
        time.sleep(0.05)
    return found


def wait_running(calls: int, alias: str = "tiny") -> None:
    """Waits until an engine has so many requests."""

    def runs() -> bool:
        report = reports().get(alias)
        return report is not None and report.running + report.waiting >= calls

    wait_until(runs, f"{calls} requests in the engine {alias!r}")


def cores(worker: Worker) -> list[psutil.Process]:
    """The processes of a worker's engines: each EngineCore, and what it started."""
    return [child for child in _descendants(worker.pid) if _is_marked(child)]


def guards(worker: Worker) -> list[psutil.Process]:
    """The processes that see to it that no engine outlives the worker."""
    return [child for child in _descendants(worker.pid) if "orphans.py" in " ".join(_command(child))]


def belongings(worker: Worker) -> list[psutil.Process]:
    """A worker and all that it started."""
    return [psutil.Process(worker.pid), *_descendants(worker.pid)]


def wait_gone(processes: Sequence[psutil.Process]) -> None:
    """Fails the test when one of them still runs after `ORPHANS_END_S`."""
    _, alive = psutil.wait_procs(processes, timeout=ORPHANS_END_S)
    running = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    assert running == []
    assert left_behind() == []


def left_behind() -> list[psutil.Process]:
    """The engines' processes of this session that no worker owns any more."""
    return [process for process in psutil.process_iter() if _is_marked(process) and not _is_owned(process)]


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):  # it has ended, and was not reaped yet
        return process.cmdline()
    return []


def _is_marked(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        environment = process.environ()
        return VARIABLE in environment and environment.get(SESSION_VARIABLE) == os.environ[SESSION_VARIABLE]
    return False


def _is_owned(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return os.getpid() in {parent.pid for parent in process.parents()}
    return True


def _descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)
