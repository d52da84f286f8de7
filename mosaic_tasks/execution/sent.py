"""Where the router sent a call: the value that travels from whoever publishes it to whoever claims it."""

from __future__ import annotations

import msgspec

from mosaic_queues.transitions import route_of
from mosaic_routing.targets import Decision
from mosaic_tasks.execution.process import Process


class Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a call was sent.

    Attributes:
        decision: with its reasons.
        deployment: the model and where it runs.
        engine: how to ask it: `vllm:llama-3.1-8b`.
        input_tokens, output_tokens: predicted.
        input_price, output_price: US dollars for a million tokens.
        chars: of the prompt.
        max_tokens: of the answer, where it is cut shorter than its agent says.
    """

    decision: Decision
    deployment: str = ""
    engine: str = ""
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    input_price: float = 0.0
    output_price: float = 0.0
    chars: int = 0
    max_tokens: int | None = None

    @property
    def model(self) -> str:
        """Its name in the pool."""
        return self.deployment.partition("/")[2]

    def cost(self, input_tokens: float, output_tokens: float) -> float:
        """US dollars."""
        return (input_tokens * self.input_price + output_tokens * self.output_price) / 1e6

    def encode(self) -> bytes:
        """As msgpack."""
        return msgspec.msgpack.encode(self)


def sent_of(process: Process, run_id: str, epoch: int, call: str) -> Sent | None:
    """Where a call was sent that this process claimed; None: nowhere is recorded."""
    raw = process.value(run_id, epoch, route_of(call))
    if raw is None:
        (raw,) = process.ledger.outputs(run_id, [route_of(call)])
    return None if raw is None else msgspec.msgpack.decode(raw, type=Sent)


def permit_of(run_id: str, call: str) -> str:
    """The name of a call's permit."""
    return f"{run_id}/{call}"


__all__ = ["Sent", "permit_of", "sent_of"]
