"""What a worker revokes of what remote control says, and when."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.state import revoked
from redis.exceptions import ConnectionError as RedisConnectionError

from mosaic_tasks.execution import controlled
from mosaic_tasks.execution.controlled import ControlStep


class Site:
    """A worker's step, and what it has revoked.

    Attributes:
        is_away: the server is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[Any] = []
        self.is_away = False
        queues = SimpleNamespace(consume_from={})
        timer = SimpleNamespace(call_repeatedly=lambda *_: SimpleNamespace(cancel=lambda: None))
        self.consumer: Any = SimpleNamespace(
            app=SimpleNamespace(amqp=SimpleNamespace(queues=queues)), timer=timer
        )
        monkeypatch.setattr(controlled, "process_for", lambda _app: SimpleNamespace(serves=()))
        monkeypatch.setattr(controlled, "revoke", self._revoke)
        self.step = ControlStep(None)

    def _revoke(self, _process: Any, task_id: Any) -> None:
        if self.is_away:
            raise RedisConnectionError("away")
        self.done.append(task_id)

    def look(self) -> list[Any]:
        """What was revoked since the last look."""
        self.step._look(self.consumer)
        found, self.done = self.done, []
        return found


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    revoked.clear()
    yield Site(monkeypatch)
    revoked.clear()


def test_what_is_revoked_is_so_once_and_again_when_it_is_said_again(site: Site) -> None:
    site.step.start(site.consumer)
    revoked.add("one")
    assert site.look() == ["one"]
    assert site.look() == []
    revoked.add("one")
    revoked.add("other")
    assert sorted(site.look()) == ["one", "other"]


def test_what_another_worker_says_at_the_start_was_revoked_before_whatever_its_clock_says(site: Site) -> None:
    revoked.add("early", now=1.0)
    revoked.add("late", now=1e12)
    site.step.start(site.consumer)
    assert site.look() == []


def test_what_the_server_was_away_for_is_revoked_once_it_is_back(site: Site) -> None:
    site.step.start(site.consumer)
    for task_id in ("one", "other"):
        revoked.add(task_id)
    site.is_away = True
    assert site.look() == []
    site.is_away = False
    assert sorted(site.look()) == ["one", "other"]


def test_an_id_that_is_no_text_is_nobody_s() -> None:
    controlled.revoke(SimpleNamespace(), 7)  # type: ignore[arg-type]
