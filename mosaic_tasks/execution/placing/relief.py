"""What is given up under load, as the model pool declares it: for the calls that this process places, and for the
mixtures that begin here."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec

from mosaic_routing.degrading import Changed, Degrading, Step, advanced, degraded, fewer_experts
from mosaic_routing.pool import pool
from mosaic_routing.requirements import Requirement

_UNBOUNDED = 1 << 30
"""Stands for an answer of any length."""


class Relieved(NamedTuple):
    """What a call asks for now.

    Attributes:
        max_tokens: None: as its agent says.
        sentences: what was given up, and why.
    """

    requirement: Requirement
    max_tokens: int | None = None
    sentences: tuple[str, ...] = ()


class Relief:
    """How far this process goes."""

    def __init__(self) -> None:
        self._state = Degrading()

    def relieved(self, requirement: Requirement, max_tokens: int | None, load: float) -> Relieved:
        """What a call asks for under this load, of what it would ask for without."""
        steps = self._looked(load)
        if not steps:
            return Relieved(requirement)
        before = max_tokens or _UNBOUNDED
        changed = degraded(self._state, steps, model=requirement.model, output_tokens=before, load=load)
        if changed.model != requirement.model:
            requirement = msgspec.structs.replace(
                requirement, model=changed.model, capability="", min_quality=0.0
            )
        shorter = changed.output_tokens if max_tokens and changed.output_tokens < before else None
        return Relieved(requirement, shorter, changed.sentences)

    def fewer_experts(self, experts: int, least: int, load: float) -> Changed:
        """How many experts a mixture asks under this load, of so many without."""
        steps = self._looked(load)
        return fewer_experts(self._state, steps, experts=experts, least=least, load=load)

    def _looked(self, load: float) -> tuple[Step, ...]:
        """The steps of the pool, of which as many apply as the load calls for."""
        steps = pool().degrading
        if steps:
            self._state = advanced(self._state, load, steps=steps, now_s=time.monotonic())
        return steps


__all__ = ["Relief", "Relieved"]
