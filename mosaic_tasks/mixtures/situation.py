"""A mixture at one moment: what it remembers, what it heard, and what it may still spend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from mosaic_tasks.mixtures.beliefs import Calibration
from mosaic_tasks.mixtures.mixture import Memory, Mixture, Question
from mosaic_tasks.mixtures.selection import Left
from mosaic_tasks.mixtures.values import Heard, Profile

Heards = Mapping[int, Heard]
"""What came of the questions, by their index."""
_UNKNOWN = Profile("")


class Situation(NamedTuple):
    """A mixture at one moment.

    Attributes:
        heard: what came of its questions.
        now_ms: by the clock of the server.
        calibration: of the leader's probability, where there is history.
        families: of the experts, where the caller keeps them; see `families_of`.
    """

    mixture: Mixture
    memory: Memory
    heard: Heards
    now_ms: int
    calibration: Calibration | None = None
    families: Mapping[str, str] | None = None

    @property
    def asked(self) -> list[Question]:
        """The questions to experts in this round."""
        return self.memory.of_round(self.memory.round)

    @property
    def planned(self) -> int:
        """How many answers a round has at most."""
        return self.mixture.planned if self.memory.most is None else self.memory.most

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        due = due_ms(self.mixture, self.memory)
        return due is not None and self.now_ms >= due

    @property
    def left(self) -> Left:
        """What its budget still holds."""
        usd, tokens = spent(self.memory, self.heard)
        limits, left = self.mixture.limits, Left()
        if limits.usd is not None:
            left = replace(left, usd=limits.usd - usd if limits.usd > usd else -1.0)
        if limits.tokens is not None:
            left = replace(left, tokens=limits.tokens - tokens if limits.tokens > tokens else -1.0)
        return left

    @property
    def is_spent(self) -> bool:
        """Whether the budget holds nothing more."""
        return self.left.usd < 0 or self.left.tokens < 0

    def profile(self, name: str) -> Profile:
        """What is known of an expert."""
        return self.memory.profiles.get(name, _UNKNOWN)


def due_ms(mixture: Mixture, memory: Memory) -> int | None:
    """When it must answer, by the clock of the server."""
    seconds = mixture.limits.seconds
    return None if seconds is None else memory.begun_ms + int(seconds * 1000)


def spent(memory: Memory, heard: Heards) -> tuple[float, int]:
    """US dollars and tokens that the questions took: what they used, or are expected to use."""
    usd, tokens = 0.0, 0
    for question in memory.asked:
        one = heard.get(question.index)
        if one is not None:
            usd += one.cost_usd or 0.0
            tokens += one.input_tokens + one.output_tokens
        elif question.index not in memory.cut:
            profile = memory.profiles.get(question.expert, _UNKNOWN)
            usd, tokens = usd + profile.usd, tokens + int(profile.tokens)
    return usd, tokens


__all__ = ["Heards", "Situation", "due_ms", "spent"]
