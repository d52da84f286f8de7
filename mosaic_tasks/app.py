"""The Celery app: `celery -A mosaic_tasks.app worker -Q mosaic.cpu`, and how to join another app.

Configuration is read when it is first needed, so importing this module touches neither the network nor the disk.
"""

from __future__ import annotations

from celery import Celery

from mosaic_tasks.execution.bootsteps import install_steps
from mosaic_tasks.tasks import register


def install(app: Celery) -> Celery:
    """Joins an existing Celery app: registers the `mosaic.*` tasks and the worker's step. The app keeps its
    configuration; for the safe chord join set its `result_backend` to `mosaic+<its redis url>`.

    Returns:
        The app.
    """
    register(app)
    install_steps(app)
    return app


app = Celery("mosaic", set_as_current=False)
app.config_from_object("mosaic_tasks.celeryconfig")
install(app)
