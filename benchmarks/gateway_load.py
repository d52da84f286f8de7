"""Submits runs through the gateway at a steady rate, by locust, in a process of its own (it patches all of Python).

    python gateway_load.py URL KEY USERS RATE SECONDS OUT

OUT gets JSON: `runs` that were accepted, `refused` and why, `latencies_ms` of all, the `seconds` that it took, and the
`cpu_s` that this process worked for it.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import gevent
from locust import FastHttpUser, constant_throughput, events, task
from locust.env import Environment

STOP_S = 10.0
"""Requests under way get so long."""


def submitter(key: str, rate: float) -> type[FastHttpUser]:
    """Users who submit so often a second, each beginning at a moment of its own."""

    class Submitter(FastHttpUser):
        wait_time = constant_throughput(rate)

        def on_start(self) -> None:
            gevent.sleep(random.uniform(0, 1 / rate))

        @task
        def submit(self) -> None:
            body = {"workflow": "step", "inputs": {"value": 1}}
            self.client.post("/v1/runs", json=body, headers={"Authorization": f"Bearer {key}"})

    return Submitter


class Notes:
    """What became of the requests."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.refused: list[str] = []
        self.latencies_ms: list[float] = []
        self._begun_s = self._ended_s = time.monotonic()
        self._begun_cpu_s = time.process_time()

    def note(self, response_time: float, response: Any, exception: Exception | None, **_more: Any) -> None:
        """One of them; a listener of locust."""
        self._ended_s = time.monotonic()
        self.latencies_ms.append(response_time)
        if exception is None and response.status_code == 201:
            self.runs.append(response.json()["run_id"])
        else:
            self.refused.append(repr(exception or response.text))

    def save(self, path: Path) -> None:
        """Writes them."""
        seconds = self._ended_s - self._begun_s
        told = {
            "runs": self.runs,
            "refused": self.refused,
            "latencies_ms": self.latencies_ms,
            "seconds": seconds,
            "cpu_s": time.process_time() - self._begun_cpu_s,
        }
        path.write_text(json.dumps(told))


def main(url: str, key: str, users: int, rate: float, seconds: float, out: Path) -> None:
    """Runs the load to its end."""
    user = submitter(key, rate / users)
    environment = Environment(user_classes=[user], events=events, host=url, stop_timeout=STOP_S)
    runner, notes = environment.create_local_runner(), Notes()
    events.request.add_listener(notes.note)
    runner.start(users, spawn_rate=users)
    gevent.sleep(seconds)
    runner.quit()
    runner.greenlet.join()
    notes.save(out)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], words[1], int(words[2]), float(words[3]), float(words[4]), Path(words[5]))
