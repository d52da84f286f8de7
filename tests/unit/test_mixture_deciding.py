"""What a mixture does next, whatever comes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mosaic_tasks.mixtures.deciding import Situation, Step, decide, spent
from mosaic_tasks.mixtures.mixture import Choice, Expert, Limits, Memory, Mixture, Question
from mosaic_tasks.mixtures.values import AggregatorKind, Answer, Gate, GateKind, Heard, Profile

NEVER = Gate("none", confidence=None)
VERIFIER, WRITER = 90, 91


def experts(count: int, **fields: Any) -> tuple[Expert, ...]:
    profile = {"quality": 0.8, "usd": 0.001, "tokens": 100.0}
    return tuple(
        Expert(f"e{place}", place + 1, Profile(f"e{place}", **profile), **fields) for place in range(count)
    )


def mixture(count: int = 3, **fields: Any) -> Mixture:
    return Mixture(experts(count), **{"gate": NEVER, **fields})


def begun(asks: Mixture, **fields: Any) -> Memory:
    return Memory(0, profiles={expert.name: expert.profile for expert in asks.experts}, **fields)


def answered(question: Question, said: str | None, **fields: Any) -> Heard:
    answer = None if said is None else Answer(said, said, said)
    used = {"input_tokens": 50, "output_tokens": 50, "cost_usd": 0.001}
    return Heard(question.index, question.expert, text=said or "", answer=answer, **{**used, **fields})


class Played:
    """A mixture played to its end: answers come in the order of `order`, and say what `says` tells of them."""

    def __init__(self, asks: Mixture, says: list[str | None], *, order: list[int] | None = None) -> None:
        self.asks, self.heard, self.now_ms = asks, dict[int, Heard](), 0
        self._says, self._order = says, order or []
        self.steps: list[Step] = []

    def run(self) -> Step:
        step = decide(Situation(self.asks, begun(self.asks), self.heard, self.now_ms))
        for turn in range(1000):
            self.steps.append(step)
            self.check(step)
            if step.memory.choice is not None or step.failure:
                return step
            step = self._next(step, turn)
        raise AssertionError("it goes on and on")

    def _next(self, step: Step, turn: int) -> Step:
        """So many answers come as the step needs."""
        memory = step.memory
        for _ in range(step.need):
            waiting = memory.waiting()
            pick = self._order[turn % len(self._order)] if self._order else 0
            question = waiting[pick % len(waiting)]
            said = self._says[question.index % len(self._says)]
            support = 0.5 if question.kind == "verifier" else None
            self.heard[question.index] = answered(question, said, support=support)
            memory = replace(memory, heard=(*memory.heard, question.index))
        return decide(Situation(self.asks, memory, self.heard, self.now_ms))

    def check(self, step: Step) -> None:
        """What holds after each step."""
        memory, calls = step.memory, [question.call for question in step.memory.asked]
        assert len(set(calls)) == len(calls)
        assert [question.index for question in memory.asked] == list(range(len(calls)))
        assert not {*memory.heard} & {*memory.cut}
        if memory.choice is not None or step.failure:
            assert not memory.waiting()
        else:
            assert 1 <= step.need <= len(memory.waiting())
        if memory.choice is not None and memory.choice.by not in ("synthesis", "build"):
            supporters = [self.heard[index].answer for index in memory.choice.supporters]
            assert supporters
            assert all(answer is not None for answer in supporters)


def choice(step: Step) -> Choice:
    assert step.memory.choice is not None
    return step.memory.choice


GATES = st.sampled_from(
    [
        NEVER,
        Gate("margin", margin=2, confidence=None),
        Gate("posterior"),
        Gate("dirichlet"),
        Gate("unanimous"),
        Gate("quorum"),
        Gate("cost", worth_usd=0.01),
    ]
)
SAID = st.sampled_from(["18", "5", "7", None])


@given(
    count=st.integers(1, 5),
    samples=st.integers(1, 3),
    gate=GATES,
    waves=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    least=st.integers(1, 3),
    rounds=st.integers(1, 3),
    aggregator=st.sampled_from(["majority", "weighted", "verify", "rank", "synthesis", "build"]),
    judges=st.booleans(),
    says=st.lists(SAID, min_size=1, max_size=8),
    order=st.lists(st.integers(0, 9), max_size=5),
    tokens=st.one_of(st.none(), st.integers(0, 2000)),
)
def test_it_comes_to_an_end_whatever_its_experts_say(
    count: int,
    samples: int,
    gate: Gate,
    waves: tuple[int, ...],
    least: int,
    rounds: int,
    aggregator: AggregatorKind,
    judges: bool,
    says: list[str | None],
    order: list[int],
    tokens: int | None,
) -> None:
    asks = Mixture(
        experts(count, samples=samples),
        gate=gate,
        waves=waves,
        min_experts=least,
        rounds=rounds,
        aggregator=aggregator,
        verifier=VERIFIER if judges else None,
        synthesizer=WRITER if judges else None,
        limits=Limits(tokens=tokens),
    )
    played = Played(asks, says, order=order)
    step = played.run()
    experts_asked = [q for q in step.memory.asked if q.kind == "expert"]
    assert len(experts_asked) <= count * samples * rounds
    if tokens is not None:
        assert 100 * len(experts_asked) <= max(tokens, 0)
    if step.failure:
        assert not any(one.answer for one in played.heard.values()) or not step.memory.asked


def test_it_asks_in_waves() -> None:
    played = Played(mixture(5, waves=(2, 1)), ["18", "5"])
    played.run()
    assert [len(step.ask) for step in played.steps if step.ask] == [2, 1, 1, 1]


def test_a_wave_is_joined_as_soon_as_the_gate_can_pass() -> None:
    asks = mixture(5, gate=Gate("margin", margin=2, confidence=None), waves=(5,))
    first = decide(Situation(asks, begun(asks), {}, 0))
    assert (len(first.ask), first.need) == (5, 2)


def test_whoever_still_works_is_cut_off() -> None:
    asks = mixture(5, gate=Gate("margin", margin=2, confidence=None), waves=(5,))
    played = Played(asks, ["18"], order=[3])
    step = played.run()
    assert (choice(step).by, len(step.cut), len(step.memory.cut)) == ("gate", 3, 3)


def test_no_gate_passes_before_the_least_have_answered() -> None:
    asks = mixture(5, gate=Gate("quorum", quorum=1), min_experts=3, waves=(5,))
    first = decide(Situation(asks, begun(asks), {}, 0))
    assert first.need == 3


def test_a_second_round_is_asked_where_the_first_did_not_agree() -> None:
    asks = mixture(2, gate=Gate("unanimous", window=2, confidence=None), waves=(2,), rounds=2, min_experts=2)
    played = Played(asks, ["18", "5", "7", "7"])
    step = played.run()
    assert [question.round for question in step.memory.asked] == [1, 1, 2, 2]
    assert (choice(step).value, choice(step).by) == ("7", "gate")


def test_each_layer_is_asked_in_its_round() -> None:
    layered = (*experts(2, layer=1), Expert("refiner", 9, Profile("refiner"), layer=2))
    asks = Mixture(layered, gate=NEVER, waves=(9,), rounds=2, aggregator="majority")
    step = Played(asks, ["18", "5", "7"]).run()
    assert [question.expert for question in step.memory.asked] == ["e0", "e1", "refiner"]


def test_a_tie_goes_to_the_weight_and_is_told() -> None:
    asks = mixture(2, waves=(2,))
    step = Played(asks, ["18", "5"]).run()
    assert choice(step).why == "1 of 2 said '18', and no gate passed"


def test_an_aggregator_that_fails_leaves_it_to_the_votes() -> None:
    asks = mixture(3, waves=(3,), aggregator="synthesis", synthesizer=WRITER)
    step = Played(asks, ["18", "18", "5", None]).run()
    assert (choice(step).value, choice(step).by) == ("18", "weighted")
    assert "the aggregator gave nothing: its answer is unreadable" in choice(step).why


@pytest.mark.parametrize(("aggregator", "best"), [("verify", "18"), ("rank", "5")])
def test_a_verifier_decides(aggregator: AggregatorKind, best: str) -> None:
    asks = mixture(3, waves=(3,), aggregator=aggregator, verifier=VERIFIER)
    first = Played(asks, ["18", "18", "5"])
    memory = decide(Situation(asks, begun(asks), {}, 0)).memory
    for question in memory.asked:
        first.heard[question.index] = answered(question, ["18", "18", "5"][question.index])
    step = decide(Situation(asks, replace(memory, heard=(0, 1, 2)), first.heard, 0))
    assert {question.kind for question in step.ask} == {"verifier"}
    scores = {"18": 0.6, "5": 0.9}
    for question in step.ask:
        judged = first.heard[question.about[0]].answer
        assert judged is not None
        first.heard[question.index] = answered(question, None, support=scores[judged.key])
    done = replace(step.memory, heard=(0, 1, 2, *(question.index for question in step.ask)))
    assert choice(decide(Situation(asks, done, first.heard, 0))).value == best


def test_at_its_deadline_it_answers_with_the_best_it_has() -> None:
    asks = mixture(3, waves=(3,), limits=Limits(seconds=1.0))
    first = decide(Situation(asks, begun(asks), {}, 0))
    heard = {0: answered(first.ask[0], "18")}
    step = decide(Situation(asks, replace(first.memory, heard=(0,)), heard, 1000))
    assert (choice(step).by, choice(step).is_early, len(step.cut)) == ("deadline", True, 2)


def test_what_is_asked_and_not_heard_counts_as_spent() -> None:
    asks = mixture(3, waves=(3,))
    first = decide(Situation(asks, begun(asks), {}, 0))
    assert spent(first.memory, {}) == (pytest.approx(0.003), 300)
    assert spent(first.memory, {0: answered(first.ask[0], "18", output_tokens=200)}) == (
        pytest.approx(0.003),
        450,
    )


@pytest.mark.parametrize("kind", ["margin", "quorum", "unanimous", "posterior"])
def test_a_mixture_that_is_wrong_together_is_wrong(kind: GateKind) -> None:
    """Nothing tells from inside that all err; the probability says what is believed, not what is true."""
    asks = mixture(5, gate=Gate(kind, confidence=0.9), waves=(5,))
    step = Played(asks, ["wrong"]).run()
    assert choice(step).value == "wrong"
    assert choice(step).probability < 1.0
