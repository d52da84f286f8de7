"""Loaded into a worker or client (`celery -I`): ends the process, or loses an answer, at a chosen place, once.

KILL_AT names the place, KILL_FLAG a file that says that it happened, KILL_CALL the only call whose claim counts.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis.exceptions import ConnectionError

from mosaic_queues.ledger import Ledger
from mosaic_queues.outbox import Outbox
from mosaic_tasks.execution.hosted_run import Ticket


def _die_once() -> None:
    flag = Path(os.environ["KILL_FLAG"])
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _always(**_options: Any) -> bool:
    return True


def _before(owner: Any, name: str, *, asked: Callable[..., bool] = _always) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def killed(*args: Any, **options: Any) -> Any:
        if asked(**options):
            _die_once()
        return original(*args, **options)

    setattr(owner, name, killed)


def _after(
    owner: Any,
    name: str,
    *,
    when: Callable[[Any], bool] = lambda _answer: True,
    asked: Callable[..., bool] = _always,
) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def killed(*args: Any, **options: Any) -> Any:
        answer = original(*args, **options)
        if when(answer) and asked(**options):
            _die_once()
        return answer

    setattr(owner, name, killed)


class _Line(threading.local):
    """This thread's line to the server; so many of its next words do not get there."""

    down = 0


_line = _Line()


def _through_line(owner: Any, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def called(*args: Any, **options: Any) -> Any:
        if _line.down:
            _line.down -= 1
            raise ConnectionError("the connection was lost")
        return original(*args, **options)

    setattr(owner, name, called)


def _lose_answer(owner: Any, name: str, *, when: Callable[[Any], bool], then_down: int = 0) -> None:
    """The transition happens, and its answer does not come: once."""
    original: Callable[..., Any] = getattr(owner, name)

    def lost(*args: Any, **options: Any) -> Any:
        answer = original(*args, **options)
        flag = Path(os.environ["KILL_FLAG"])
        if when(answer) and not flag.exists():
            flag.touch()
            _line.down = then_down
            raise ConnectionError("the answer was lost")
        return answer

    setattr(owner, name, lost)


def _claims(answer: Any) -> bool:
    wanted = os.environ.get("KILL_CALL")
    return any(wanted in (None, claim.call) for claim in answer.claimed)


def _commits(part: str = "") -> Callable[..., bool]:
    """Whether a mailbox commits, and this part of a commit is there."""

    def asked(*, commit: Any, **_options: Any) -> bool:
        return commit is not None and (not part or bool(getattr(commit, part)))

    return asked


match os.environ["KILL_AT"]:
    case "before_publish":
        _before(Outbox, "publish")
    case "before_publish_chord":
        _before(Outbox, "publish_chord")
    case "after_claim":
        _after(Ledger, "advance", when=_claims)
    case "before_record":
        _before(Ledger, "advance")
    case "after_record":
        _after(Ledger, "advance", when=lambda answer: not answer.claimed)
    case "after_expand":
        _after(Ledger, "expand")
    case "after_open":
        _after(Ledger, "open_run")
    case "before_chunks":
        _before(Ledger, "publish")
    case "after_chunks":
        _after(Ledger, "publish")
    case "before_commit":
        _before(Ledger, "consume", asked=_commits())
    case "after_commit":
        _after(Ledger, "consume", asked=_commits())
    case "after_emission":
        _after(Ledger, "consume", asked=_commits("flushes"))
    case "before_grow":
        _before(Ledger, "consume", asked=_commits("grow"))
    case "after_grow":
        _after(Ledger, "consume", asked=_commits("grow"))
    case "before_cut":
        _before(Ledger, "consume", asked=_commits("cut"))
    case "after_cut":
        _after(Ledger, "consume", asked=_commits("cut"))
    case "lose_grow":
        _lose_answer(Ledger, "consume", when=lambda answer: bool(answer.ready))
    case "before_seal":
        _before(Ledger, "consume", asked=_commits("seal"))
    case "after_seal":
        _after(Ledger, "consume", asked=_commits("seal"))
    case "before_ack":
        _before(Ticket, "close")
    case "lose_claim":
        _lose_answer(Ledger, "advance", when=_claims)
    case "lose_connection":
        for word in ("advance", "live_calls"):
            _through_line(Ledger, word)
        _lose_answer(Ledger, "advance", when=_claims, then_down=2)
    case "lose_record":
        _lose_answer(Ledger, "advance", when=lambda answer: not answer.claimed)
    case "lose_expand":
        _lose_answer(Ledger, "expand", when=lambda _answer: True)
    case "lose_hand_back":
        _lose_answer(Ledger, "hand_back", when=lambda _answer: True)
