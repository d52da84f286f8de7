"""What calls come to: their outcomes, and how failures are told and tried again."""

from __future__ import annotations

import math
import os
import random
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from celery.exceptions import Ignore, Reject, Retry

from mosaic_queues.errors import CallError, CallRevoked, CallTimeout, ClaimLost, MosaicError, PayloadError
from mosaic_queues.streams import Drain, Flush
from mosaic_queues.texts import bounded, visible
from mosaic_queues.transitions import Claim, Field, Mark, Usage
from mosaic_tasks.execution.prepared import CallId, PreparedNode


class Work(NamedTuple):
    """A call with its arguments, ready to run.

    Attributes:
        early: by producer that has not closed, what the call may read of it; of a mailbox, also the outputs of those
            that have.
        holder: in whose name it is claimed.
        opened: what a mailbox reads first, where that came with its claim.
    """

    claim: Claim
    call: CallId
    node: PreparedNode
    arguments: Mapping[str, Any]
    names: Mapping[str, Any]
    early: Mapping[int, Any]
    holder: str
    opened: Drain | None = None

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop, together with others."""
        return self.node.is_async


class Published(Protocol):
    """What a call has said, as those need it who record the call."""

    def flush(self) -> None:
        """Says what it has to, and again what the server has lost.

        Raises:
            RedisError: the server does not answer.
            MosaicError: it cannot be said.
        """

    def abandon(self) -> None:
        """Nothing more of it is said."""


class Ending(NamedTuple):
    """What the transition that records a call carries for its readers.

    Attributes:
        marks: for those who read its streams.
        fields: the parts of its output that calls wait for.
        flushes: the last chunks of its streams.
        publication: says all again that the call has said, should the server have lost what these follow on.
    """

    marks: Sequence[Mark] = ()
    fields: Sequence[Field] = ()
    flushes: Sequence[Flush] = ()
    publication: Published | None = None


class Value(NamedTuple):
    """A call ended with a value, as an envelope; `shown` is its beginning, for people; an agent's `usage`."""

    envelope: bytes
    shown: str
    ending: Ending
    usage: Usage | None = None


class Skip(NamedTuple):
    """A call, and with it its node, is skipped."""

    reason: str


class Expand(NamedTuple):
    """An opening call found `size` items to fan out over."""

    size: int


class Failure(NamedTuple):
    """A call failed; `usage` is what an agent spent all the same.

    Attributes:
        is_first: it did something since its last failure, so this one counts as the first.
        is_revoked: somebody wanted it to end.
    """

    error: str
    retryable: bool
    usage: Usage | None = None
    is_first: bool = False
    is_revoked: bool = False


class Unrecorded(NamedTuple):
    """Nothing is to be recorded of the call: a mailbox read what there was and waits for more, or made a call of each
    item, or the claim was lost.

    Attributes:
        is_lost: it was the claim.
    """

    shown: str
    usage: Usage | None = None
    is_lost: bool = False


class Returned(NamedTuple):
    """The engine of a call is gone: the call runs again, and no attempt is counted.

    Attributes:
        is_loss: it was in the engine when that died.
    """

    reason: str
    is_loss: bool


class Overtaken(NamedTuple):
    """A shadow has its answer and took over the call, which its process holds by `claim` now."""

    claim: Claim
    outcome: Value | Failure | Unrecorded


Outcome = Value | Skip | Expand | Failure | Unrecorded | Returned | Overtaken


def usage_of(work: Work, model: str, used: Any, finish: str = "") -> Usage:
    """What the ledger notes of the tokens and the price that an engine told, and why its answer ended."""
    return Usage(
        work.claim.call,
        str(model),
        used.input_tokens,
        used.output_tokens,
        used.cost_usd,
        used.cached_tokens,
        work.claim.fence,
        finish,
    )


def total_usage(usages: Sequence[Usage]) -> Usage | None:
    """What several questions used together."""
    if not usages:
        return None
    costs = [usage.cost_usd for usage in usages]
    return usages[0]._replace(
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        cost_usd=None if None in costs else sum(cost or 0.0 for cost in costs),
        finish=usages[-1].finish,
    )


def timed_out(node: PreparedNode) -> CallTimeout:
    """The error of a call that ran for longer than its node allows."""
    return CallTimeout(f"it ran longer than its timeout of {node.plan.timeout_s:g} s")


LARGEST_LOG = 100.0
"""Beyond e to this power any pause is the largest."""


def retry_pause(node: PreparedNode, failures: int) -> float | None:
    """Seconds to the next attempt after `failures` earlier ones, None when the attempts are used up."""
    retry = node.plan.retry
    if failures + 1 >= retry.attempts:
        return None
    grown = failures * math.log(max(retry.factor, 1.0))
    pause = retry.delay_s * retry.factor**failures if grown < LARGEST_LOG else retry.max_delay_s
    return min(pause * random.uniform(0.8, 1.2), retry.max_delay_s)  # noqa: S311 - spreads retries


def ended(work: Work, reason: BaseException, usage: Usage | None = None) -> Failure | Unrecorded:
    """What a call comes to that was ended from outside: nothing, where it is somebody else's or nobody's."""
    if isinstance(reason, ClaimLost):
        return Unrecorded(str(reason), usage, is_lost=True)
    return failure(work.node, work.claim, reason)._replace(usage=usage)


def claim_lost(claim: Claim) -> ClaimLost:
    """Why a call ends that does not count any more."""
    return ClaimLost(f"call {claim.call!r} is over, or somebody else's")


def failure(node: PreparedNode, claim: Claim, error: BaseException) -> Failure:
    """A failure that says which node and call, what was raised, and where."""
    item = CallId(claim.call).item
    where = f"node {node.name!r}" + (f", item {item}" if item is not None else "")
    is_revoked = isinstance(error, CallRevoked)
    return Failure(f"{where}: {visible(_told(error))}", _is_retryable(error), is_revoked=is_revoked)


_OURS = str(Path(__file__).parents[1]) + os.sep
"""Frames of this package say nothing about a tool."""


def _told(error: BaseException) -> str:
    if isinstance(error, MosaicError):
        return bounded(f"{type(error).__name__}: {error}")
    if isinstance(error, SystemExit):
        return bounded(f"ToolError: it called sys.exit({error.code!r})")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OURS)]
    place = f" (in {frames[-1].name}, line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"ToolError: {bounded(f'{type(error).__name__}: {_said(error)}')}{place}"


def _said(error: BaseException) -> str:
    """What it says; that is a tool's own code, too."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - whatever it is, the call failed by the first one
        return f"(it cannot say why: {type(failed).__name__})"


def _is_retryable(error: BaseException) -> bool:
    if isinstance(error, CallError):
        return error.retryable
    return not isinstance(error, (PayloadError, SystemExit, Ignore, Reject)) or isinstance(error, Retry)


def shown(value: Any) -> str:
    """The beginning of a value, for people."""
    return (
        repr(value)
        if isinstance(value, (int, float, bool, type(None)))
        else f"{type(value).__name__}: {str(value)[:120]}"
    )
