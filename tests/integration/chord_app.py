"""An ordinary Celery app, without any other import of ours, whose tasks misbehave once and tell what they did."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery import Celery, Task, chord, group
from celery.signals import before_task_publish

STARTED, BODIES, ERRORS, RUNS, GATE = "test:started", "test:bodies", "test:errors", "test:runs", "test:gate"
BLOCKED_S = 60


def chord_app(broker: str, backend: str) -> Celery:
    """The app on a broker and a result backend."""
    app = Celery("chord_app", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(
        task_default_queue="chords",
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        result_expires=600,
        task_publish_retry=True,
    )
    _add_plain_tasks(app)
    _add_canvas_tasks(app)
    _add_faulty_tasks(app)
    return app


def _add_plain_tasks(app: Celery) -> None:
    @app.task(name="add")
    def add(x: int, y: int = 0) -> int:
        return x + y

    @app.task(name="total")
    def total(values: list[int]) -> int:
        return sum(values)

    @app.task(name="collect")
    def collect(values: Any) -> Any:
        app.backend.client.rpush(BODIES, repr(values))
        return values

    @app.task(name="quiet", ignore_result=True)
    def quiet(x: int) -> int:
        return x

    @app.task(name="boom")
    def boom(*_args: Any) -> None:
        raise ValueError("boom")

    @app.task(name="on_error")
    def on_error(request: Any, error: Exception, _traceback: Any) -> None:
        app.backend.client.rpush(ERRORS, type(error).__name__)


def _add_canvas_tasks(app: Celery) -> None:
    add = app.tasks["add"]

    @app.task(name="retried", bind=True, max_retries=3)
    def retried(self: Task, x: int) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return x

    @app.task(name="replaced", bind=True)
    def replaced(self: Task, kind: str) -> Any:
        canvas = {
            "task": lambda: add.s(40, 2),
            "chain": lambda: add.s(40, 1) | add.s(1),
            "group": lambda: group(add.s(40, 2), add.s(41, 2)),
            "chord": lambda: chord([add.s(40), add.s(2)], app.tasks["total"].s()),
        }
        return self.replace(canvas[kind]())

    @app.task(name="growing", bind=True)
    def growing(self: Task) -> int:
        self.add_to_chord(add.s(100))
        return 1

    @app.task(name="layer", bind=True)
    def layer(self: Task, values: list[int], left: int) -> Any:
        if not left:
            return values
        return self.replace(chord([add.s(value, 1) for value in values], layer.s(left - 1)))


def _add_faulty_tasks(app: Celery) -> None:
    def first_time(label: str) -> bool:
        return int(app.backend.client.hincrby(RUNS, label, 1)) == 1

    def block_once(label: str) -> str:
        if first_time(label):
            app.backend.client.rpush(STARTED, os.getpid())
            app.backend.client.blpop([GATE], timeout=BLOCKED_S)
        return label

    def die_once(label: str) -> str:
        if first_time(label):
            os.kill(os.getpid(), signal.SIGKILL)
        return label

    app.task(name="block_once")(block_once)
    app.task(name="block_once_late", acks_late=True)(block_once)
    app.task(name="die_once")(die_once)
    app.task(name="die_once_late", acks_late=True)(die_once)

    @app.task(name="first_result")
    def first_result(label: str) -> int:
        return int(app.backend.client.hincrby(RUNS, label, 1))

    @app.task(name="fragile")
    def fragile(values: list[Any]) -> list[Any]:
        app.backend.client.rpush(BODIES, repr(values))
        return values

    @before_task_publish.connect(weak=False)
    def die_before_publishing(sender: str, **_signal: Any) -> None:
        """A process that joins a chord dies before its body is published, once."""
        if sender == "fragile" and app.current_worker_task and first_time("fragile"):
            os.kill(os.getpid(), signal.SIGKILL)


app = chord_app(os.environ.get("CHORD_BROKER", "memory://"), os.environ.get("CHORD_BACKEND", "cache+memory://"))
