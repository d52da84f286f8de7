"""Joining an app leaves every other app as it is."""

from celery import Celery

from mosaic_queues.outbox import CALL_TASK
from mosaic_tasks.app import install


def test_tasks_are_registered_with_their_app_alone() -> None:
    first, second, other = (Celery(name, broker="memory://", set_as_current=False) for name in "abc")
    install(first)
    install(second)
    assert CALL_TASK in first.tasks
    assert CALL_TASK in second.tasks
    assert CALL_TASK not in other.tasks
