"""What a mixture tells whom it asks: as much as who reads it can read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mosaic_tasks.engines.protocol import approx_tokens
from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.briefing import brief
from mosaic_tasks.mixtures.mixture import Expert, Memory, Mixture, Question
from mosaic_tasks.mixtures.values import AggregatorKind, AnswerForm, Heard, Profile

WRITER = Profile("aggregator", context_tokens=2000)
FRAME_TOKENS = 200
"""Of what stands around quotations: what is to be done with them."""
LONG = " ".join(f"Step {n} leads nowhere{' at all, and on it goes' * 10}." for n in range(100))


def mixture(**fields: Any) -> Mixture:
    experts = tuple(Expert(name, place, Profile(name)) for place, name in enumerate("ab", 1))
    return Mixture(experts, **fields)


def asked(asks: Mixture, question: Question, *, readers: int = 0, text: str = LONG) -> str:
    """What a call is asked once both experts have answered at length; `readers` is what experts can read."""
    heard = {
        n: Heard(n, name, text=f"{text} It is {n}.", answer=normalise(text, asks.form))
        for n, name in enumerate("ab")
    }
    memory = Memory(
        0,
        asked=(Question(0, "1.0", "a"), Question(1, "2.0", "b"), question),
        profiles={name: Profile(name, context_tokens=readers) for name in "ab"},
    )
    return str(brief(asks, memory, heard, question)["ask"])


AGGREGATOR = Question(2, "3.0", "aggregator", "aggregator")
VERIFIER = Question(2, "3.0", "verifier", "verifier", about=(0,))
SECOND = Question(2, "1.1", "a", round=2)


@pytest.mark.parametrize(
    ("question", "aggregator"),
    [(AGGREGATOR, "synthesis"), (VERIFIER, "verify"), (SECOND, "weighted"), (SECOND, "build")],
)
def test_no_more_is_quoted_than_the_mixture_says(question: Question, aggregator: AggregatorKind) -> None:
    ask = asked(mixture(aggregator=aggregator, quoted_tokens=1000), question)
    assert 500 < approx_tokens(ask) <= 1000 + FRAME_TOKENS
    assert "[...]" in ask


@pytest.mark.parametrize("aggregator", ["weighted", "build"])
def test_an_expert_is_told_what_fits_half_of_its_context(aggregator: AggregatorKind) -> None:
    asks = mixture(aggregator=aggregator)
    assert approx_tokens(asked(asks, SECOND, readers=1000)) <= 500 + FRAME_TOKENS
    assert approx_tokens(asked(asks, SECOND, readers=0)) > 2000
    assert asked(asks, SECOND, readers=1_000_000) == asked(asks, SECOND, readers=0)


def test_an_aggregator_is_told_what_fits_half_of_its_own_context() -> None:
    narrow = asked(mixture(aggregator="synthesis", aggregating=WRITER), AGGREGATOR, readers=100)
    assert 500 < approx_tokens(narrow) <= 1000 + FRAME_TOKENS
    wide = mixture(aggregator="synthesis", aggregating=replace(WRITER, context_tokens=0))
    assert approx_tokens(asked(wide, AGGREGATOR, readers=100)) > 2000


def test_what_is_short_is_quoted_as_it_is() -> None:
    for question in (AGGREGATOR, VERIFIER, SECOND):
        ask = asked(mixture(form=AnswerForm("number")), question, text="First 18.\nThen more, so it is 20!")
        assert "First 18.\nThen more, so it is 20! It is 0." in ask
        assert "[...]" not in ask
