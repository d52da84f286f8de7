"""`make demo`: the weekly report of a git repository, from nothing to a page, and nothing left running.

Starts the Procfile's workers as processes of their own (the embedded server starts by itself), runs
examples/weekly_report, shows its progress, prints the report, and writes it as Markdown and HTML.
DEMO_REPO, DEMO_SINCE and DEMO_TICKETS choose repository, period and tickets, DEMO_OUT the folder of the report.
DEMO_MODEL=smollm2 has a small model write it, on a vLLM engine for the CPU in a worker of .venv-engine.
"""

from __future__ import annotations

import signal
import sys

signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # until main() can end things in order

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from mosaic_queues.errors import MosaicError, RunFailed

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
STOP_S = 20.0
INTERRUPTED_STOP_S = 5.0
"""Once interrupted nobody waits for what still runs: a thread that waits for git cannot be stopped earlier."""
WORKER = ["mosaic", "worker"]
"""So the Procfile's lines of workers begin; nothing else of it is needed here."""
POOL = ("--pool", "threads")
"""The pool of the workers: processes take Celery 1.5 s longer to stop, and the demo's tools need none."""
LOG_LINES = 15
ENGINE = ROOT / ".venv-engine" / "bin"
"""The programs of the environment with vLLM; `make engine` builds it."""
ENGINE_START_S = 300.0
LOOK_S = 0.3
HINT = (
    "no tickets: `make demo TICKETS=file` adds what was closed, is late and comes next (Jira, GitHub or CSV)"
)
SMALL = (
    "the model has 135 million parameters, so take its sentences as a test of the engine: it repeats and invents. "
    "Figures, tables and lists are the tools' and right."
)

console = Console()


def main() -> int:
    """Runs the demo; the exit code is that of `mosaic run`."""
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    sys.path.insert(0, str(EXAMPLES))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    from weekly_report.errors import ReportError

    from mosaic_tasks.cli.exits import ExitCode, code_of

    begun = time.monotonic()
    try:
        check(**inputs())
        lines = read_procfile(ROOT / "Procfile").items()
        commands = {name: [*words, *POOL] for name, words in lines if words[:2] == WORKER}
        if model := os.environ.get("DEMO_MODEL"):
            commands["engine"] = engine(model)
        with server(), workers(commands, logs()) as started:
            if model:
                await_engine(started[-1])
            show(run(), begun)
    except KeyboardInterrupt:
        console.print("interrupted; workers and server are stopped", style="yellow")
        return int(ExitCode.INTERRUPTED)
    except ReportError as error:
        tell(f"the demo did not start: {error}")
        return int(ExitCode.USAGE)
    except MosaicError as error:
        tell(f"the demo failed: {error}")
        return int(code_of(error))
    return int(ExitCode.OK)


def tell(problem: str) -> None:
    """One message about what went wrong, as it stands."""
    console.print(problem, style="red", highlight=False, markup=False, soft_wrap=True)


def check(*, repo: str, since: str | None = None, tickets: str | None = None) -> None:
    """Raises a `ReportError` for what the tools would refuse, before anything is started."""
    from weekly_report import history
    from weekly_report.tickets import tickets as read_tickets

    history.check(repo, since)
    read_tickets(tickets)


def inputs() -> dict[str, Any]:
    """The inputs of the workflow; paths are absolute, for the workers read them."""
    values: dict[str, Any] = {"repo": str(Path(os.environ.get("DEMO_REPO") or ROOT).expanduser().absolute())}
    if since := os.environ.get("DEMO_SINCE"):
        values["since"] = since
    if tickets := os.environ.get("DEMO_TICKETS"):
        values["tickets"] = str(Path(tickets).expanduser().absolute())
    return values


def engine(model: str) -> list[str]:
    """Provides the model, makes it the one that agents ask, and answers how the worker with its engine is started."""
    from mosaic_queues.errors import ConfigurationError
    from mosaic_tasks.engines import smollm2

    if model != smollm2.NAME:
        raise ConfigurationError(
            f"MODEL is {model!r}; the one that there is for the demo is {smollm2.NAME!r}"
        )
    folder = smollm2.default_folder().absolute()
    command = [str(ENGINE / "python"), "-m", smollm2.__name__, str(folder)]
    if code := subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
        raise ConfigurationError(f"the model is not there: {shlex.join(command)} ended with {code}")
    os.environ["MOSAIC_MODEL"] = f"vllm:{model}"
    return [str(ENGINE / "mosaic"), "worker", "--gpu", "cpu", "--model", str(folder)]


def await_engine(process: subprocess.Popen[bytes]) -> None:
    """Waits until the engine's worker takes calls."""
    from mosaic_queues.connection import connect
    from mosaic_queues.errors import EngineError
    from mosaic_queues.keys import Keys
    from mosaic_queues.liveness import live_processes
    from mosaic_queues.settings import settings
    from mosaic_routing.queues import queue_for

    queue, keys = queue_for("agent", os.environ["MOSAIC_MODEL"]), Keys(settings().namespace)
    console.print(f"waiting for the engine, which will serve {queue}", style="dim", highlight=False)
    deadline = time.monotonic() + ENGINE_START_S
    with connect() as client:
        while all(queue not in live.queues for live in live_processes(client, keys)):
            if process.poll() is not None:
                raise EngineError(
                    f"the engine's worker ended with {process.returncode} before it served {queue}"
                )
            if time.monotonic() > deadline:
                raise EngineError(f"the engine's worker does not serve {queue} after {ENGINE_START_S:.0f} s")
            time.sleep(LOOK_S)


@contextlib.contextmanager
def server() -> Iterator[None]:
    """The embedded server, for as long as the demo runs; none when MOSAIC_REDIS_URL names another."""
    from mosaic_queues.server import ensure_server
    from mosaic_queues.settings import settings

    if settings().redis_url:
        yield
        return
    embedded = ensure_server()
    try:
        yield
    finally:
        embedded.stop(wait_s=STOP_S)


def read_procfile(path: Path) -> dict[str, list[str]]:
    """Names and command lines of a Procfile."""
    lines = [line.partition(":") for line in path.read_text("utf-8").splitlines() if ":" in line]
    return {name.strip(): shlex.split(command) for name, _, command in lines}


def logs() -> Path:
    """Where the workers log."""
    from mosaic_queues.settings import settings

    directory = settings().home / "logs"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextlib.contextmanager
def workers(commands: dict[str, list[str]], directory: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """These processes, each in a session of its own, so that Ctrl-C reaches this script alone."""
    started: list[subprocess.Popen[bytes]] = []
    wait_s = STOP_S
    try:
        for name, command in commands.items():
            with (directory / f"{name}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        console.print(f"started {', '.join(commands)}; their logs are in {directory}", style="dim")
        yield started
    except KeyboardInterrupt:
        wait_s = INTERRUPTED_STOP_S
        raise
    except RunFailed:
        console.print(f"the workers' logs are in {directory}", style="dim", highlight=False)
        raise
    except Exception:
        for name in commands:
            tell_log(directory / f"{name}.log")
        raise
    finally:
        stop(started, wait_s=wait_s)


def tell_log(path: Path) -> None:
    """The end of a worker's log, when something went wrong."""
    lines = path.read_text("utf-8", "replace").splitlines()[-LOG_LINES:]
    console.print(f"[dim]{path}:[/dim]")
    console.print("\n".join(lines), style="dim", highlight=False, markup=False)


def stop(started: list[subprocess.Popen[bytes]], *, wait_s: float) -> None:
    """Asks all to end, then ends what has not in time; nothing interrupts this."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for process in started:
        process.terminate()
    deadline = time.monotonic() + wait_s
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run() -> dict[str, Any]:
    """Submits the workflow and shows its progress to its end."""
    from mosaic_tasks import submit
    from mosaic_tasks.cli.live import watch
    from mosaic_tasks.execution.process import close_all

    started = submit(EXAMPLES / "weekly_report" / "workflow.yaml", inputs())
    try:
        watch(started, console, no_worker_s=STOP_S)
        report: dict[str, Any] = started.result()
    except KeyboardInterrupt:
        started.cancel("the demo was interrupted")
        raise
    close_all()
    return report


def show(report: dict[str, Any], begun: float) -> None:
    """Prints the report and says where it is written."""
    out = Path(os.environ.get("DEMO_OUT") or ROOT / "out")
    out.mkdir(parents=True, exist_ok=True)
    markdown, page = out / "weekly-report.md", out / "weekly-report.html"
    markdown.write_text(report["markdown"], "utf-8")
    page.write_text(report["html"], "utf-8")
    console.print(Markdown(report["markdown"]))
    seconds = time.monotonic() - begun
    console.print(f"\nwritten in {seconds:.1f} s: {markdown} and {page}", highlight=False, soft_wrap=True)
    if os.environ.get("DEMO_MODEL"):
        console.print(SMALL, style="dim", highlight=False, soft_wrap=True)
    if not os.environ.get("DEMO_TICKETS"):
        console.print(HINT, style="dim", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
