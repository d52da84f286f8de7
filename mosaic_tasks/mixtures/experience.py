"""What runs taught about experts, and the profiles that follow from it.

Two things are learned apart, since one is seen of every call and the other is told of few. *Faults*: the share of its
answers that do not count (they refuse, are truncated, do not fit). *Right and wrong*: of those that count and were
judged. An expert is expected to be right as often as both together say, `(1 - faults) * right / (right + wrong)`; were
each fault an outcome of its own, many runs that nobody scores would hold nothing but wrong answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import msgspec

from mosaic_tasks.mixtures.beliefs import PRIOR_STRENGTH, accuracy
from mosaic_tasks.mixtures.values import Profile

Amount = Annotated[float, msgspec.Meta(ge=0)]
Pair = tuple[Amount, Amount]
"""Of two experts: how often both were wrong, of how often both were judged."""
SURE = 1.645
"""Standard deviations to each side that hold 90 % of a normal distribution."""


class Experience(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of an expert in one scope.

    Attributes:
        right, wrong: outcomes that were scored, which may be fractions.
        weak_right, weak_wrong: the same by models that judge: verifiers and aggregators.
        together: by other expert, how often both were wrong.
        calls: that it answered.
        faults: share of its answers that do not count; this and the next ones are means in which older calls fade.
        usd: of a call; None: no price is known.
        seconds: of a call.
        tokens: of a call, read and written.
        quality: what its last mixture took it for before outcomes.
        at_ms: when something was noted last.
    """

    right: Amount = 0.0
    wrong: Amount = 0.0
    weak_right: Amount = 0.0
    weak_wrong: Amount = 0.0
    together: dict[str, Pair] = {}
    calls: Amount = 0
    faults: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    usd: Amount | None = None
    seconds: Amount = 0.0
    tokens: Amount = 0.0
    quality: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.7
    at_ms: int = 0


def identity(profile: Profile) -> str:
    """Under this name an expert is remembered: its own, with its model where that is another. With another model it is
    somebody of whom nothing is known."""
    if profile.model in ("", profile.name):
        return profile.name
    return f"{profile.name}@{profile.model}"


def profiled(profile: Profile, known: Experience | None, names: Mapping[str, str]) -> Profile:
    """A profile with what is known.

    Args:
        known: None: nothing, so the profile stays as it is.
        names: of the experts of a mixture, by their identity.
    """
    if known is None:
        return profile
    counts, right = 1.0 - known.faults, known.right + known.weak_right
    measured = msgspec.structs.replace(
        profile,
        quality=profile.quality * counts,
        right=right * counts,
        wrong=known.wrong + known.weak_wrong + right * known.faults,
        agrees={names[key]: pair for key, pair in known.together.items() if key in names},
    )
    if not known.calls:
        return measured
    usd = profile.usd if known.usd is None else known.usd
    return msgspec.structs.replace(measured, usd=usd, latency_s=known.seconds, tokens=known.tokens)


def all_profiled(profiles: Mapping[str, Profile], known: Mapping[str, Experience]) -> dict[str, Profile]:
    """Profiles by name, with what is known by identity."""
    names = {identity(profile): name for name, profile in profiles.items()}
    return {
        name: profiled(profile, known.get(identity(profile)), names) for name, profile in profiles.items()
    }


def expected(known: Experience) -> tuple[float, float, float]:
    """The share of right answers that is expected of an expert, and about between which values 90 % of the belief lie.

    The interval is that of a normal distribution with the mean and spread of the Beta that `beliefs.accuracy` goes by,
    of at least `PRIOR_STRENGTH` outcomes.
    """
    profile = profiled(Profile("", quality=known.quality), known, {})
    mean = accuracy(profile)
    outcomes = PRIOR_STRENGTH + profile.right + profile.wrong
    off = SURE * math.sqrt(mean * (1.0 - mean) / (outcomes + 1.0))
    return mean, max(mean - off, 0.0), min(mean + off, 1.0)


__all__ = ["Experience", "Pair", "all_profiled", "expected", "identity", "profiled"]
