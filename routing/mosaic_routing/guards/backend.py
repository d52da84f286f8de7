"""What keeps the limits: the server for all processes, or memory for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mosaic_routing.guards.values import Answer, Query, Readings, Request, Settlement, Telling


class Backend(Protocol):
    """The steps; each is atomic, and told twice it counts once.

    Attributes:
        blocks: a step waits for the network, so it must not run on an event loop.
    """

    blocks: bool

    def admit(self, request: Request) -> Answer:
        """Gives a permit, or says what blocks and for how long."""

    def settle(self, settlement: Settlement, expiry_ms: int) -> None:
        """Takes a permit back; what its call used counts instead of what was predicted."""

    def tell(self, telling: Telling, expiry_ms: int) -> None:
        """Lowers the buckets of a call that runs to what their provider said."""

    def renew(self, permits: Sequence[str], expiry_ms: int) -> tuple[str, ...]:
        """Prolongs permits, also lapsed ones; answers those that are unknown."""

    def read(self, query: Query, expiry_ms: int) -> Readings:
        """How limits stand."""

    def listen(self, on_ring: Callable[[str], None]) -> bool:
        """Has rings told from now on; whether it was not so before."""

    def close(self) -> None:
        """Ends what runs for it."""
