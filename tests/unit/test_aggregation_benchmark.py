"""The benchmark of mixtures: what it reads, what its fleet counts, its strategies, the arithmetic of its figures."""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from mosaic_tasks.mixtures.values import Answer, AnswerForm

MODELS = ("made-7b", "made-8b", "made-9b")
NUMBER = AnswerForm(form="number")


@pytest.fixture(scope="module")
def made(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("aggregation_made")


@pytest.fixture(scope="module")
def recordings(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("aggregation_recordings")


@pytest.fixture(scope="module")
def fleet(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("aggregation_fleet")


@pytest.fixture(scope="module")
def baselines(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("aggregation_baselines")


@pytest.fixture(scope="module")
def adaptive(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("aggregation_adaptive")


@pytest.fixture(scope="module")
def numbers(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("aggregation_statistics")


@pytest.fixture(scope="module")
def models(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("aggregation_models")


@pytest.fixture(scope="module")
def aggregation(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("aggregation")


def said(recordings: ModuleType, value: str, *, gold: str = "1", words: int = 20) -> Any:
    text = f"{'word ' * words}\n\nThe answer is {value}.\nThat is all."
    return recordings.said_of(text, Answer(gold, gold, int(gold)), NUMBER)


def question(recordings: ModuleType, values: dict[str, str], *, gold: str = "1", **lengths: int) -> Any:
    answers = {
        model: said(recordings, value, gold=gold, words=lengths.get(model.replace("-", "_"), 20))
        for model, value in values.items()
    }
    return recordings.Question("one", "How many?", Answer(gold, gold, int(gold)), answers)


# -- recordings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "form", "field"),
    [
        ("number", "number", ""),
        ("choice", "choice", ""),
        ("span", "span", ""),
        ("latex", "number", ""),
        ("code", "code", "answer"),
    ],
)
def test_the_form_is_told_by_the_right_answers_and_models_are_right_as_often_as_they_were_made(
    recordings: ModuleType, made: ModuleType, tmp_path: Path, kind: str, form: str, field: str
) -> None:
    found = recordings.read(made.write(tmp_path / "made.jsonl", count=200, kind=kind))
    assert (found.form.form, found.form.field) == (form, field)
    assert found.models == list(made.SKILLS)
    for model in ("made-2b", "made-70b"):
        right = statistics.fmean(one.said[model].right for one in found.questions)
        assert right == pytest.approx(made.SKILLS[model], abs=0.1)
        assert right == statistics.fmean(one.said[model].early_right for one in found.questions)


def test_a_gzipped_file_with_numbers_for_right_answers_is_read(
    recordings: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "answers.jsonl.gz"
    row = {
        "id": 1,
        "question": "?",
        "gold": 1250,
        "outputs": {"a": '{"answer": "1,250"}', "b": "", "c": None},
    }
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(row) + "\n\n")
    (only,) = recordings.read(path).questions
    assert [only.said[model].right for model in "abc"] == [True, False, False]
    assert only.said["b"].answer is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{}", r"line 1: no gold, id, outputs, question"),
        ("[1", r"line 1: .*each line is a JSON object"),
        ("", r"is empty"),
    ],
)
def test_a_file_of_another_shape_is_refused(
    recordings: ModuleType, tmp_path: Path, line: str, told: str
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line)
    with pytest.raises(recordings.BenchmarkError, match=told):
        recordings.read(path)


def test_no_file_and_no_such_form_are_told(recordings: ModuleType, made: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(
        recordings.BenchmarkError, match=r"no recorded answers in .*none\.jsonl; ANSWERS=FILE"
    ):
        recordings.read(tmp_path / "none.jsonl")
    path = made.write(tmp_path / "made.jsonl", count=3, kind="span")
    with pytest.raises(recordings.BenchmarkError, match="'sum'; name auto, number"):
        recordings.read(path, form="sum")
    with pytest.raises(recordings.BenchmarkError, match="is no JSON; name another form"):
        recordings.read(path, form="json")


def test_what_tells_the_end_of_a_text_is_no_token(recordings: ModuleType) -> None:
    one = recordings.said_of("The answer is 1." + "</s>" * 400, Answer("1", "1", 1), NUMBER)
    assert one.tokens == len("The answer is 1.") / recordings.CHARS
    assert one.right


def test_a_stream_is_heard_once_its_answer_is_complete(recordings: ModuleType) -> None:
    one = recordings.said_of("Answer: 125\n" + "And more. " * 100, Answer("125", "125", 125), NUMBER)
    assert one.early_right
    assert one.early_tokens < 5
    open_end = recordings.said_of("Answer: 125", Answer("12", "12", 12), NUMBER)
    assert not open_end.early_right
    assert open_end.early_tokens == open_end.tokens


def test_a_split_goes_by_ids_and_not_by_the_order(
    recordings: ModuleType, made: ModuleType, tmp_path: Path
) -> None:
    questions = recordings.read(made.write(tmp_path / "made.jsonl", count=100)).questions
    learn, held_out = (sorted(one.id for one in part) for part in recordings.split(questions, 3))
    assert sorted(learn + held_out) == sorted(one.id for one in questions)
    assert 25 < len(learn) < 75
    assert sorted(one.id for one in recordings.split(questions[::-1], 3)[0]) == learn
    assert sorted(one.id for one in recordings.split(questions, 4)[0]) != learn


# -- the fleet ---------------------------------------------------------------------------------------------------


def asks_all(fleet: ModuleType, names: Sequence[str], *, until: int) -> Any:
    """Asks all at once, and answers when so many came."""

    def start(question: Any) -> Any:
        came = yield fleet.Ask(tuple(names))
        for _ in range(until - 1):
            came = yield fleet.Ask()
        return came.said.answer

    return fleet.Strategy("all", start)


def seconds(fleet: ModuleType, one: Any, model: str) -> float:
    read = len(one.question) / 4 + fleet.INSTRUCTION_TOKENS
    found: float = fleet.rates(model).speed.latency_s(input_tokens=read, output_tokens=one.said[model].tokens)
    return found


def test_calls_wait_for_a_slot_and_run_side_by_side_where_there_are_some(
    recordings: ModuleType, fleet: ModuleType
) -> None:
    one = question(recordings, dict.fromkeys(MODELS, "1"))
    strategy = asks_all(fleet, MODELS, until=3)
    alone = [seconds(fleet, one, model) for model in MODELS]
    (wide,) = fleet.Fleet(strategy, gpus=1, slots=3).play([one])
    (narrow,) = fleet.Fleet(strategy, gpus=1, slots=1).play([one])
    assert wide.latency_s == pytest.approx(max(alone))
    assert narrow.latency_s == pytest.approx(sum(alone))
    assert (wide.expert_calls, wide.expert_tokens) == (3, sum(one.said[model].tokens for model in MODELS))
    assert wide.usd == pytest.approx(narrow.usd)


def test_what_is_cut_costs_what_it_had_written_and_nothing_if_it_waited(
    recordings: ModuleType, fleet: ModuleType
) -> None:
    one = question(recordings, dict.fromkeys(MODELS, "1"), made_8b=2_000)
    (side_by_side,) = fleet.Fleet(asks_all(fleet, MODELS[:2], until=1), gpus=1, slots=2).play([one])
    first, second = one.said[MODELS[0]].tokens, side_by_side.expert_tokens - one.said[MODELS[0]].tokens
    assert 0 < second < 3 * first
    assert side_by_side.expert_calls == 2
    (waited,) = fleet.Fleet(asks_all(fleet, MODELS[:2], until=1), gpus=1, slots=1).play([one])
    assert (waited.expert_calls, waited.expert_tokens) == (1, first)
    assert waited.usd < side_by_side.usd


def test_an_expert_stops_where_its_answer_is_complete_if_it_is_read_as_a_stream(
    recordings: ModuleType, fleet: ModuleType
) -> None:
    one = question(recordings, dict.fromkeys(MODELS, "1"))
    whole = asks_all(fleet, MODELS[:1], until=1)
    streamed = fleet.Strategy("streamed", whole.start, streams=True)
    tokens = [fleet.Fleet(each).play([one])[0].expert_tokens for each in (whole, streamed)]
    assert tokens == [one.said[MODELS[0]].tokens, one.said[MODELS[0]].early_tokens]
    assert tokens[1] < tokens[0]


def test_slots_are_free_again_after_a_cut_and_every_question_is_answered(
    recordings: ModuleType, fleet: ModuleType
) -> None:
    one = question(recordings, dict.fromkeys(MODELS, "1"), made_8b=2_000, made_9b=2_000)
    outcomes = fleet.Fleet(asks_all(fleet, MODELS, until=1), gpus=1, slots=2, in_flight=3).play([one] * 20)
    assert all(outcome.right for outcome in outcomes)
    assert max(outcome.latency_s for outcome in outcomes) < 4 * seconds(fleet, one, MODELS[0])


# -- strategies --------------------------------------------------------------------------------------------------


def played(fleet: ModuleType, strategy: Any, one: Any) -> Any:
    (outcome,) = fleet.Fleet(strategy).play([one])
    return outcome


FIVE = ("made-7b", "made-8b", "made-9b", "made-12b", "made-14b")


def five(recordings: ModuleType, *values: str) -> Any:
    """A question whose right answer is 1, on which the aggregator is right."""
    return question(recordings, {**dict(zip(FIVE, values, strict=True)), "made-70b": "1"})


@pytest.mark.parametrize(
    ("values", "strategy", "right", "calls", "aggregated"),
    [
        ("11222", "majority", False, 5, 0),
        ("12121", "full mixture", True, 5, 1),
        ("22221", "4 of 5 agree", False, 5, 0),
        ("22211", "4 of 5 agree", True, 5, 1),
        ("11222", "margin 2", True, 2, 0),
        ("12222", "margin 2", False, 4, 0),
        ("12121", "margin 2", True, 5, 1),
        ("11112", "Adaptive-Consistency", True, 4, 0),
        ("12112", "Adaptive-Consistency", True, 5, 0),
        ("11122", "early-stopping self-consistency", True, 3, 0),
        ("22111", "early-stopping self-consistency", True, 5, 0),
        ("12345", "majority", True, 5, 0),
    ],
)
def test_baselines_ask_and_decide_as_their_papers_say(
    recordings: ModuleType,
    fleet: ModuleType,
    baselines: ModuleType,
    values: str,
    strategy: str,
    right: bool,
    calls: int,
    aggregated: int,
) -> None:
    every = baselines.Baselines(FIVE, "made-70b", NUMBER).all("made-7b")
    outcome = played(fleet, {one.name: one for one in every}[strategy], five(recordings, *values))
    assert (outcome.right, outcome.expert_calls, outcome.aggregator_calls) == (right, calls, aggregated)


@pytest.mark.parametrize(("first", "second", "probability"), [(0, 0, 0.5), (3, 0, 0.9375), (4, 1, 0.890625)])
def test_staying_ahead_is_the_upper_half_of_a_beta_distribution(
    baselines: ModuleType, first: int, second: int, probability: float
) -> None:
    assert baselines.stays_ahead(first, second) == pytest.approx(probability)


def mixture(recordings: ModuleType, adaptive: ModuleType, **options: Any) -> Any:
    """Experts who are wrong in one of ten questions, each in another, and an aggregator that never is."""
    history = [
        five(recordings, *("2" if number == place else "1" for place in range(5))) for number in range(10)
    ]
    profiles = adaptive.profiles_of(history * 10, (*FIVE, "made-70b"))
    return adaptive.Adaptive(FIVE, "made-70b", profiles, NUMBER, **options)


def test_the_gate_ends_a_mixture_as_soon_as_it_passes(
    recordings: ModuleType, fleet: ModuleType, adaptive: ModuleType
) -> None:
    outcome = played(fleet, mixture(recordings, adaptive).strategy, five(recordings, *"11111"))
    assert (outcome.right, outcome.expert_calls, outcome.aggregator_calls) == (True, 2, 0)


def test_the_aggregator_is_asked_where_nobody_is_left_and_the_answer_is_unsure(
    recordings: ModuleType, fleet: ModuleType, adaptive: ModuleType
) -> None:
    one = mixture(recordings, adaptive)
    for each in (one, one.with_one_threshold):
        outcome = played(fleet, each.strategy, five(recordings, *"23456"))
        assert (outcome.right, outcome.aggregator_calls) == (True, 1)
        assert outcome.expert_calls == adaptive.Setting().most


def test_nobody_aggregates_where_there_is_no_aggregator(
    recordings: ModuleType, fleet: ModuleType, adaptive: ModuleType
) -> None:
    one = mixture(recordings, adaptive)
    alone = adaptive.Adaptive(FIVE, None, one.profiles, NUMBER, adaptive.Setting(most=5))
    outcome = played(fleet, alone.strategy, five(recordings, *"23455"))
    assert (outcome.right, outcome.expert_calls, outcome.aggregator_calls) == (False, 5, 0)


def test_profiles_count_who_was_wrong_together(recordings: ModuleType, adaptive: ModuleType) -> None:
    history = [five(recordings, *values) for values in ("22111", "21111", "11111", "12111")]
    profiles = adaptive.profiles_of(history, FIVE)
    assert (profiles["made-7b"].right, profiles["made-7b"].wrong) == (2.0, 2.0)
    assert profiles["made-7b"].agrees["made-8b"] == (1.0, 4.0)
    assert profiles["made-7b"].tokens == history[0].said["made-7b"].early_tokens


def test_what_is_learned_asks_the_aggregator_as_often_as_it_may(
    recordings: ModuleType, made: ModuleType, adaptive: ModuleType, tmp_path: Path
) -> None:
    found = recordings.read(made.write(tmp_path / "made.jsonl", count=80))
    options = {"models": found.models, "form": found.form, "questions": found.questions}
    best = adaptive.learned(FIVE, "made-70b", **options)
    excess = {
        setting: adaptive.tried(
            adaptive.Adaptive(FIVE, "made-70b", best.profiles, found.form, setting), found.questions
        ).excess
        for settings in adaptive._settings(len(FIVE))
        for setting in settings
    }
    allowed = [setting for setting in excess if excess[setting] == min(excess.values())]
    assert best.setting in allowed
    assert best.setting.enough == max(one.enough for one in allowed if one.most == best.setting.most)
    assert len({one.enough for one in allowed}) > 1


# -- figures -----------------------------------------------------------------------------------------------------


def test_a_bootstrap_of_equal_values_has_no_width_and_pairs_stay_together(numbers: ModuleType) -> None:
    bootstrap = numbers.Bootstrap.of(50, seed=1, rounds=200)
    assert bootstrap.mean([3.0] * 50) == numbers.Estimate(3.0, 3.0, 3.0)
    values = [float(number % 7) for number in range(1, 51)]
    share = bootstrap.share([value / 4 for value in values], values)
    assert (share.value, share.low, share.high) == pytest.approx((0.25, 0.25, 0.25))
    wide = bootstrap.mean(values)
    assert wide.low < wide.value < wide.high


def test_figures_compare_the_same_questions(numbers: ModuleType, fleet: ModuleType) -> None:
    ours = [fleet.Outcome(right, 2, 0, 100.0, 0.0, 1.0, 0.001) for right in (True, True, False, True)]
    full = [fleet.Outcome(right, 5, 1, 400.0, 50.0, 4.0, 0.010) for right in (True, False, False, True)]
    ours[0].aggregator_calls = 1
    found = numbers.compared(ours, full, numbers.Bootstrap.of(4, seed=1, rounds=10))
    assert {name: one.value for name, one in found.items()} == pytest.approx(
        {
            "accuracy_delta_points": 25.0,
            "expert_tokens_share": 0.25,
            "aggregator_share": 0.25,
            "latency_ratio": 0.25,
            "usd_share": 0.1,
        }
    )


def test_the_frontier_has_those_that_none_beats_in_both(numbers: ModuleType) -> None:
    points = {"dear": (9.0, 95.0), "poor": (3.0, 80.0), "cheap": (1.0, 85.0), "good": (3.0, 95.0)}
    assert numbers.frontier(points) == ["cheap", "good"]


def test_a_model_costs_what_the_pool_says_or_what_one_of_its_size_costs(models: ModuleType) -> None:
    assert models.rates("gpt-4o-mini-2024-07-18").price.output == 0.6
    assert models.rates("gpt-4o-mini-2024-07-18").like == models.UNSIZED
    assert models.rates("Meta-Llama-3.1-70B-Instruct").like == "llama-3.1-70b"
    assert models.rates("gemma-2-9b-it").like == "gemma-2-9b"
    assert models.rates("gemma-2-9b-it").priced_like == "llama-3.1-8b"
    assert models.rates("unheard-of-7.5b-chat").like == "qwen2-7b"
    assert models.rates("unheard-of").like == models.UNSIZED


def test_a_set_is_judged_by_its_best_expert_on_the_part_that_is_learned_on(
    recordings: ModuleType, adaptive: ModuleType, aggregation: ModuleType
) -> None:
    learn = [five(recordings, *"12222") for _ in range(20)]
    held_out = [five(recordings, *"21111") for _ in range(10)]
    models = (*FIVE, "made-70b")
    form, parts = NUMBER, aggregation.Parts(learn, held_out)
    found = recordings.Recordings(form, models, [*learn, *held_out])
    one = adaptive.Adaptive(FIVE, "made-70b", adaptive.profiles_of(learn, models), form)
    (delta,) = aggregation.deltas(one, found, parts, [FIVE])
    # made-7b was always right, and is always wrong now; the aggregator and the others are right.
    assert delta >= 0
    (alone,) = aggregation.deltas(one, found, aggregation.Parts(held_out, learn), [FIVE], alone=True)
    assert alone == pytest.approx(0)


def test_every_target_is_a_figure_and_the_plot_shows_every_strategy(
    aggregation: ModuleType, made: ModuleType, recordings: ModuleType, numbers: ModuleType, tmp_path: Path
) -> None:
    found = recordings.read(made.write(tmp_path / "made.jsonl", count=60, kind="choice"))
    report = aggregation.Report("aggregation", True, {})
    aggregation.measure(report, found, aggregation.Sizes(splits=1, sets=2, set_splits=1, rounds=20))
    assert {target.figure for target in aggregation.TARGETS} <= report.figures.keys()
    assert None not in report.figures.values()
    (told,) = report.details["scenarios"]
    assert told["aggregator"] not in told["order"]
    svg = ElementTree.fromstring(numbers.plot("a < b", told["strategies"]))
    shown = {text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a < b", *told["strategies"]} <= shown
    json.dumps(aggregation.plain(report.details))


def test_small_sizes_do_without_recordings_and_full_ones_say_what_is_missing(
    aggregation: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QUICK", raising=False)
    none = tmp_path / "none.jsonl"
    found, named = aggregation.recordings_of(none, "auto", aggregation.QUICK_SIZES, is_quick=True)
    assert (len(found.questions), named) == (aggregation.QUICK_SIZES.made, "made-up answers")
    with pytest.raises(SystemExit, match="there are no recorded answers in"):
        aggregation.main(["--answers", str(none)])


def test_a_full_run_is_skipped_where_nobody_named_recordings_and_there_are_none(
    aggregation: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QUICK", raising=False)
    monkeypatch.setattr(aggregation, "SHARED", tmp_path / "none.jsonl")
    aggregation.main(["--answers", str(tmp_path / "none.jsonl")])
    assert "skipped, there are no recorded answers in" in capsys.readouterr().out
