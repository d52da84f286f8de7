"""Delivers a message to a URL: tries again for a while when the receiver is away or busy, and says what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from mosaic_queues.errors import InputError
from mosaic_tasks.webhooks.configuration import Allowed, allowed, signing_secrets
from mosaic_tasks.webhooks.posting import Answer, post
from mosaic_tasks.webhooks.signing import signed_headers
from mosaic_tasks.webhooks.targets import Target, check_url, resolved

TIMEOUT_S = 10.0
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Between attempts, of which there is one more."""
MAX_ADDRESSES = 3
MAX_PAUSE_S = 60.0
"""A receiver that asks for a longer pause is not waited for."""
_BUSY = frozenset({408, 425, 429})


class Message(NamedTuple):
    """What is told.

    Attributes:
        id: the same each time, so that receivers know a message that they have.
        body: JSON.
    """

    id: str
    body: bytes


class Sender(NamedTuple):
    """Where a webhook goes, and how it is signed; its secrets are not shown."""

    target: Target
    allowed: Allowed
    secrets: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"<Sender {self.target.place}>"


def sender_to(url: str) -> Sender:
    """Made before there is anything to tell, so that what is wrong with it is known early.

    Raises:
        InputError: the URL is none that may be told.
        ConfigurationError: there is no secret, or the environment is wrong otherwise.
    """
    return Sender(check_url(url), allowed(), signing_secrets())


class Failure(NamedTuple):
    """Why a message was not taken.

    Attributes:
        is_final: another attempt would not help.
        retry_after_s: the receiver asks for such a pause.
    """

    reason: str
    is_final: bool = False
    retry_after_s: float | None = None


def deliver(sender: Sender, message: Message, *, told: Callable[[str], object]) -> str:
    """Posts the message until it is taken, at most `len(PAUSES_S) + 1` times.

    Args:
        told: is called with a sentence before each pause.

    Returns:
        Why it was not taken; empty: it was.
    """
    for pause_s in (*PAUSES_S, None):
        failure = attempt(sender, message)
        if failure is None:
            return ""
        pause_s = None if pause_s is None else max(pause_s, failure.retry_after_s or 0.0)
        if failure.is_final or pause_s is None or pause_s > MAX_PAUSE_S:
            return failure.reason
        told(f"webhook: {failure.reason}; once more in {pause_s:g} s")
        time.sleep(pause_s)
    raise AssertionError("the last attempt ends it")


def attempt(sender: Sender, message: Message) -> Failure | None:
    """Posts the message once; None: it was taken."""
    try:
        return _judged(sender.target, _posted(sender, message))
    except InputError as error:
        return Failure(str(error), is_final=True)
    except OSError as error:
        return Failure(f"{sender.target.place} cannot be told: {error.strerror or error}")


def _posted(sender: Sender, message: Message) -> Answer:
    """Tries the addresses one after the other until one can be connected to."""
    headers = signed_headers(
        sender.secrets, message=message.id, timestamp_s=int(time.time()), body=message.body
    )
    *others, last = resolved(sender.target, sender.allowed)[:MAX_ADDRESSES]
    for address in others:
        try:
            return post(sender.target, address, headers, message.body, timeout_s=TIMEOUT_S)
        except OSError:
            continue
    return post(sender.target, last, headers, message.body, timeout_s=TIMEOUT_S)


def _judged(target: Target, answer: Answer) -> Failure | None:
    if 200 <= answer.status < 300:
        return None
    what = f"{target.place} answers with status {answer.status}"
    if 300 <= answer.status < 400:
        return Failure(
            f"{what}, and redirects are not followed; give the URL that it leads to", is_final=True
        )
    is_final = answer.status < 500 and answer.status not in _BUSY
    return Failure(what, is_final=is_final, retry_after_s=answer.retry_after_s)
