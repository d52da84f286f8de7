"""What becomes of the answers once asking has stopped, without asking a model to write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mosaic_tasks.mixtures.values import Candidate, Heard, View

LEAST_SUPPORT = 0.5  # an answer that a verifier holds for less likely is left aside


def majority(view: View) -> Candidate | None:
    """The answer with the most votes; of several the one that weighs most, which is the first."""
    return max(view.candidates, key=lambda one: one.votes, default=None)


def supported(view: View, supports: Mapping[int, float]) -> Candidate | None:
    """Verify and filter: of the answers that the verifier does not object to, the likeliest; where it objects to each,
    the one that it objects to least. None: it judged nothing.

    Args:
        supports: by call, what the verifier said of its answer, 0 to 1.
    """
    judged = [(one, _support(one, supports)) for one in view.candidates]
    known = [(one, support) for one, support in judged if support is not None]
    passed = [one for one, support in known if support >= LEAST_SUPPORT]
    return passed[0] if passed else max(known, key=lambda pair: pair[1], default=(None, 0.0))[0]


def best_of(heard: Sequence[Heard], scores: Mapping[int, float]) -> Heard | None:
    """Best of n: the call with the highest score among those that count; of several the first. None: none has one."""
    counted = [one for one in heard if one.answer is not None and not one.problems and one.index in scores]
    return max(counted, key=lambda one: (scores[one.index], -one.index), default=None)


def _support(candidate: Candidate, supports: Mapping[int, float]) -> float | None:
    """Of all that was said of the calls which gave this answer, the most."""
    return max((supports[index] for index in candidate.indices if index in supports), default=None)


__all__ = ["LEAST_SUPPORT", "best_of", "majority", "supported"]
