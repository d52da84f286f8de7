"""What outcomes say of experts, what profiles follow from them, and whom mixtures ask for what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from mosaic_queues.errors import DefinitionError
from mosaic_queues.values import encode
from mosaic_tasks.cli import application
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.definition.mixtures import MixtureSpec
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.engines.protocol import Usage
from mosaic_tasks.execution.agents import AgentAnswer
from mosaic_tasks.execution.mixtures.experts import failed, heard_of
from mosaic_tasks.mixtures.beliefs import accuracy, together
from mosaic_tasks.mixtures.calibration import Calibration, Outcome, learn
from mosaic_tasks.mixtures.deciding import Situation, decide
from mosaic_tasks.mixtures.experience import Experience, all_profiled, expected, identity, profiled
from mosaic_tasks.mixtures.judging import (
    SYNTHESISED,
    VERIFIED,
    Ended,
    Judged,
    by_models,
    by_score,
    labelled,
    observed,
    right_calls,
)
from mosaic_tasks.mixtures.mixture import Choice, ChoiceBy, Expert, Limits, Memory, Mixture, Question
from mosaic_tasks.mixtures.selection import chosen
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Gate, Heard, Profile

NUMBER = AnswerForm(form="number")
VALUES = st.floats(0.0, 1.0)


def said(answer: str | None) -> Answer | None:
    return None if answer is None else Answer(answer, answer, answer)


def ended(*answers: str | None, supporters: tuple[int, ...], by: ChoiceBy = "gate", names: str = "") -> Ended:
    """A mixture whose experts `a`, `b`, ... gave these answers, and that answered what the supporters said."""
    of = names or "abcdefgh"[: len(answers)]
    experts = tuple(Expert(name, 1 + n, Profile(name)) for n, name in enumerate(dict.fromkeys(of)))
    asked = tuple(Question(n, f"1.{n}", name) for n, name in enumerate(of))
    heard = {n: Heard(n, of[n], answer=said(each)) for n, each in enumerate(answers)}
    chosen_ = heard[supporters[0]].answer if supporters else said("none")
    assert chosen_ is not None
    choice = Choice(chosen_.value, chosen_.shown, 0.9, by, "", supporters)
    profiles = {expert.name: expert.profile for expert in experts}
    memory = Memory(5, asked=asked, heard=tuple(heard), choice=choice, profiles=profiles)
    return Ended(Mixture(experts, form=NUMBER), memory, heard)


def with_judge(over: Ended, heard: Heard, **question: Any) -> Ended:
    """The same with one more question to a model that judges."""
    index = len(over.memory.asked)
    asked = (*over.memory.asked, Question(index, "9.0", heard.expert, **question))
    memory = replace(over.memory, asked=asked, heard=(*over.memory.heard, index))
    return replace(over, memory=memory, heard={**over.heard, index: replace(heard, index=index)})


class TestScores:
    def test_right_supporters_were_right_and_the_others_wrong(self) -> None:
        judged = by_score(ended("18", "18", "5", supporters=(0, 1)), 1)

        assert {key: (one.right, one.wrong) for key, one in judged.items()} == {
            "a": (1, 0),
            "b": (1, 0),
            "c": (0, 1),
        }

    def test_wrong_supporters_were_wrong_and_of_the_others_nothing_is_known(self) -> None:
        judged = by_score(ended("18", "18", "5", supporters=(0, 1)), 0)

        assert {key: (one.right, one.wrong) for key, one in judged.items()} == {"a": (0, 1), "b": (0, 1)}
        assert judged["a"].together == {"b": (1, 1)}

    def test_in_between_it_is_both_in_part(self) -> None:
        judged = by_score(ended("18", "18", "5", supporters=(0, 1)), 0.7)

        assert (judged["a"].right, judged["a"].wrong) == pytest.approx((0.7, 0.3))
        assert (judged["c"].right, judged["c"].wrong) == pytest.approx((0.0, 0.7))
        assert judged["a"].together["b"] == pytest.approx((0.3, 1.0))
        assert judged["a"].together["c"] == pytest.approx((0.0, 0.7))

    def test_by_the_truth_each_is_judged_whatever_the_value(self) -> None:
        over = ended("18", "18", "5", "7", supporters=(0, 1))
        judged = by_score(over, 1, said("5"))

        assert [judged[key].right for key in "abcd"] == [0, 0, 1, 0]
        assert judged["a"].together == {"b": (1, 1), "c": (0, 1), "d": (1, 1)}
        assert judged == by_score(over, 0, said("5"))

    def test_an_answer_that_does_not_count_is_not_judged(self) -> None:
        assert by_score(ended("18", None, supporters=(0,)), 1).keys() == {"a"}

    def test_samples_of_one_expert_are_one_outcome(self) -> None:
        judged = by_score(ended("18", "18", "5", "18", supporters=(0, 1, 3), names="aaab"), 1)

        assert (judged["a"].right, judged["a"].wrong) == pytest.approx((2 / 3, 1 / 3))
        assert judged["a"].together == {"b": (0, 1)}

    def test_an_earlier_round_counts_where_it_said_the_same(self) -> None:
        over = ended("18", "18", supporters=(1,))

        assert right_calls(over, 1) == {0: 1, 1: 1}

    def test_what_an_aggregator_wrote_has_supporters_where_somebody_said_so(self) -> None:
        over = with_judge(
            ended("18", "5", supporters=(), by="synthesis"),
            Heard(0, "aggregator", answer=said("5")),
            kind="aggregator",
        )

        assert right_calls(over, 1) == {0: 0, 1: 1}
        assert right_calls(over, 0) == {1: 0}

    @given(st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=8), VALUES)
    def test_nobody_gains_more_than_one_outcome(self, answers: list[str | None], value: float) -> None:
        supporters = tuple(n for n, each in enumerate(answers) if each == "1")
        judged = by_score(ended(*answers, supporters=supporters), value) if supporters else {}

        for one in judged.values():
            assert -1e-9 <= one.right <= 1
            assert 0 <= one.right + one.wrong <= 1 + 1e-9
            assert all(-1e-9 <= both <= judged_ <= 1 + 1e-9 for both, judged_ in one.together.values())


class TestJudgesOfTheMixture:
    def test_a_verifier_counts_as_a_fraction_for_all_who_said_the_same(self) -> None:
        over = ended("18", "18", "5", supporters=(0, 1), by="verify")
        over = with_judge(over, Heard(0, "verifier", support=0.9), kind="verifier", about=(0,))
        over = with_judge(over, Heard(0, "verifier", support=0.2), kind="verifier", about=(2,))

        judged = by_models(over)

        assert judged["a"] == judged["b"]
        assert (judged["a"].weak_right, judged["a"].weak_wrong) == pytest.approx(
            (0.9 * VERIFIED, 0.1 * VERIFIED)
        )
        assert judged["c"].weak_right == pytest.approx(0.2 * VERIFIED)
        assert not judged["a"].together

    def test_an_aggregator_agrees_with_some_and_not_with_others(self) -> None:
        over = with_judge(
            ended("18", "5", supporters=(0,), by="synthesis"),
            Heard(0, "aggregator", answer=said("18")),
            kind="aggregator",
        )

        assert by_models(over) == {"a": Judged(weak_right=SYNTHESISED), "b": Judged(weak_wrong=SYNTHESISED)}

    def test_without_such_models_nothing_is_judged(self) -> None:
        assert by_models(ended("18", "18", supporters=(0, 1))) == {}

    def test_calls_are_observed_except_those_whose_engine_failed(self) -> None:
        over = ended("18", None, None, None, supporters=(0,))
        heard = {
            0: replace(over.heard[0], seconds=2.0, input_tokens=30, output_tokens=5, cost_usd=0.01),
            1: replace(over.heard[1], problems=("refused",), seconds=1.0),
            2: replace(over.heard[2], failed="it is down"),
            3: replace(over.heard[3], failed="it does not fit", problems=("schema",)),
        }

        told = {one.expert: one for one in observed(replace(over, heard=heard))}

        assert told.keys() == {"a", "b", "d"}
        assert (told["a"].is_faulty, told["a"].seconds, told["a"].tokens, told["a"].usd) == (
            False,
            2.0,
            35,
            0.01,
        )
        assert (told["b"].is_faulty, told["b"].seconds) == (True, 1.0)
        assert (told["d"].is_faulty, told["d"].seconds) == (True, None)


class TestHistory:
    def test_a_line_tells_what_was_known_of_the_leader_and_whether_it_was_right(self) -> None:
        line = labelled(ended("18", "18", "5", supporters=(0, 1)), 1)

        assert line is not None
        assert line.right == 1
        assert (line.features["votes"], line.features["answers"]) == (2, 2)
        assert 0.5 < line.features["probability"] < 1

    def test_where_another_answer_was_given_the_leader_is_judged_by_that(self) -> None:
        over = with_judge(
            ended("18", "18", "5", supporters=(2,), by="synthesis"),
            Heard(0, "aggregator", answer=said("5")),
            kind="aggregator",
        )

        right = labelled(over, 1)
        assert right is not None
        assert right.right == 0
        assert labelled(over, 0) is None
        judged = labelled(over, 0, said("18"))
        assert judged is not None
        assert judged.right == 1

    def test_one_line_that_differs_from_all_others_is_enough_to_learn_by(self) -> None:
        """Where it is left out, to see how well it is predicted, nothing is left that tells lines apart."""
        alike = [Outcome({"votes": 2.0}, n % 2) for n in range(20)]

        learnt = learn([*alike, Outcome({"votes": 1.0}, 1)], method="isotonic")

        assert learnt({"votes": 2.0}) == pytest.approx(11 / 21)

    def test_what_was_scored_again_counts_once_in_a_history(self, tmp_path: Path) -> None:
        path = tmp_path / "history.jsonl"
        lines = [Outcome({"votes": n % 5}, n % 2, f"run{n % 30}", "answer") for n in range(40)]
        path.write_bytes(b"\n".join(map(msgspec.json.encode, [*lines, Outcome({"votes": 1.0}, 1), lines[0]])))

        told = calibrate("calibrate", str(path), "--out", str(tmp_path / "out.json"), "--json")

        assert json.loads(told.stdout)["lines"] == 31


class TestProfiles:
    def test_of_whom_nothing_is_known_the_profile_stays(self) -> None:
        plain = {"a": Profile("a", quality=0.8, usd=0.1)}

        assert all_profiled(plain, {}) == plain

    def test_outcomes_prices_and_pairs_are_taken_over(self) -> None:
        known = Experience(
            right=30,
            wrong=10,
            weak_right=2,
            together={"b@m": (4.0, 20.0), "gone": (1.0, 1.0)},
            calls=9,
            seconds=2,
            tokens=90,
        )
        plain = {"a": Profile("a", usd=0.3), "b": Profile("b", model="m")}
        found = all_profiled(plain, {"a": known})

        assert (found["a"].right, found["a"].wrong) == (32, 10)
        assert (found["a"].usd, found["a"].latency_s, found["a"].tokens) == (0.3, 2, 90)
        assert found["a"].agrees == {"b": (4.0, 20.0)}
        assert found["b"] == plain["b"]

    def test_with_another_model_an_expert_is_somebody_else(self) -> None:
        assert identity(Profile("a", model="m")) != identity(Profile("a", model="n"))
        assert identity(Profile("a", model="a")) == identity(Profile("a")) == "a"

    def test_faults_lower_what_is_expected_by_their_share(self) -> None:
        known = Experience(right=80, wrong=20, faults=0.25, calls=50)
        clean = profiled(Profile("a"), replace(known, faults=0.0), {})

        assert accuracy(profiled(Profile("a"), known, {})) == pytest.approx(0.75 * accuracy(clean))

    def test_runs_that_nobody_scores_do_not_wear_a_good_expert_down(self) -> None:
        """One answer in a hundred is cut off, for ever; it is believed 1 % less, and not less each day."""
        known = Experience(right=90, wrong=10, faults=0.01, calls=1_000_000)

        assert accuracy(profiled(Profile("a"), known, {})) > 0.85

    def test_who_was_wrong_together_counts_for_less_together(self) -> None:
        plain = {"a": Profile("a"), "b": Profile("b")}
        alike = all_profiled(plain, {"a": Experience(right=70, wrong=30, together={"b": (30.0, 100.0)})})

        assert together(alike["a"], alike["b"]) > together(plain["a"], plain["b"])

    def test_the_interval_narrows_with_outcomes(self) -> None:
        few, many = expected(Experience()), expected(Experience(right=700, wrong=300))

        assert few[0] == pytest.approx(many[0]) == pytest.approx(0.7)
        assert many[2] - many[1] < 0.05 < few[2] - few[1]
        assert 0.0 <= few[1] < few[2] <= 1.0


def situation(offers: dict[str, tuple[str, ...]], missing: tuple[str, ...], **fields: Any) -> Situation:
    """The first expert has answered, and says what it lacked."""
    experts = tuple(
        Expert(name, 1 + n, Profile(name, offers=each)) for n, (name, each) in enumerate(offers.items())
    )
    first = experts[0].name
    mixture = Mixture(experts, form=NUMBER, gate=Gate("none"), **fields)
    profiles = {expert.name: expert.profile for expert in experts}
    memory = Memory(0, asked=(Question(0, "1.0", first),), heard=(0,), profiles=profiles)
    return Situation(mixture, memory, {0: Heard(0, first, answer=said("18"), missing=missing)}, 0)


OFFERS: dict[str, tuple[str, ...]] = {"a": (), "b": (), "c": ("check",), "d": ("data",)}


class TestMissing:
    @pytest.mark.parametrize(("missing", "asked"), [((), "b"), (("data",), "d"), (("sound",), "b")])
    def test_the_next_wave_asks_who_offers_it(self, missing: tuple[str, ...], asked: str) -> None:
        assert [q.expert for q in decide(situation(OFFERS, missing, waves=(1,))).ask] == [asked]

    def test_one_for_each(self) -> None:
        step = decide(situation(OFFERS, ("data", "check"), waves=(1, 3)))
        assert [q.expert for q in step.ask] == ["c", "d", "b"]

    def test_one_for_each_where_experts_are_asked_twice_too(self) -> None:
        at = situation({"a": (), "d": ("data",)}, ("data",), waves=(1, 3))
        twice = tuple(replace(expert, samples=2) for expert in at.mixture.experts)
        step = decide(at._replace(mixture=replace(at.mixture, experts=twice)))
        assert [q.expert for q in step.ask] == ["d", "a", "d"]

    def test_who_was_asked_has_brought_it_already(self) -> None:
        offers = {"a": ("data",), "b": (), "c": ("data",)}
        assert [q.expert for q in decide(situation(offers, ("data",), waves=(1,))).ask] == ["b"]

    def test_the_same_where_they_are_chosen(self) -> None:
        at = situation(OFFERS, ("data",), explores=True, waves=(1,))
        worse = {**at.memory.profiles, "d": replace(at.memory.profiles["d"], wrong=1e6)}
        step = decide(at._replace(memory=replace(at.memory, profiles=worse)))
        assert [q.expert for q in step.ask] == ["d"]

    def test_an_expert_that_the_budget_does_not_hold_is_not_asked_for_it(self) -> None:
        at = situation(OFFERS, ("data",), limits=Limits(usd=1.0), waves=(1,))
        dear = {**at.memory.profiles, "d": replace(at.memory.profiles["d"], usd=2.0)}
        step = decide(at._replace(memory=replace(at.memory, profiles=dear)))
        assert [q.expert for q in step.ask] == ["b"]

    @pytest.mark.parametrize(
        ("written", "found"),
        [
            ({"missing": ["data", " Code "]}, ("data", "code")),
            ({"missing": "data"}, ("data",)),
            ({"missing": ["data", "data", 3, ""]}, ("data",)),
            ({"missing": {"a": 1}}, ()),
            ({"missing": [str(n) for n in range(99)]}, tuple(str(n) for n in range(8))),
            ({"missing": ["x" * 200]}, ()),
            ({}, ()),
        ],
    )
    def test_it_is_read_from_the_answer(self, written: dict[str, Any], found: tuple[str, ...]) -> None:
        value = {"answer": "18", **written}
        for given_ in (value, json.dumps(value)):
            assert heard(given_, json.dumps(value)).missing == found


def heard(value: Any, text: str) -> Heard:
    names = {"index": 0, "expert": "a", "round": 1, "kind": "expert"}
    answer = AgentAnswer(value, Usage(3, 4), "replay:x", text=text)
    return heard_of(answer, names, AgentPlan("?"), Mixture((), form=AnswerForm("number", "answer")))


@pytest.mark.parametrize(
    ("kind", "problems"),
    [("OutputInvalid", ["schema"]), ("ContentRefused", ["refused"]), ("EngineError", [])],
)
def test_a_failure_is_its_experts_own_where_the_answer_did_not_fit(kind: str, problems: list[str]) -> None:
    names = {"index": 0, "expert": "a", "round": 1}
    told = failed(names, f"node 'x.a', item 0: {kind}: it is: {kind}")
    assert list(told.get("problems", ())) == problems
    assert told["failed"] == f"{kind}: it is: {kind}"


@pytest.mark.parametrize(("whole", "value"), [(True, "It is 18, I think."), (False, 18)])
def test_where_all_of_an_answer_is_wanted_it_is_the_text_that_was_written(whole: bool, value: Any) -> None:
    names = {"index": 0, "expert": "a", "round": 1, "kind": "expert"}
    text = "It is 18, I think."
    mixture = Mixture((), form=NUMBER, whole=whole)
    told = heard_of(AgentAnswer(text, Usage(3, 4), "replay:x", text=text), names, AgentPlan("?"), mixture)
    assert told.answer is not None
    assert (told.answer.key, told.answer.value) == ("18", value)


@pytest.mark.parametrize(("said", "counts"), [(10**30, True), ("a\ud800", True), (float("inf"), False)])
def test_what_the_mixture_hears_can_be_stored(said: Any, counts: bool) -> None:
    names = {"index": 0, "expert": "a", "round": 1, "kind": "expert"}
    value = {"answer": "18", "more": said, "missing": ["d\ud800"]}
    given_ = AgentAnswer(value, Usage(3, 4), "replay:x", text="18 \ud800")
    told = heard_of(given_, names, AgentPlan("?"), Mixture((), form=NUMBER, whole=True))
    encode(msgspec.to_builtins(told))
    assert (told.answer is not None, told.problems) == (counts, () if counts else ("unreadable",))


class TestDiversity:
    def test_it_is_the_power_of_independence(self) -> None:
        asked = Profile("a", quality=0.8)
        like = Profile("b", quality=0.82, agrees={"a": (180.0, 1000.0)})
        unlike = Profile("c", quality=0.8, agrees={"a": (42.0, 1000.0)})

        assert chosen([like, unlike], count=1, asked=[asked], diversity=1.0) == ("c",)
        assert chosen([like, unlike], count=1, asked=[asked], diversity=0.0) == ("b",)

    @pytest.mark.parametrize(("diversity", "asked"), [(1.0, "c"), (0.0, "b")])
    def test_a_mixture_says_how_much_it_counts(self, diversity: float, asked: str) -> None:
        """The chance is the same: it draws what is known well."""
        at = situation({"a": (), "b": (), "c": ()}, (), most=2, explores=True, diversity=diversity)
        sure = {
            "a": (8e5, 2e5, {}),
            "b": (8.2e5, 1.8e5, {"a": (1.8e5, 1e6)}),
            "c": (8e5, 2e5, {"a": (42e3, 1e6)}),
        }
        known = {n: Profile(n, right=r, wrong=w, agrees=dict(agrees)) for n, (r, w, agrees) in sure.items()}
        step = decide(at._replace(memory=replace(at.memory, profiles=known)))
        assert [q.expert for q in step.ask] == [asked]

    def test_it_does_not_count_unless_a_file_says_otherwise(self) -> None:
        assert MixtureSpec(prompt="?", experts=({"model": "m"},)).diversity == Mixture(()).diversity == 0.0


class TestCalibrationOfAFile:
    def test_it_reaches_the_plan_without_its_curve(self, tmp_path: Path) -> None:
        path = tmp_path / "calibration.json"
        path.write_bytes(msgspec.json.encode(fitted()))
        mixture = compile_workflow(workflow(str(path))).nodes[0].mixture

        assert mixture is not None
        assert mixture.calibration == replace(fitted(), curve=None)

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (None, "the calibration 'none.json' cannot be read: No such file or directory"),
            ("{", "'none.json' is no calibration: Input data was truncated"),
            ('{"base": 1}', "missing required field `method`"),
        ],
    )
    def test_one_that_cannot_be_read_is_told_with_file_and_reason(
        self, content: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        if content is not None:
            Path("none.json").write_text(content)
        with pytest.raises(DefinitionError, match=r"node 'answer', field 'mixture\.calibration'") as told:
            workflow("none.json")
        assert reason in str(told.value)


def calibrate(*arguments: str) -> Any:
    return CliRunner().invoke(application, list(arguments), catch_exceptions=False)


def fitted() -> Calibration:
    return learn([Outcome({"probability": 0.9 if n % 3 else 0.4}, n % 3 > 0 or n % 2 > 0) for n in range(60)])


def workflow(calibration: str) -> Workflow:
    experts = [{"name": name, "model": f"replay:{name}.jsonl"} for name in "ab"]
    node = {"mixture": {"prompt": "?", "experts": experts, "calibration": calibration}}
    return Workflow.from_data({"name": "w", "nodes": {"answer": node}, "output": "answer"})
