"""What the ledger's transitions and reads take and give: values that need no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from mosaic_queues.streams import Drain, Flush

RunStatus = Literal["running", "done", "failed", "cancelled"]
CallState = Literal["ready", "delayed", "claimed", "idle"]
DoneKind = Literal["done", "skipped"]
Group = tuple[str, Sequence[str]]
"""A queue and the calls that wait for it."""
Release = Group | tuple[str, Sequence[str], Mapping[str, Sequence[str]]]
"""A group to be released; with it, of the mailboxes among its calls, the streams that they read."""


class Claim(NamedTuple):
    """A call that this process holds. `fence` is the fencing token; `failures` and `losses` count earlier attempts."""

    call: str
    fence: int
    failures: int
    losses: int


class Mark(NamedTuple):
    """A chunk without data that a finished call adds to a stream: its `end`, or an `item` that is the call's output.

    Attributes:
        follows: the call has published all before it; where that is not there any more, the call runs again.
    """

    stream: str
    kind: Literal["end", "item"]
    offset: int
    size: int
    readers: Sequence[str]
    follows: bool = False


class Field(NamedTuple):
    """A part of an output that calls wait for, under the name by which the outputs hold it; `joins` count it."""

    name: str
    envelope: bytes
    joins: Sequence[str]


class Done(NamedTuple):
    """A finished call: its envelope, the names of the joins that it raises, and what it tells those who read along: the
    last chunks of its streams, before their marks."""

    call: str
    fence: int
    envelope: bytes
    kind: DoneKind
    joins: Sequence[str]
    marks: Sequence[Mark] = ()
    fields: Sequence[Field] = ()
    flushes: Sequence[Flush] = ()


class Usage(NamedTuple):
    """What a call used of an inference engine. `cost_usd` is None where the price is not known; of the input,
    `cached_tokens` were spared by a prefix cache. It is noted once for each claim, whose `fence` it has. `finish`: why
    the engine ended its answer, as far as there is one."""

    call: str
    model: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    cached_tokens: int = 0
    fence: int = 0
    finish: str = ""


class JoinStep(NamedTuple):
    """What a raised join releases when its counter reaches `size`; `members` None ends the run."""

    name: str
    size: int
    members: Sequence[Release] | None


class Route(NamedTuple):
    """Where a call goes.

    Attributes:
        reason: a sentence for people.
        wait_ms: it goes nowhere before so long.
        envelope: what whoever claims the call learns; among the outputs it is called `route_of(call)`.
    """

    call: str
    queue: str
    target: str
    reason: str
    wait_ms: int
    envelope: bytes


def route_of(call: str) -> str:
    """Under this name the outputs hold where a call went."""
    return f"{call}>"


def fence_of(call: str) -> str:
    """Under this name the outputs hold by which claim of which call an output was recorded, `CALL#FENCE`, where that
    was not the first claim of the call named so, and somebody wants to know."""
    return f"{call}!"


SHADOW = ".~"
"""Behind the id of a call: its shadow, the same call asked a second time elsewhere, which takes it over once it has its
answer."""


def shadow_of(call: str) -> str:
    """The shadow of a call."""
    return call + SHADOW


def is_shadow(call: str) -> bool:
    """Whether a call is the shadow of another."""
    return call.endswith(SHADOW)


def shadowed(call: str) -> str:
    """The call whose shadow this is, or that it is itself."""
    return call.removesuffix(SHADOW)


class Redo(NamedTuple):
    """Nodes that run again.

    Attributes:
        joins: each with its size, the names of the outputs that it waits for and that are kept, and what it releases.
        roots: those that wait for nothing.
        boxes: the mailboxes among them, with the streams that they read.
    """

    nodes: Sequence[int]
    joins: Sequence[tuple[str, int, Sequence[str], Sequence[Release]]]
    roots: Sequence[Release]
    boxes: Sequence[tuple[str, Sequence[str]]]


EPOCH = 1 << 32
"""The claims of an epoch count from its number times this."""
UNDONE = 1 << 20
"""Within an epoch, the claims of a call that was undone and made again count from this, the next time from twice
this."""
INPUTS_CALL = "in"
"""Under this name the outputs hold the inputs of the run."""
CLOSE = "c"
"""Behind the number of a node: the call that closes its fan-out."""
MAILBOX = "m"
"""Behind the number of a node: the call by which it reads streams."""


class Advance(NamedTuple):
    """Answer to a transition: refused calls, calls now held by this process, calls to publish, envelopes read.

    Attributes:
        opened: what the mailboxes among the claimed calls read first.
        dropped: shadows of the finished calls, which nobody needs any more: claims of them, or those that would have
            come next.
        waited_ms: of claimed calls that were ready before, for how long.
        gaps: calls that are not recorded yet, since the server has lost what they said before their last chunks.
    """

    stale: list[str]
    claimed: list[Claim]
    ready: list[Group]
    closed: bool
    outputs: Mapping[str, bytes] = {}
    opened: Mapping[str, Drain] = {}
    dropped: Sequence[Claim] = ()
    waited_ms: Mapping[str, int] = {}
    gaps: Sequence[str] = ()


class LiveCall(NamedTuple):
    """A call that is not finished.

    Attributes:
        at_ms: when it became ready or was claimed, or when it is due.
        holder: the process that claimed it.
        claimant: the part of the process that claimed it, `PROCESS#PART`.
        due_ms: when an idle mailbox is woken in any case.
    """

    call: str
    state: CallState
    fence: int
    failures: int
    losses: int
    queue: str
    at_ms: int
    holder: str
    claimant: str = ""
    due_ms: int | None = None


class RunStanding(NamedTuple):
    """Whether a run goes on, and since when.

    Attributes:
        since_ms: when it was opened, or opened again.
        origin: the span in whose course it was submitted, as W3C's `traceparent`; empty: none.
        reopened_ms: when nodes of it were last run again after its end; None: never.
        is_untold: of one that was opened again: before a sweep found it over.
    """

    status: RunStatus
    since_ms: int
    name: str = ""
    created_ms: int = 0
    ended_ms: int | None = None
    origin: str = ""
    reopened_ms: int | None = None
    is_untold: bool = False


class RunRecord(NamedTuple):
    """What the ledger keeps of a run as a whole."""

    run_id: str
    status: RunStatus
    plan: str
    name: str
    created_ms: int
    ended_ms: int | None
    error: str


def process_of(claimant: str) -> str:
    """The process of a claimant: claims are made as `PROCESS#PART`, so that a part can let go of its own alone."""
    return claimant.partition("#")[0]
