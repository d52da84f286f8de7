"""An ordinary Celery app, without an import of ours, whose tasks misbehave once and tell what they did."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, Task, chord, group
from celery.signals import before_task_publish, task_postrun, task_received

BLOCKED_S = 60


def chord_app(broker: str, backend: str, label: str) -> Celery:
    """The app on a broker and a result backend; its queue and the lists of what happened bear the label."""
    app = Celery("chord_app", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(
        task_default_queue=f"chords-{label}",
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


@contextmanager
def client_of(broker: str, backend: str, label: str) -> Iterator[Celery]:
    """The app in a process that sends; its connections and results are gone afterwards."""
    app = chord_app(broker, backend, label)
    yield app
    gc.collect()
    app.backend.result_consumer.stop()
    app.backend.result_consumer._pubsub = None  # results that are collected later would connect again
    app.backend.client.connection_pool.disconnect()
    app.close()


def happened(app: Celery, what: str) -> str:
    """The key of what happened: received, started, ended, bodies, errors, runs."""
    return f"test:{app.conf.task_default_queue}:{what}"


def tell(app: Celery, what: str, value: Any) -> None:
    """Adds to what happened."""
    app.backend.client.rpush(happened(app, what), value)


def is_first(app: Celery, label: str) -> bool:
    """Whether this is the first run with this label."""
    return int(app.backend.client.hincrby(happened(app, "runs"), label, 1)) == 1


def _add_plain_tasks(app: Celery) -> None:
    @app.task(shared=False, name="add")
    def add(x: int, y: int = 0) -> int:
        return x + y

    @app.task(shared=False, name="echo")
    def echo(x: Any) -> Any:
        return x

    @app.task(shared=False, name="total")
    def total(values: list[int]) -> int:
        return sum(values)

    @app.task(shared=False, name="collect")
    def collect(values: Any) -> Any:
        tell(app, "bodies", repr(values))
        return values

    @app.task(shared=False, name="quiet", ignore_result=True)
    def quiet(x: int) -> int:
        return x

    @app.task(shared=False, name="boom")
    def boom(*_args: Any) -> None:
        raise ValueError("boom")

    @app.task(shared=False, name="on_error")
    def on_error(request: Any, error: Exception, _traceback: Any) -> None:
        tell(app, "errors", type(error).__name__)


def _add_canvas_tasks(app: Celery) -> None:
    add = app.tasks["add"]

    @app.task(shared=False, name="retried", bind=True, max_retries=3)
    def retried(self: Task, x: int) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return x

    @app.task(shared=False, name="replaced", bind=True)
    def replaced(self: Task, kind: str) -> Any:
        canvas = {
            "task": lambda: add.s(40, 2),
            "chain": lambda: add.s(40, 1) | add.s(1),
            "group": lambda: group(add.s(40, 2), add.s(41, 2)),
            "chord": lambda: chord([add.s(40), add.s(2)], app.tasks["total"].s()),
        }
        return self.replace(canvas[kind]())

    @app.task(shared=False, name="growing", bind=True)
    def growing(self: Task) -> int:
        self.add_to_chord(add.s(100))
        return 1

    @app.task(shared=False, name="layer", bind=True)
    def layer(self: Task, values: list[int], left: int) -> Any:
        if not left:
            return values
        return self.replace(chord([add.s(value, 1) for value in values], layer.s(left - 1)))


def _add_faulty_tasks(app: Celery) -> None:
    def block_once(label: str) -> str:
        if is_first(app, label):
            tell(app, "started", os.getpid())
            app.backend.client.blpop(["test:gate"], timeout=BLOCKED_S)
        return label

    def die_once(label: str) -> str:
        if is_first(app, label):
            os.kill(os.getpid(), signal.SIGKILL)
        return label

    app.task(shared=False, name="block_once")(block_once)
    app.task(shared=False, name="block_once_late", acks_late=True)(block_once)
    app.task(shared=False, name="die_once")(die_once)
    app.task(shared=False, name="die_once_late", acks_late=True)(die_once)

    @app.task(shared=False, name="first_result")
    def first_result(label: str) -> int:
        return 1 if is_first(app, label) else 2

    @app.task(shared=False, name="fragile")
    def fragile(values: list[Any]) -> list[Any]:
        tell(app, "bodies", repr(values))
        return values


app = chord_app(
    os.environ.get("CHORD_BROKER", "memory://"),
    os.environ.get("CHORD_BACKEND", "cache+memory://"),
    os.environ.get("CHORD_LABEL", "none"),
)


@task_received.connect(weak=False)
def tell_received(request: Any, **_signal: Any) -> None:
    """A worker's main process has a task, and no queue has it any more."""
    tell(app, "received", request.name)


@task_postrun.connect(weak=False)
def tell_ended(task: Task, **_signal: Any) -> None:
    """A task is over: its result is stored, and its chord knows."""
    tell(app, "ended", task.name)


@before_task_publish.connect(weak=False)
def die_before_publishing(sender: str, **_signal: Any) -> None:
    """A process that joins a chord dies before its body is published, once."""
    if sender == "fragile" and app.current_worker_task and is_first(app, sender):
        os.kill(os.getpid(), signal.SIGKILL)
