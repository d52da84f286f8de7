"""A user's own Celery app that joined mosaic-tasks."""

from __future__ import annotations

from celery import Celery

from mosaic_queues.connection import server_urls
from mosaic_tasks import install

app = install(Celery("reports", broker=server_urls().broker_url, set_as_current=False))


@app.task(name="reports.add")
def add(a: int, b: int) -> int:
    return a + b
