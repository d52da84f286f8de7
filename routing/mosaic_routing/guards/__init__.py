"""Guards: what a call must pass before it is sent to a deployment, over all processes, in one step of the server.

*Token buckets* of requests and tokens, *leases* of concurrency, *budgets* of money, and the *circuit breaker* of the
deployment. A call gets all that it needs or nothing; it waits within its time for what is not free, is told of the next
possible moment, and settles in the end what it really used. Whoever dies leaves nothing behind that lasts.

    from mosaic_routing.guards import GuardedCall, Guards, Limits, ServerBackend

    limits = Limits.model_validate({
        "providers": {"api.openai": {"requests_per_minute": 500, "tokens_per_minute": 200_000}},
        "deployments": {"*": {"concurrency": 64}},
        "tenants": {"*": {"dollars_per_day": 20}},
    })
    call = GuardedCall(deployment="api.openai/gpt-5-mini", tenant="acme", tokens=1_200, dollars=0.002)
    with Guards(ServerBackend(client, keys)) as guards:
        async with guards.admit(limits.need(call), wait_s=30) as permit:   # or `with`
            answer = await ask(...)
            permit.answered(answer.headers)
            permit.used(tokens=answer.tokens, dollars=answer.dollars)

An error that leaves the block tells the breaker what it means (`outcome_of`). For tests and simulators
`Guards(MemoryBackend(clock))` does the same in one process, on any clock. A router reads many limits at once by
`guards.read(Query(...))`, and counts what it sent where by `guards.lease` and `guards.release`.
"""

from mosaic_routing.guards.backend import Backend
from mosaic_routing.guards.breakers import BreakerPolicy, outcome_of
from mosaic_routing.guards.buckets import BucketLimit
from mosaic_routing.guards.errors import BudgetSpent, Limited
from mosaic_routing.guards.guarding import Guards, Permit
from mosaic_routing.guards.limits import BreakerLimit, GuardedCall, Limit, Limits
from mosaic_routing.guards.memory import MemoryBackend
from mosaic_routing.guards.server import ServerBackend
from mosaic_routing.guards.values import (
    Answer,
    BreakerReading,
    Charge,
    Lease,
    Need,
    Query,
    Readings,
    Request,
    Settlement,
    Take,
    Telling,
    Told,
)

__all__ = [
    "Answer",
    "Backend",
    "BreakerLimit",
    "BreakerPolicy",
    "BreakerReading",
    "BucketLimit",
    "BudgetSpent",
    "Charge",
    "GuardedCall",
    "Guards",
    "Lease",
    "Limit",
    "Limited",
    "Limits",
    "MemoryBackend",
    "Need",
    "Permit",
    "Query",
    "Readings",
    "Request",
    "ServerBackend",
    "Settlement",
    "Take",
    "Telling",
    "Told",
    "outcome_of",
]
