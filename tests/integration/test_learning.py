"""What processes tell each other of lengths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from mosaic_queues.keys import Keys
from mosaic_routing.lengths import HALF_LIFE_S
from mosaic_routing.reports import Reports
from mosaic_tasks.execution import learning
from mosaic_tasks.execution.learning import SHARE_S, Learned, Learning

pytestmark = pytest.mark.integration
KEYS = Keys("mosaic")
REPORTS = Reports("length", Learned, name=lambda learned: learned.holder, expiry_s=60.0)


class Clock:
    """The time of all clocks of a process."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(learning, "time", SimpleNamespace(time=made, monotonic=made))
    return made


def learn(one: Learning, node: str) -> None:
    lengths: dict[str, Any] = {"chars": 400, "input_tokens": 100, "output_tokens": 30}
    one.observe(node, "llama", **lengths)


def test_what_one_process_learned_another_knows(redis_client: Redis, clock: Clock) -> None:
    one, other = (Learning(redis_client, KEYS, holder=name) for name in ("one", "other"))
    learn(one, "chat")
    one.share()
    assert other.answer("chat", "llama", input_tokens=100).counts == 0.0
    other.share()
    assert other.answer("chat", "llama", input_tokens=100).counts == pytest.approx(1.0)
    assert other.prompt_tokens("chat", chars=800) == 200.0
    clock.now_s += SHARE_S
    other.share()
    assert other.answer("chat", "llama", input_tokens=100).counts == pytest.approx(1.0)


def test_what_was_not_seen_for_long_is_told_no_more(redis_client: Redis, clock: Clock) -> None:
    one = Learning(redis_client, KEYS, holder="one")
    learn(one, "old")
    one.share()
    clock.now_s += 20 * HALF_LIFE_S
    learn(one, "new")
    one.share()
    (told,) = REPORTS.all(redis_client, keys=KEYS)
    assert {kind for kind in told.histograms if "old" in kind} == set()
    assert {kind for kind in told.histograms if "new" in kind}


def test_what_could_not_be_told_is_told_later(
    redis_client: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise RedisConnectionError("away")

    one = Learning(redis_client, KEYS, holder="one")
    learn(one, "chat")
    with monkeypatch.context() as patch:
        patch.setattr(learning._REPORTS, "publish", away)
        one.share()
    assert REPORTS.all(redis_client, keys=KEYS) == []
    clock.now_s += SHARE_S
    one.share()
    assert [told.holder for told in REPORTS.all(redis_client, keys=KEYS)] == ["one"]
