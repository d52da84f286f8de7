"""What a mixture does next, whatever comes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mosaic_tasks.mixtures import selection
from mosaic_tasks.mixtures.deciding import Situation, Step, decide
from mosaic_tasks.mixtures.gates import need
from mosaic_tasks.mixtures.mixture import Choice, Expert, Limits, Memory, Mixture, Question
from mosaic_tasks.mixtures.recording import record_of
from mosaic_tasks.mixtures.selection import Left
from mosaic_tasks.mixtures.situation import spent
from mosaic_tasks.mixtures.values import AggregatorKind, Answer, AnswerForm, Gate, GateKind, Heard, Profile
from mosaic_tasks.mixtures.waves import view_now

NEVER = Gate("none", confidence=None)
VERIFIER, WRITER = 90, 91
MOST = 1000


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
        Gate("probability"),
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
    waves=st.lists(st.integers(1, 4), max_size=3).map(tuple),
    least=st.integers(1, 3),
    rounds=st.integers(1, 3),
    aggregator=st.sampled_from(["majority", "weighted", "verify", "rank", "synthesis", "build"]),
    judges=st.booleans(),
    says=st.lists(SAID, min_size=1, max_size=8),
    order=st.lists(st.integers(0, 9), max_size=5),
    tokens=st.one_of(st.none(), st.integers(0, 2000)),
    most=st.one_of(st.none(), st.integers(1, 4)),
    enough=st.floats(0, 1),
    explores=st.booleans(),
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
    most: int | None,
    enough: float,
    explores: bool,
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
        most=most,
        enough=enough,
        explores=explores,
    )
    played = Played(asks, says, order=order)
    step = played.run()
    experts_asked = [q for q in step.memory.asked if q.kind == "expert"]
    assert len(experts_asked) <= min(count * samples, most or MOST) * rounds
    if len(experts_asked) < len(step.memory.asked) and aggregator != "rank":
        before = Situation(asks, replace(step.memory, closing=False), played.heard, 0)
        leader = view_now(before).leader
        assert leader is not None
        assert leader.probability < enough
    if tokens is not None:
        assert 100 * len(experts_asked) <= max(tokens, 0)
    if step.failure:
        assert not any(one.answer for one in played.heard.values()) or not step.memory.asked


def test_it_asks_in_waves() -> None:
    played = Played(mixture(5, waves=(2, 1)), ["18", "5"])
    played.run()
    assert [len(step.ask) for step in played.steps if step.ask] == [2, 1, 1, 1]


def first_wave(asks: Mixture, **fields: Any) -> list[str]:
    return [question.expert for question in decide(Situation(asks, begun(asks, **fields), {}, 0)).ask]


def known(asks: Mixture, **profiles: Profile) -> Situation:
    """The mixture as it begins, with what is known of these experts."""
    memory = begun(asks)
    return Situation(asks, replace(memory, profiles={**memory.profiles, **profiles}), {}, 0)


def test_without_waves_it_asks_as_many_as_the_gate_needs_at_least() -> None:
    asks = mixture(5, gate=Gate())
    first = decide(Situation(asks, begun(asks), {}, 0))
    assert len(first.ask) == first.need == need(Gate(), view_now(Situation(asks, begun(asks), {}, 0))) == 3
    played = Played(asks, ["18", "18", "5", "18", "18"])
    played.run()
    assert [len(each.ask) for each in played.steps if each.ask] == [3, 2]


def test_without_waves_a_gate_that_never_passes_asks_all_at_once() -> None:
    assert len(first_wave(mixture(5))) == 5


def test_the_least_are_asked_at_once_where_the_gate_needs_fewer() -> None:
    assert len(first_wave(mixture(5, gate=Gate("quorum", quorum=1), min_experts=2))) == 2


def test_the_most_valuable_are_asked_first_and_those_unknown_as_the_file_says() -> None:
    asks = Mixture(tuple(Expert(f"e{n}", n + 1, Profile(f"e{n}")) for n in range(4)), gate=NEVER, waves=(2,))
    assert first_wave(asks) == ["e0", "e1"]
    at = known(asks, e2=Profile("e2", right=90, wrong=10), e3=Profile("e3", right=10, wrong=90))
    assert [question.expert for question in decide(at).ask] == ["e2", "e0"]


def test_everybody_is_asked_once_before_anybody_twice() -> None:
    asks = Mixture(experts(2, samples=2), gate=NEVER, waves=(4,))
    at = known(asks, e1=Profile("e1", right=990, wrong=10))
    assert [question.expert for question in decide(at).ask] == ["e1", "e0", "e1", "e0"]
    one_by_one = Situation(replace(asks, waves=(1,)), at.memory, {}, 0)
    first = decide(one_by_one)
    heard = {0: answered(first.ask[0], "18")}
    second = decide(one_by_one._replace(memory=replace(first.memory, heard=(0,)), heard=heard))
    assert [question.expert for question in (*first.ask, *second.ask)] == ["e1", "e0"]


def test_only_a_selection_draws_whom_it_asks() -> None:
    """Of two that are known a little, the worse one is tried now and then."""

    def asked(*, explores: bool) -> set[str]:
        asks = mixture(2, explores=explores, waves=(1,))
        worse = known(asks, e0=Profile("e0", quality=0.7), e1=Profile("e1", quality=0.8))
        seeded = (worse._replace(memory=replace(worse.memory, seed=seed)) for seed in range(30))
        return {question.expert for at in seeded for question in decide(at).ask}

    assert asked(explores=True) == {"e0", "e1"}
    assert asked(explores=False) == {"e1"}


@pytest.mark.parametrize("explores", [True, False])
def test_so_many_are_asked_in_a_round_at_most(explores: bool) -> None:
    asks = mixture(5, most=2, explores=explores, rounds=2)
    step = Played(asks, ["18", "5"]).run()
    assert [question.round for question in step.memory.asked] == [1, 1, 2, 2]


def test_fewer_are_asked_where_it_began_under_load() -> None:
    assert len(first_wave(mixture(5), most=2)) == 2
    at = Situation(mixture(5), begun(mixture(5), most=2), {}, 0)
    assert view_now(at).planned == 2


def test_what_was_given_up_under_load_is_recorded() -> None:
    asks = mixture(5)
    memory = begun(asks, most=2, relief="asked 2 instead of 5 experts")
    record = record_of(asks, decide(Situation(asks, memory, {}, 0)).memory, {}, now_ms=0)
    assert (record.asked, record.unasked, record.relief) == (2, 3, "asked 2 instead of 5 experts")


def test_what_is_awaited_goes_by_those_who_work_not_by_who_would_be_asked_next() -> None:
    good = {f"e{n}": Profile(f"e{n}", quality=0.9) for n in range(3)}
    asks = mixture(3, gate=Gate(), waves=(3,))
    assert decide(known(asks, **good)).need == 2
    asks = mixture(5, gate=Gate(), waves=(3,))
    weak = {f"e{n}": Profile(f"e{n}", quality=0.3) for n in (3, 4)}
    assert decide(known(asks, **good, **weak)).need == 2


def test_one_that_counts_already_is_not_awaited_again() -> None:
    """One of the least two has answered, the other answer did not count."""
    asks = mixture(5, gate=Gate("quorum", quorum=1, confidence=None), min_experts=2, waves=(2,))
    first = decide(Situation(asks, begun(asks), {}, 0))
    heard = {0: answered(first.ask[0], "18"), 1: answered(first.ask[1], None)}
    second = decide(Situation(asks, replace(first.memory, heard=(0, 1)), heard, 0))
    assert (len(second.ask), second.need) == (2, 1)


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
    step = Played(asks, ["18", "7", "5", None]).run()
    assert (choice(step).value, choice(step).by) == ("18", "weighted")
    assert "the aggregator gave nothing: its answer is unreadable" in choice(step).why


AGGREGATES: dict[str, Any] = {"waves": (3,), "aggregator": "synthesis", "synthesizer": WRITER}


@pytest.mark.parametrize(
    ("aggregator", "enough", "asks_it"),
    [
        ("synthesis", 0.65, False),
        ("build", 0.65, False),
        ("verify", 0.65, False),
        ("rank", 0.65, True),
        ("synthesis", 0.8, True),
        ("verify", 0.8, True),
    ],
)
def test_a_model_is_asked_where_the_leader_is_less_probable_than_enough(
    aggregator: AggregatorKind, enough: float, asks_it: bool
) -> None:
    judges = {"verifier": VERIFIER, "synthesizer": WRITER}
    asks = mixture(3, waves=(3,), aggregator=aggregator, enough=enough, **judges)
    step = Played(asks, ["18", "18", "5"]).run()
    assert any(question.kind != "expert" for question in step.memory.asked) == asks_it
    if not asks_it:
        sure = "it is right with probability 0.76, so that no model is asked about it"
        assert choice(step).why == f"2 of 3 said '18', and no gate passed; {sure}"


def test_what_the_aggregator_says_is_one_more_vote() -> None:
    step = Played(mixture(3, **AGGREGATES), ["18", "7", "5", "7"]).run()
    assert (choice(step).value, choice(step).by, choice(step).supporters) == ("7", "synthesis", (1,))
    assert 0.65 < choice(step).probability < 1.0


def test_what_the_aggregator_says_may_be_outvoted() -> None:
    asks = mixture(4, **AGGREGATES, enough=0.99)
    step = Played(asks, ["18", "18", "18", "5", "7"]).run()
    assert (choice(step).value, choice(step).by, choice(step).supporters) == ("18", "weighted", (0, 1, 2))
    assert choice(step).why == "the aggregator said '7', and '18' weighs more all the same"


def test_an_aggregator_of_which_little_is_believed_weighs_little() -> None:
    asks = mixture(2, **AGGREGATES, aggregating=Profile("aggregator", quality=0.1))
    step = Played(asks, ["18", "5", "7"]).run()
    assert choice(step).value == "18"


def test_where_all_of_an_answer_is_wanted_the_aggregator_has_the_last_word() -> None:
    """It is believed as far as its own answer is, not as the leading one is."""
    asks = mixture(4, **AGGREGATES, enough=0.99, whole=True)
    step = Played(asks, ["18", "18", "18", "5", "7"]).run()
    assert (choice(step).value, choice(step).by) == ("7", "synthesis")
    assert choice(step).probability < 0.5


def test_an_aggregator_that_says_the_same_in_other_words_decides() -> None:
    said, written = "The ducks lay eighteen eggs.", "The ducks lay eighteen eggs"
    asks = mixture(3, **AGGREGATES, form=AnswerForm("text"), enough=1.0)
    step = Played(asks, [said, said, "No idea at all.", written]).run()
    assert (choice(step).value, choice(step).by, choice(step).supporters) == (written, "synthesis", (0, 1))


def test_a_reason_that_samples_share_is_told_once() -> None:
    step = Played(Mixture(experts(1, samples=3), gate=NEVER), [None]).run()
    assert step.failure == "no answer of its experts counts: e0: no answer could be read"


def test_a_last_round_without_an_answer_leaves_it_to_the_one_before() -> None:
    step = Played(mixture(1, rounds=3), ["18", "7", None]).run()
    assert (choice(step).value, choice(step).by) == ("7", "weighted")
    assert choice(step).why == "1 of 1 said '7', and no gate passed; no answer of round 3 counts"


def test_a_deadline_in_a_later_round_leaves_the_answers_of_the_one_before() -> None:
    asks = mixture(1, rounds=2, limits=Limits(seconds=1.0))
    first = decide(Situation(asks, begun(asks), {}, 0))
    heard = {0: answered(first.ask[0], "18")}
    second = decide(Situation(asks, replace(first.memory, heard=(0,)), heard, 0))
    step = decide(Situation(asks, second.memory, heard, 1000))
    assert (choice(step).value, choice(step).by, len(step.cut)) == ("18", "deadline", 1)


@pytest.mark.parametrize(("tokens", "by"), [(100, "budget"), (200, "budget"), (1000, "weighted")])
def test_a_budget_that_stops_asking_is_told(tokens: int, by: str) -> None:
    step = Played(mixture(5, waves=(1,), limits=Limits(tokens=tokens)), ["18", "5"]).run()
    assert (choice(step).by, choice(step).is_early) == (by, by == "budget")


def test_a_budget_that_is_spent_asks_no_aggregator() -> None:
    step = Played(mixture(3, **AGGREGATES, limits=Limits(tokens=300)), ["18", "7", "5"]).run()
    assert (choice(step).by, len(step.memory.asked)) == ("budget", 3)


@pytest.mark.parametrize(("aggregator", "best"), [("verify", "18"), ("rank", "5")])
def test_a_verifier_decides(aggregator: AggregatorKind, best: str) -> None:
    asks = mixture(3, waves=(3,), aggregator=aggregator, verifier=VERIFIER, enough=0.9)
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


@pytest.mark.parametrize("layers", [(1, 1, 3, 3), (5, 5), (2, 2, 4, 4), (1, 1)])
def test_a_round_of_nobody_is_passed_over(layers: tuple[int, ...]) -> None:
    """A file may say layers 1 and 3, or more rounds than layers."""
    each = tuple(replace(one, layer=layer) for one, layer in zip(experts(len(layers)), layers, strict=True))
    step = Played(Mixture(each, rounds=5, gate=NEVER), ["18", "5", "7", "8"]).run()
    assert [question.round for question in step.memory.asked] == list(layers)
    assert step.memory.choice is not None
    assert step.memory.choice.by == "weighted"


@pytest.mark.parametrize(("count", "samples"), [(64, 64), (1000, 1)])
def test_as_many_are_asked_at_once_as_a_mixture_may_have(
    count: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each expert is looked at a few times for each call that it gets, and without diversity compared with nobody."""
    looked, holds = list[str](), Left.holds
    monkeypatch.setattr(Left, "holds", lambda left, one: looked.append(one.name) or holds(left, one))
    monkeypatch.setattr(selection, "together", lambda *_: pytest.fail("compared"))
    asks = Mixture(experts(count, samples=samples), gate=NEVER, waves=(10_000,))
    step = decide(Situation(asks, begun(asks), {}, 0))
    assert len({question.call for question in step.ask}) == count * samples
    assert len(looked) <= 4 * count * samples


def test_a_record_stays_small_whatever_the_answers_are() -> None:
    texts = [f"{n} begins{' and goes on' * 10_000}, {n} ends" for n in range(6)]
    played = Played(mixture(6), texts)
    memory = played.run().memory
    record = record_of(played.asks, memory, played.heard, now_ms=0)
    assert len(msgspec.json.encode(record)) < 6000
    assert record.shown.startswith("0 begins and goes on")
    assert record.shown.endswith(", 0 ends")
    assert record.why.endswith("and no gate passed")
    assert memory.choice is not None
    assert memory.choice.value == texts[0]
