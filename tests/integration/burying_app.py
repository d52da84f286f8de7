"""The app, in a worker that dies right before or right after it notes a dead letter, or never, and that looks soon for
what others left; and one task of a user's own.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from mosaic_queues.dead_letters import DeadLetters
from mosaic_tasks.app import app

QUICK_RESTORE = {"visibility_timeout": 1, "unacked_restore_interval": 0.2, "unacked_restore_throttle": 1}
"""By itself kombu looks at the start, which may be too early, and then after 100 s."""
_bury = DeadLetters.bury


@app.task(name="reports.echo", ignore_result=True)
def echo(value: Any) -> Any:
    return value


def _die_before(_letters: DeadLetters, *_arguments: Any, **_options: Any) -> bool:
    os.kill(0, signal.SIGKILL)
    return False


def _die_after(letters: DeadLetters, *arguments: Any, **options: Any) -> bool:
    _bury(letters, *arguments, **options)
    os.kill(0, signal.SIGKILL)
    return True


if (when := os.environ.get("TEST_DIES")) is not None:
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, **QUICK_RESTORE}
    buries: dict[str, Any] = {"before": _die_before, "after": _die_after, "never": _bury}
    DeadLetters.bury = buries[when]  # type: ignore[method-assign]
