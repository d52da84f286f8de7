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
 │    ├── ProviderUnavailable  the identity provider does not answer, so its tokens cannot be checked
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
    """A setting, a version or a server option is unusable.

    Remedy: correct the setting that it names, or install the extra; `mosaic doctor` looks at the others.
    """


class ServerError(MosaicError):
    """The Redis-compatible server cannot serve us.

    Remedy: `mosaic doctor` says what is wrong with the server.
    """


class ServerUnavailable(ServerError):
    """The server does not answer.

    Remedy: see whether the server runs, and whether `MOSAIC_REDIS_URL` is right; workers and runs go on by
    themselves.
    """


class ServerFull(ServerError):
    """The server's memory limit is reached, so it takes nothing more.

    Remedy: give the server more memory, or let finished runs go sooner (`MOSAIC_RETENTION_S`).
    """


class ServerRefused(ServerError):
    """The server's user lacks a right that is needed.

    Remedy: give its user the rights that it names; docs/security.md lists all that are needed.
    """


class ServerStartError(ServerError):
    """The embedded server could not be started.

    Remedy: read the server's log in `MOSAIC_HOME`, or name a server of your own by `MOSAIC_REDIS_URL`.
    """


class LedgerError(MosaicError):
    """The ledger refused a transition."""


class UnknownRun(LedgerError):
    """No such run: never opened, or past its retention.

    Remedy: check the id, the namespace and the server; keep runs longer by `MOSAIC_RETENTION_S`.
    """


class ClaimLost(LedgerError):
    """A call is not held by this claim any more; what it does is refused.

    Remedy: nothing: another process has the call.
    """


class IllegalTransition(LedgerError):
    """A step that cannot follow on the last one.

    Remedy: report it: it is a bug, and its message has the history.
    """


class PayloadError(MosaicError):
    """A value cannot be stored or read back."""


class NotSerializable(PayloadError):
    """The value has no msgpack form.

    Remedy: give back data: mappings, lists, texts, numbers, bytes, dates, or pydantic models.

    Attributes:
        path: the keys and positions that lead to the part that has none.
        reason: where and what that is, and what to do; goes on from the name of the value.
    """

    def __init__(self, path: Sequence[str | int], reason: str) -> None:
        self.path = tuple(path)
        self.reason = reason
        super().__init__(f"result{reason}")


class PayloadTooLarge(PayloadError):
    """The value is larger than the configured cap.

    Remedy: split the value, pass a reference to it, or raise the limit that it names.
    """


class PayloadCorrupt(PayloadError):
    """The checksum does not match, or the bytes are gone.

    Remedy: give all processes the same `MOSAIC_OBJECT_STORE`; `mosaic rerun RUN --node NODE` makes the value again.
    """


class DefinitionError(MosaicError):
    """A workflow is wrong.

    Remedy: correct the lines that it names; `mosaic validate FILE` tells all of them.

    Attributes:
        problems: one readable line each, `file:line: node 'x', field 'y': what is wrong; what to do`.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class InputError(MosaicError):
    """The inputs given to a run do not fit the workflow.

    Remedy: give the inputs that the workflow declares.
    """


class AccessError(MosaicError):
    """Whoever asks may not do that."""


class Unauthenticated(AccessError):
    """Nobody is known by what was shown: no credential, a wrong one, or one that is over.

    Remedy: show an API key that is valid, or a new token.
    """


class ProviderUnavailable(AccessError):
    """The identity provider does not answer, and what it told before does not suffice to check a token.

    Remedy: ask again after `retry_after_s`; see whether the provider runs, and whether `MOSAIC_OIDC_ISSUER` is right.

    Attributes:
        retry_after_s: the provider is asked again in so many seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class Forbidden(AccessError):
    """The principal lacks a scope.

    Remedy: ask for a key with the scope that it names.
    """


class QuotaExceeded(AccessError):
    """The tenant has had its share.

    Remedy: ask again after `retry_after_s`, or raise the tenant's quota.

    Attributes:
        retry_after_s: there may be more in so many seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class NoWorker(MosaicError):
    """Nobody serves a queue that a run waits for. The run stays queued.

    Remedy: start a worker with the command that it names; the run then goes on.

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
    """A run ended without a result; the message names node, call and cause.

    Remedy: mend what it names, then `mosaic rerun RUN --node NODE`.
    """


class RunCancelled(MosaicError):
    """A run was cancelled.

    Remedy: submit it again, or run a node of it again.
    """


class WaitTimeout(MosaicError):
    """The caller stopped waiting; the run goes on.

    Remedy: wait again: `mosaic result RUN --wait`; `mosaic explain RUN` says what it waits for.
    """


class CallError(MosaicError):
    """One call of a node failed.

    Attributes:
        retryable: whether another attempt may succeed.
    """

    retryable = True


class ToolError(CallError):
    """The tool raised.

    Remedy: read the tool's error in the worker's log; give the node `retry` where another try may help.
    """


class BindingError(CallError):
    """An argument, a condition or a prompt cannot be formed from the data at hand.

    Remedy: `mosaic explain RUN` shows the data; correct the reference, or the tool that made them.
    """

    retryable = False


class CallTimeout(CallError):
    """The call ran longer than its node's timeout.

    Remedy: raise the node's `timeout`, or have the tool do less.
    """


class CallLost(CallError):
    """The processes that ran the call died, again and again.

    Remedy: find what kills the process: its memory, a library, the machine.
    """

    retryable = False


class CallRevoked(CallError):
    """Somebody revoked the call: by Celery's `revoke`, or in Flower.

    Remedy: run the node again.
    """

    retryable = False


class EngineError(CallError):
    """An inference engine could not answer.

    Remedy: see the provider's or the engine's log; give the node `retry`.

    Attributes:
        model: which one was asked.
        usage: tokens and price that were spent all the same; None: nothing.
    """

    model: str = ""
    usage: object | None = None


class EngineOverloaded(EngineError):
    """429, 503 or a full queue: try again later.

    Remedy: give the node `retry`, or the model limits or more workers.
    """


class EngineGone(EngineOverloaded):
    """The engine died under the call, or restarts: the call runs again, here or elsewhere, and no attempt is counted.

    Remedy: nothing, unless it comes back: then read the engine's log.

    Attributes:
        began: the call was in the engine, and may be what it died of: that counts as a lost process does.
    """

    began = False


class EngineRefused(EngineError):
    """Fatal: bad key, unknown model, bad request.

    Remedy: correct key, model name or options.
    """

    retryable = False


class ContentRefused(EngineRefused):
    """The model, or a filter on it, declines what was asked or answered.

    Remedy: change the prompt, or ask another model.
    """


class ContextTooLong(EngineError):
    """The prompt does not fit the model.

    Remedy: shorten the prompt, or choose a model with a longer context.
    """

    retryable = False


class OutputInvalid(EngineError):
    """The answer does not fit the node's output schema, also after one repair.

    Remedy: simplify the schema, raise `max_tokens`, or choose another model.
    """
