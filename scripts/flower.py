"""`make flower`: a run watched in Flower, from nothing, and nothing left running after Ctrl-C.

Starts the embedded server, a worker with task events, and Flower on loopback; submits examples/financial_report with
its recorded answers, which takes some seconds and needs no model and no network; prints where Flower shows the run, and
waits for Ctrl-C. FLOWER_PORT chooses the port (0: any that is free); MOSAIC_REDIS_URL names a server to use instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from demo import INTERRUPTED_STOP_S, console, logs, server, stop, tell  # which lies beside this script

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "financial_report"
START_S = 60.0
LOOK_S = 0.1
QUEUES = "mosaic.cpu,mosaic.api.replay"
DOCS = "docs/flower.md"


def main() -> int:
    """Runs until Ctrl-C; the exit code is that of a command that was interrupted."""
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT / "examples"), os.environ.get("PYTHONPATH")])
    )
    os.environ["MOSAIC_MODEL"] = f"replay:{EXAMPLE / 'recordings.jsonl'}"
    sys.path.insert(0, str(ROOT / "examples"))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    from mosaic_queues.errors import MosaicError
    from mosaic_tasks.cli.exits import ExitCode, code_of

    try:
        with server(), processes() as (worker, flower):
            url = await_line(flower, "Flower", r"Visit me at (\S+)").rstrip("/")
            await_line(worker, "the worker", r"( ready\.)")
            show(url)
            wait_for_end(worker, flower)
    except KeyboardInterrupt:
        console.print("worker, Flower and server are stopped", style="dim")
        return int(ExitCode.INTERRUPTED)
    except MosaicError as error:
        tell(f"it failed: {error}")
        return int(code_of(error))
    return int(ExitCode.FAILED)


class Started:
    """A process in a session of its own, so that Ctrl-C reaches this script alone.

    Attributes:
        log: where all that it prints is.
    """

    def __init__(self, name: str, words: list[str]) -> None:
        self.name, self.log = name, logs() / f"{name}.log"
        self._file = self.log.open("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.ended = threading.Event()
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        self.process.wait()
        self.ended.set()


@contextlib.contextmanager
def processes() -> Iterator[tuple[Started, Started]]:
    """The worker and Flower."""
    worker = ["mosaic_tasks.cli", "worker", "--pool", "threads", "--concurrency", "8", "--queues", QUEUES]
    port = os.environ.get("FLOWER_PORT") or "5555"
    flower = ["celery", "-A", "mosaic_tasks.app", "flower", "--address=127.0.0.1", f"--port={port}"]
    started: list[Started] = []
    try:
        started.append(Started("worker", worker))
        started.append(Started("flower", flower))
        yield started[0], started[1]
    finally:
        console.print("stopping worker, Flower and server", style="dim")
        stop([each.process for each in started], wait_s=INTERRUPTED_STOP_S)


def await_line(started: Started, what: str, pattern: str) -> str:
    """Waits until a process has printed something, and answers the group of the pattern.

    Raises:
        ConfigurationError: it ended, or did not print that in time.
    """
    from mosaic_queues.errors import ConfigurationError

    for _ in range(int(START_S / LOOK_S)):
        if found := re.search(pattern, started.log.read_text("utf-8", "replace")):
            return found[1]
        if started.ended.wait(LOOK_S):
            break
    if "Address already in use" in started.log.read_text("utf-8", "replace"):
        raise ConfigurationError(f"the port of {what} is taken; choose another: FLOWER_PORT=5556 make flower")
    raise ConfigurationError(f"{what} did not start; its log is {started.log}")


def show(url: str) -> None:
    """Submits the example, and says where to look."""
    from mosaic_tasks import submit
    from mosaic_tasks.execution.process import close_all

    run = submit(EXAMPLE / "workflow.yaml")
    close_all()
    for line in (
        f"Flower:            {url}",
        f"the run:           {url}/task/{run.id}",
        f"all of its kind:   {url}/tasks?name=financial-report",
        f"only its calls:    search for {run.id} there",
        f"workers, queues:   {url}/workers, {url}/broker",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"more about it: {DOCS}; Ctrl-C stops everything", style="dim", highlight=False)


def wait_for_end(*started: Started) -> None:
    """Until Ctrl-C, or until one of them ends by itself."""
    from mosaic_queues.errors import ConfigurationError

    while True:
        for each in started:
            if each.ended.wait(0.5):
                raise ConfigurationError(f"{each.name} has ended by itself; its log is {each.log}")


if __name__ == "__main__":
    sys.exit(main())
