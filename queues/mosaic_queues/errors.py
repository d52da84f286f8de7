"""Every error that a user of mosaic-tasks can meet, as one tree.

MosaicError
 ├── ConfigurationError        a setting, a version or a server option is unusable
 ├── ServerError               the Redis-compatible server cannot serve us
 │    ├── ServerUnavailable    it does not answer
 │    ├── ServerFull           its memory limit is reached
 │    ├── ServerRefused        its user may not do what is needed
 │    └── ServerStartError     the embedded one could not be started
 ├── LedgerError               the ledger refused a transition
 │    ├── UnknownRun           no such run (never opened, or past its retention)
 │    ├── ClaimLost            a call is not held by this claim any more; what it does is refused
 │    └── IllegalTransition    a step that cannot follow on the last one
 ├── PayloadError              a value cannot be stored or read back
 │    ├── NotSerializable      the value has no msgpack form
 │    ├── PayloadTooLarge      larger than the configured cap
 │    └── PayloadCorrupt       the checksum does not match, or the bytes are gone
 ├── DefinitionError           a workflow is wrong; names file, line, node and field
 ├── InputError                the inputs given to a run do not fit the workflow
 ├── AccessError               whoever asks may not
 │    ├── Unauthenticated      nobody is known by what was shown
 │    ├── Forbidden            the principal lacks a scope
 │    └── QuotaExceeded        the tenant has had its share; says when there is more
 ├── NoWorker                  nobody serves a queue that a run waits for
 ├── RunFailed                 a run ended without a result; names node, call and cause
 ├── RunCancelled              a run was cancelled
 ├── WaitTimeout               the caller stopped waiting; the run goes on
 └── CallError                 one call of a node failed
      ├── ToolError            the tool raised
      ├── BindingError         an argument, a condition or a prompt cannot be formed from the data
      ├── CallTimeout          it ran longer than its node's timeout
      ├── CallLost             the processes that ran it died, again and again
      ├── CallRevoked          somebody revoked it
      └── EngineError          an inference engine could not answer; another attempt may succeed
           ├── EngineOverloaded   429, 503 or a full queue: try again later
           │    └── EngineGone     it died under the call, or restarts: the call runs again, no attempt is counted
           ├── EngineRefused      fatal: bad key, unknown model, bad request
           │    └── ContentRefused  the model, or a filter on it, declines what was asked or answered
           ├── ContextTooLong     fatal: the prompt does not fit the model
           └── OutputInvalid      the answer does not fit the node's output schema
"""

from __future__ import annotations

from collections.abc import Sequence


class MosaicError(Exception):
    """Base of all errors of this project. `str(error)` is one readable sentence."""


class ConfigurationError(MosaicError):
    """A setting, a version or a server option is unusable."""


class ServerError(MosaicError):
    """The Redis-compatible server cannot serve us."""


class ServerUnavailable(ServerError):
    """The server does not answer."""


class ServerFull(ServerError):
    """The server's memory limit is reached, so it takes nothing more."""


class ServerRefused(ServerError):
    """The server's user lacks a right that is needed."""


class ServerStartError(ServerError):
    """The embedded server could not be started."""


class LedgerError(MosaicError):
    """The ledger refused a transition."""


class UnknownRun(LedgerError):
    """No such run: never opened, or past its retention."""


class ClaimLost(LedgerError):
    """A call is not held by this claim any more; what it does is refused."""


class IllegalTransition(LedgerError):
    """A step that cannot follow on the last one."""


class PayloadError(MosaicError):
    """A value cannot be stored or read back."""


class NotSerializable(PayloadError):
    """The value has no msgpack form.

    Attributes:
        path: the keys and positions that lead to the part that has none.
        reason: where and what that is, and what to do; goes on from the name of the value.
    """

    def __init__(self, path: Sequence[str | int], reason: str) -> None:
        self.path = tuple(path)
        self.reason = reason
        super().__init__(f"result{reason}")


class PayloadTooLarge(PayloadError):
    """The value is larger than the configured cap."""


class PayloadCorrupt(PayloadError):
    """The checksum does not match, or the bytes are gone."""


class DefinitionError(MosaicError):
    """A workflow is wrong.

    Attributes:
        problems: one readable line each, `file:line: node 'x', field 'y': what is wrong; what to do`.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class InputError(MosaicError):
    """The inputs given to a run do not fit the workflow."""


class AccessError(MosaicError):
    """Whoever asks may not do that."""


class Unauthenticated(AccessError):
    """Nobody is known by what was shown: no credential, a wrong one, or one that is over."""


class Forbidden(AccessError):
    """The principal lacks a scope."""


class QuotaExceeded(AccessError):
    """The tenant has had its share.

    Attributes:
        retry_after_s: there may be more in so many seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class NoWorker(MosaicError):
    """Nobody serves a queue that a run waits for. The run stays queued.

    Args:
        start: the command that starts a worker for these queues.
    """

    def __init__(self, queues: list[str], *, run_id: str, start: str) -> None:
        self.queues = queues
        self.run_id = run_id
        names = ", ".join(repr(queue) for queue in queues)
        super().__init__(
            f"no worker serves the queue{'s' if len(queues) > 1 else ''} {names}, so run {run_id} waits; "
            f"start one with: {start}"
        )


class RunFailed(MosaicError):
    """A run ended without a result; the message names node, call and cause."""


class RunCancelled(MosaicError):
    """A run was cancelled."""


class WaitTimeout(MosaicError):
    """The caller stopped waiting; the run goes on."""


class CallError(MosaicError):
    """One call of a node failed.

    Attributes:
        retryable: whether another attempt may succeed.
    """

    retryable = True


class ToolError(CallError):
    """The tool raised."""


class BindingError(CallError):
    """An argument, a condition or a prompt cannot be formed from the data at hand."""

    retryable = False


class CallTimeout(CallError):
    """The call ran longer than its node's timeout."""


class CallLost(CallError):
    """The processes that ran the call died, again and again."""

    retryable = False


class CallRevoked(CallError):
    """Somebody revoked the call: by Celery's `revoke`, or in Flower."""

    retryable = False


class EngineError(CallError):
    """An inference engine could not answer.

    Attributes:
        model: which one was asked.
        usage: tokens and price that were spent all the same; None: nothing.
    """

    model: str = ""
    usage: object | None = None


class EngineOverloaded(EngineError):
    """429, 503 or a full queue: try again later."""


class EngineGone(EngineOverloaded):
    """The engine died under the call, or restarts: the call runs again, here or elsewhere, and no attempt is counted.

    Attributes:
        began: the call was in the engine, and may be what it died of: that counts as a lost process does.
    """

    began = False


class EngineRefused(EngineError):
    """Fatal: bad key, unknown model, bad request."""

    retryable = False


class ContentRefused(EngineRefused):
    """The model, or a filter on it, declines what was asked or answered."""


class ContextTooLong(EngineError):
    """The prompt does not fit the model."""

    retryable = False


class OutputInvalid(EngineError):
    """The answer does not fit the node's output schema, also after one repair."""
