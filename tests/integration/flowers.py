"""Flower, as people start it, and its API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from mosaic_queues.connection import ServerUrls
from mosaic_tasks.app import app

READY_S = 30.0
LOOK_S = 0.05
T = TypeVar("T")


class Answer:
    """What it answers."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text

    def json(self) -> Any:
        assert self.status == 200, (self.status, self.text)
        return json.loads(self.text)


class Flower:
    """A Flower in a process of its own, on a port that it chooses.

    Args:
        words: more options.
        credentials: `user:password`, which it asks for and is given.
        opened: without such, its API is open.
    """

    def __init__(
        self,
        urls: ServerUrls,
        directory: Path,
        *words: str,
        credentials: str | None = None,
        opened: bool = True,
    ) -> None:
        self._credentials = credentials
        env = {
            **os.environ,
            **({"FLOWER_UNAUTHENTICATED_API": "1"} if opened and credentials is None else {}),
            **({"FLOWER_BASIC_AUTH": credentials} if credentials is not None else {}),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "MOSAIC_REDIS_URL": urls.redis_url,
            "MOSAIC_HOME": str(directory / "home"),
        }
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "mosaic_tasks.app",
            "flower",
            "--address=127.0.0.1",
            "--port=0",
        ]
        self._process = subprocess.Popen(
            [*command, *words],
            env=env,
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.log: list[str] = []
        self.url = self._await_url()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _await_url(self) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if found := re.search(r"Visit me at (\S+)", line):
                return found[1].rstrip("/")
        raise AssertionError(f"Flower did not start:\n{''.join(self.log)}")

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.log.extend(self._process.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        self._process.wait(READY_S)
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        print(f"--- log of Flower\n{''.join(self.log)}")

    def ask(self, path: str, *, method: str = "GET", login: bool = True, **query: Any) -> Answer:
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        request = Request(url, method=method)
        if self._credentials and login:
            request.add_header("Authorization", f"Basic {b64encode(self._credentials.encode()).decode()}")
        try:
            with urlopen(request, timeout=READY_S) as answer:
                return Answer(answer.status, answer.read().decode())
        except HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode())

    def post(self, path: str, **query: Any) -> Answer:
        return self.ask(path, method="POST", **query)

    def tasks(self, **query: Any) -> dict[str, dict[str, Any]]:
        return dict(self.ask("/api/tasks", **query).json())

    def task(self, task_id: str) -> dict[str, Any]:
        """All that it knows of a task; empty: nothing."""
        answer = self.ask(f"/api/task/info/{quote(task_id)}")
        return dict(answer.json()) if answer.status == 200 else {}

    def await_state(self, task_id: str, *states: str) -> dict[str, Any]:
        return self.await_that(
            lambda: self.task(task_id), lambda task: task.get("state") in states, f"{task_id} is {states}"
        )

    def await_workers(self, names: Sequence[str]) -> Mapping[str, Any]:
        """Until it knows what these workers say of themselves."""

        def known() -> dict[str, Any]:
            return dict(self.ask("/api/workers", refresh="1").json())

        def complete(found: Mapping[str, Any]) -> bool:
            return all({"stats", "active_queues"} <= found.get(name, {}).keys() for name in names)

        return self.await_that(known, complete, f"it knows {names}")

    def await_ears(self, speaks: str = "somebody") -> None:
        """Until it hears events: its pages come first, and what is told before is lost.

        Args:
            speaks: whom it has not heard yet.
        """
        with app.events.default_dispatcher(hostname=speaks) as speaker:

            def heard() -> dict[str, bool]:
                speaker.send("worker-heartbeat", freq=60)
                return dict(self.ask("/api/workers", status="1").json())

            self.await_that(heard, lambda found: speaks in found, "it hears events")

    def await_that(self, look: Callable[[], T], holds: Callable[[T], bool], what: str) -> T:
        """Looks until something holds: Flower tells nobody when it has heard an event."""
        deadline = time.monotonic() + READY_S
        while not holds(found := look()):
            assert time.monotonic() < deadline, f"not in time: {what}; last seen: {found}"
            time.sleep(LOOK_S)
        return found
