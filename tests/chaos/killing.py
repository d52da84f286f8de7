"""Loaded into a worker or client (`celery -I`): ends the process, or loses an answer, at a chosen place, once.

KILL_AT names the place, KILL_FLAG a file that says that it happened.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis.exceptions import ConnectionError

from mosaic_queues.ledger import Ledger
from mosaic_queues.outbox import Outbox


def _die_once() -> None:
    flag = Path(os.environ["KILL_FLAG"])
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def killed(*args: Any, **options: Any) -> Any:
        _die_once()
        return original(*args, **options)

    setattr(owner, name, killed)


def _after(owner: Any, name: str, *, when: Callable[[Any], bool]) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def killed(*args: Any, **options: Any) -> Any:
        answer = original(*args, **options)
        if when(answer):
            _die_once()
        return answer

    setattr(owner, name, killed)


def _lose_answer(owner: Any, name: str, *, when: Callable[[Any], bool]) -> None:
    """The transition happens, and its answer does not come: once."""
    original: Callable[..., Any] = getattr(owner, name)

    def lost(*args: Any, **options: Any) -> Any:
        answer = original(*args, **options)
        flag = Path(os.environ["KILL_FLAG"])
        if when(answer) and not flag.exists():
            flag.touch()
            raise ConnectionError("the answer was lost")
        return answer

    setattr(owner, name, lost)


match os.environ["KILL_AT"]:
    case "before_publish":
        _before(Outbox, "publish")
    case "before_publish_chord":
        _before(Outbox, "publish_chord")
    case "after_claim":
        _after(Ledger, "advance", when=lambda answer: bool(answer.claimed))
    case "before_record":
        _before(Ledger, "advance")
    case "after_record":
        _after(Ledger, "advance", when=lambda answer: not answer.claimed)
    case "after_expand":
        _after(Ledger, "expand", when=lambda _answer: True)
    case "after_open":
        _after(Ledger, "open_run", when=lambda _answer: True)
    case "lose_claim":
        _lose_answer(Ledger, "advance", when=lambda answer: bool(answer.claimed))
    case "lose_record":
        _lose_answer(Ledger, "advance", when=lambda answer: not answer.claimed)
    case "lose_expand":
        _lose_answer(Ledger, "expand", when=lambda _answer: True)
    case "lose_hand_back":
        _lose_answer(Ledger, "hand_back", when=lambda _answer: True)
