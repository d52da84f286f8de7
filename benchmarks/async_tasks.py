"""No-op tasks on Celery's threads pool and no-op coroutine tasks on ours: functions for benchmarks.

Both sides run the same app, one message a task, without results, acknowledged late, with the same setting of events.
"""

from __future__ import annotations

import os
import time

from celery import Celery
from redis import Redis

APP = "async_tasks"
POLL_S = 0.005
SLOTS = 64


def async_app(url: str) -> Celery:
    """The app of both sides."""
    app = Celery("async_tasks", broker=url, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )

    @app.task(shared=False, name="noop")
    def noop() -> None:
        """Does nothing in a thread."""

    @app.task(shared=False, name="noop_coroutine")
    async def noop_coroutine() -> None:
        """Does nothing on the loop."""

    return app


def worker_arguments(pool: str, queue: str, *, slots: int = SLOTS, events: bool = True) -> list[str]:
    """The command line of a worker after `python -m celery`.

    Args:
        pool: `threads`, or `custom` with `CELERY_CUSTOM_WORKER_POOL=mosaic_tasks.pool:TaskPool`.
    """
    words = ["-A", APP, "worker", "--pool", pool, "--concurrency", str(slots), "--queues", queue]
    words += ["--hostname", f"{queue}@localhost", "--loglevel", "WARNING"]
    words += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return [*words, "--task-events"] if events else words


def tasks_per_second(app: Celery, client: Redis, *, task: str, queue: str, count: int) -> float:
    """How fast the worker of a queue works off `count` tasks that lie there: from its first to its last."""
    with app.producer_pool.acquire(block=True) as producer, producer.batch():
        for _ in range(count):
            app.send_task(task, producer=producer, queue=f"{queue}-held")
    began = time.perf_counter()
    client.rename(f"{queue}-held", queue)
    while client.llen(queue) or client.hlen("unacked"):
        time.sleep(POLL_S)
    return count / (time.perf_counter() - began)


app = async_app(os.environ.get("BENCH_URL", "memory://"))
