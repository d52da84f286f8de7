"""A Celery pool that runs coroutine tasks on one event loop, hundreds at a time: `mosaic_tasks.pool:TaskPool`."""

from mosaic_tasks.pool.taskpool import TaskPool

__all__ = ["TaskPool"]
