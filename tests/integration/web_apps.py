"""The web apps of `examples/`, each in a process of its own, and a reader of server-sent events."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import httpx2

from tests.integration.gateway_tools import Told, told
from tests.integration.mixture_runs import says
from tests.services import READY_S, Worker, Workers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Example = Literal["fastapi_app", "django_app", "flask_app"]
_SERVING = re.compile(r"(?:running on|Listening at:) http://127\.0\.0\.1:(\d+)")
_COMMANDS: dict[Example, Sequence[str]] = {
    "fastapi_app": ("uvicorn", "fastapi_app.app:app", "--host", "127.0.0.1", "--port"),
    "django_app": ("uvicorn", "django_app.asgi:application", "--host", "127.0.0.1", "--port"),
    "flask_app": ("gunicorn", "flask_app.app:app", "--threads", "8", "--bind"),
}


class WebApps:
    """Starts the apps on a server of Redis.

    Args:
        environment: what all of them get.
    """

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        paths = [str(EXAMPLES), *filter(None, sys.path)]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
        self.environment |= {"PYTHONUNBUFFERED": "1", "TICKETS_DB": str(directory / "tickets.sqlite3")}
        self._directory = directory
        self._started: list[Worker] = []

    def start(self, example: Example, *, port: int = 0) -> WebApp:
        """Starts one, and waits until it answers."""
        at = f"127.0.0.1:{port}" if example == "flask_app" else str(port)
        command = [sys.executable, "-m", *_COMMANDS[example], at]
        process = Worker(example, command, environment=self.environment, cwd=self._directory)
        self._started.append(process)
        process.wait_said("Booting worker" if example == "flask_app" else "running on http://", READY_S)
        found = _SERVING.search(process.log)
        assert found is not None, process.log
        return WebApp(process, int(found[1]))

    @classmethod
    @contextlib.contextmanager
    def writing(cls, text: str, *, redis_url: str, directory: Path) -> Iterator[WebApps]:
        """Apps whose default model writes this text; all of them are stopped after the block."""
        given = {"MOSAIC_REDIS_URL": redis_url, "MOSAIC_HOME": str(directory / "home")}
        model = says(directory, "writer", text, tokens_per_s=500)
        apps = cls({**given, "MOSAIC_MODEL": model}, directory)
        try:
            yield apps
        finally:
            apps.stop()

    def start_worker(self, workers: Workers) -> Worker:
        """One whose engine holds after its first words until it is opened (`open_engines`)."""
        return workers.start(
            "mosaic_tasks.app",
            ("mosaic.cpu", "mosaic.api.replay"),
            pool="async",
            concurrency=8,
            env={"MOSAIC_MODEL": self.environment["MOSAIC_MODEL"]},
            args=("--include", "tests.integration.hedge_gates"),
        ).wait_ready()

    def stop(self) -> None:
        """Stops them, and prints what they said, which failures show."""
        for process in self._started:
            process.stop()
            print(f"--- log of {process.name}\n{process.log}")


class WebApp(NamedTuple):
    """One that runs."""

    process: Worker
    port: int

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def sent_events(url: str, after: str = "") -> Iterator[Iterator[Told]]:
    """What a server sends, from behind an event on; the connection is closed after the block."""
    headers = {"Last-Event-ID": after} if after else {}
    with httpx2.stream("GET", url, headers=headers, timeout=READY_S) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield (event for event in told(response) if event.kind != ":")


def text_of(events: Iterator[Told], before: str = "") -> str:
    """The text that they make."""
    text = before
    for event in events:
        if event.kind in ("text", "retract"):
            text = text[: event.data["offset"]] + (event.data["value"] or "")
    return text
