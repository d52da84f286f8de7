"""Whoever asks, and what that one may do."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from mosaic_queues.errors import Forbidden

Scope = Literal["submit", "read", "cancel", "score", "operate"]
"""`submit` starts runs; `read` sees those of the own tenant; `cancel` ends them and runs them again; `score` says how
right answers were; `operate` sees the runs of all tenants, the workers, and the metrics."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever asks.

    Attributes:
        subject: for people and the audit log: the name of a key, or the subject of a token.
        tenant: on whose account.
        scopes: what the principal may do.
        key: the id of the API key that was shown; empty: none was.
        until_ms: when what was shown ends, in Unix milliseconds; 0: it does not.
        address: from where it asks, for the audit log.
    """

    subject: str
    tenant: str = ""
    scopes: frozenset[Scope] = frozenset()
    key: str = ""
    until_ms: int = 0
    address: str = ""

    def require(self, scope: Scope) -> None:
        """Checks that the principal has a scope.

        Raises:
            Forbidden: it does not.
        """
        if scope not in self.scopes:
            raise Forbidden(f"{self.subject!r} lacks the scope {scope!r}; ask for a key that has it")

    def sees(self, tenant: str) -> bool:
        """Whether the runs of a tenant are any of its business."""
        return self.sees_alone in (None, tenant)

    @property
    def sees_alone(self) -> str | None:
        """The tenant whose runs it sees; None: those of all."""
        return None if "operate" in self.scopes else self.tenant


class Gate(Protocol):
    """Tells who asks, by what they show."""

    def admit(self, credential: str | None) -> Principal:
        """The principal that a credential stands for; None: none was shown.

        Raises:
            Unauthenticated: it stands for nobody, or not any more.
        """
