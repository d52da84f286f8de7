"""What is raised when a call is not let through.

EngineOverloaded
 └── Limited         for longer than the call can wait; another attempt may succeed
CallError
 └── BudgetSpent     never: what it may cost is not left
"""

from __future__ import annotations

from mosaic_queues.errors import CallError, EngineOverloaded


class Limited(EngineOverloaded):
    """A limit lets the call through only later than it can wait.

    Attributes:
        wait_s: until it may; how long it waited, where nobody knows when it may.
        by: what is limited: `bucket:provider:api.openai:requests`, `breaker:api.openai/gpt-5-mini`, `lease:...`,
            `budget:...`.
    """

    def __init__(self, message: str, *, by: str, wait_s: float) -> None:
        self.by = by
        self.wait_s = wait_s
        super().__init__(message)


class BudgetSpent(CallError):
    """What is left of a budget does not suffice for the call.

    Attributes:
        by: the account: `budget:run:...`.
    """

    retryable = False

    def __init__(self, message: str, *, by: str) -> None:
        self.by = by
        super().__init__(message)
