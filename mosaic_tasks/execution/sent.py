"""Where the router sent a call: the value that travels from whoever publishes it to whoever claims it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mosaic_queues.ledger import Ledger
from mosaic_queues.transitions import Claim, route_of
from mosaic_routing.pool import API, Price
from mosaic_routing.targets import Decision


class Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a call was sent.

    Attributes:
        decision: with its reasons.
        deployment: the model and where it runs.
        engine: how to ask it: `vllm:llama-3.1-8b`.
        machine: that it runs on; empty: others answer.
        input_tokens, output_tokens: predicted.
        input_price, output_price: US dollars for a million tokens.
        chars: of the prompt.
        max_tokens: of the answer, where it is cut shorter than its agent says.
        straggles_after_s: 19 of 20 like it have ended by then.
        level: the priority of its message, and of its request in the engine.
        is_bound: other classes host its model, and may not answer it.
        waits_for: nowhere, and these targets could take it but for their limits of how many run at once.
        is_unserved: nowhere, and not for limits: no worker here could answer it.
        hedges: of a shadow, the target where the call itself takes long.
    """

    decision: Decision
    deployment: str = ""
    engine: str = ""
    machine: str = ""
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    input_price: float = 0.0
    output_price: float = 0.0
    chars: int = 0
    max_tokens: int | None = None
    straggles_after_s: float = math.inf
    level: int = 0
    is_bound: bool = False
    waits_for: tuple[str, ...] = ()
    is_unserved: bool = False
    hedges: str = ""

    @property
    def is_provider(self) -> bool:
        """Whether any worker of the provider's queue can ask it, and others like it."""
        return self.deployment.startswith(API)

    @property
    def model(self) -> str:
        """Its name in the pool."""
        return self.deployment.partition("/")[2]

    def taken_to(self, target: str, deployment: str, *, price: Price | None) -> Sent:
        """The same call at a target that took it from the one that it was sent to.

        Args:
            price: of the deployment; None: the pool does not say, and what was predicted stands.
        """
        price = price or Price(input=self.input_price, output=self.output_price)
        return msgspec.structs.replace(
            self,
            decision=msgspec.structs.replace(self.decision, target=target),
            deployment=deployment,
            machine=target.rpartition("@")[2],
            input_price=price.input,
            output_price=price.output,
        )

    def cost(self, input_tokens: float, output_tokens: float) -> float:
        """US dollars."""
        return (input_tokens * self.input_price + output_tokens * self.output_price) / 1e6

    def encode(self) -> bytes:
        """As msgpack."""
        return msgspec.msgpack.encode(self)


class Straggler(NamedTuple):
    """A call that takes long where it was sent; `tokens_s`: what it is known to write there in a second."""

    claim: Claim
    holder: str
    sent: Sent
    elapsed_s: float
    tokens_s: float


def sent_of(ledger: Ledger, run_id: str, calls: Sequence[str]) -> list[Sent | None]:
    """Where calls were sent, as it is recorded; None: of that nothing is."""
    found = ledger.outputs(run_id, [route_of(call) for call in calls])
    return [None if raw is None else msgspec.msgpack.decode(raw, type=Sent) for raw in found]


def permit_of(run_id: str, call: str) -> str:
    """What limits and the router know a call by."""
    return f"{run_id}/{call}"


def lease_of(run_id: str, call: str, fence: int) -> str:
    """Under which name a call is a load of its target: that of one claim, so that nobody who lost the call takes the
    load of who has it now away."""
    return f"{permit_of(run_id, call)}#{fence}"


__all__ = ["Sent", "Straggler", "lease_of", "permit_of", "sent_of"]
