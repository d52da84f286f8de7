"""What a mixture tells whom it asks: as much as who reads it can read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mosaic_tasks.engines.protocol import approx_tokens
from mosaic_tasks.mixtures import briefing
from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.briefing import Briefing
from mosaic_tasks.mixtures.mixture import QUOTING_NAMES, Expert, Memory, Mixture, Question
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
    return str(Briefing(asks, memory, heard).item(question, ["ask"])["ask"])


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


def second_round(count: int, *, first: int = 1, second: int = 2) -> tuple[Mixture, Memory, dict[int, Heard]]:
    """As many experts have answered, and are asked again."""
    asks = Mixture(tuple(Expert(f"e{n}", n + 1, Profile(f"e{n}")) for n in range(count)), rounds=second)
    before = [Question(n, f"{n + 1}.0", f"e{n}", round=first) for n in range(count)]
    now = [Question(count + n, f"{n + 1}.1", f"e{n}", round=second) for n in range(count)]
    heard = {
        n: Heard(n, f"e{n}", text=f"It is {n}.", answer=normalise(f"It is {n}.", asks.form))
        for n in range(count)
    }
    return asks, Memory(0, asked=(*before, *now), heard=tuple(heard), round=second), heard


def test_what_a_round_is_told_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, build = [], briefing.build
    monkeypatch.setattr(briefing, "build", lambda *args: made.append(args) or build(*args))
    asks, memory, heard = second_round(8)
    told = Briefing(asks, memory, heard)
    items = [told.item(question, QUOTING_NAMES) for question in memory.of_round(2)]
    assert len(made) == 1
    assert [item["expert"] for item in items] == [f"e{n}" for n in range(8)]
    assert all(item["ask"] is items[0]["ask"] and "It is 7." in item["ask"] for item in items)


@pytest.mark.parametrize("names", [(), ("ask",), ("answers", "open_points", "inputs")])
def test_a_call_is_told_no_answers_that_its_prompt_does_not_read(names: tuple[str, ...]) -> None:
    asks, memory, heard = second_round(2)
    item = Briefing(asks, memory, heard).item(memory.asked[2], names)
    assert set(item) == {"kind", "index", "expert", "role", "round", *names} - {"inputs"}


def test_a_round_of_nobody_is_not_the_one_before() -> None:
    asks, memory, heard = second_round(2, second=4)
    item = Briefing(asks, memory, heard).item(memory.asked[2], QUOTING_NAMES)
    assert [one["text"] for one in item["answers"]] == ["It is 0.", "It is 1."]
