"""What an adaptive mixture of experts gains: recorded answers of many models, played on simulated GPUs.

Settings are learned on one part of the questions and reported on the other. README.md says what is measured how.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aggregation_adaptive import Adaptive, learned, profiles_of
from aggregation_baselines import FULL, Baselines
from aggregation_fleet import Fleet, Outcome
from aggregation_made import write
from aggregation_models import GPU, rates
from aggregation_recordings import ANSWERS, SHARED, Question, Recordings, read, split
from aggregation_statistics import Bootstrap, Estimate, compared, plot, summary
from harness import OUT, Report, Target, rounded, show_table, shown, versions, wants_quick
from processes import BenchmarkError

from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.beliefs import families_of, view_of
from mosaic_tasks.mixtures.gates import verdict
from mosaic_tasks.mixtures.values import AnswerForm, Gate, Heard, Profile

SEED = 0
"""Of the split that is reported."""
OF = 5
"""Experts in a set."""
LARGE = ("Meta-Llama-3.1-70B-Instruct", "gpt-4o-mini-2024-07-18", "Qwen2-72B-Instruct")
SETS: Mapping[str, Sequence[str]] = {
    "7-12B": (
        "gemma-2-9b-it",
        "Qwen2-7B-Instruct",
        "Meta-Llama-3.1-8B-Instruct",
        "Mistral-Nemo-Instruct-2407",
        "Yi-1.5-9B-Chat",
    ),
    "2-9B": (
        "gemma-2-2b-it",
        "Phi-3.5-mini-instruct",
        "Qwen2-7B-Instruct",
        "Meta-Llama-3.1-8B-Instruct",
        "gemma-2-9b-it",
    ),
    "with a strong one": (
        "claude-3-haiku-20240307",
        "Mixtral-8x7B-Instruct-v0.1",
        "Phi-3.5-mini-instruct",
        "Qwen2-7B-Instruct",
        "Yi-1.5-9B-Chat",
    ),
}
"""Of the recorded GSM8K answers. Other files have one set: the best but for the best, which aggregates."""
TARGETS = (
    Target("accuracy_delta_points", least=-0.1),
    Target("expert_tokens_share", most=0.45),
    Target("aggregator_share", most=0.08),
    Target("latency_ratio", most=0.5),
    Target("worst_set_delta_points", least=-0.5),
    Target("gate_us_32", most=1_000.0),
    Target("semantic_us_32", most=10_000.0),
)
CROSSED = ("accuracy_delta_points", "expert_tokens_share", "aggregator_share", "latency_ratio")
"""Figures that are told for other splits too; of all but the first the worst is the greatest."""


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        splits: beside the first one, for the means and the worst; each is turned around too.
        sets: of five experts; None: all there are.
        set_splits: in which they are looked at.
        rounds: of the bootstrap.
        made: questions, where there are no recordings.
    """

    splits: int
    sets: int | None
    set_splits: int
    rounds: int
    made: int = 120


FULL_SIZES = Sizes(splits=5, sets=None, set_splits=3, rounds=1_000)
QUICK_SIZES = Sizes(splits=1, sets=6, set_splits=1, rounds=100)


@dataclass(frozen=True)
class Parts:
    """The questions that are learned on, and those that are reported."""

    learn: Sequence[Question]
    held_out: Sequence[Question]

    @classmethod
    def of(cls, questions: Sequence[Question], seed: int) -> Parts:
        """Of a seed."""
        return cls(*split(questions, seed))

    @property
    def turned(self) -> Parts:
        """The other way around."""
        return Parts(self.held_out, self.learn)


@dataclass(frozen=True)
class Scenario:
    """Experts, and who aggregates."""

    name: str
    experts: Sequence[str]
    aggregator: str

    def learned(self, recordings: Recordings, questions: Sequence[Question]) -> Adaptive:
        """The adaptive mixture."""
        return learned(
            self.experts,
            self.aggregator,
            models=recordings.models,
            form=recordings.form,
            questions=questions,
        )

    def outcomes(self, recordings: Recordings, parts: Parts, mixture: Adaptive) -> dict[str, list[Outcome]]:
        """What each strategy comes to on the questions that are held out."""
        ranked = by_skill(self.experts, parts.learn)
        baselines = Baselines(ranked, self.aggregator, recordings.form).all(ranked[0])
        strategies = [*baselines, mixture.with_one_threshold.strategy, mixture.strategy]
        return {strategy.name: Fleet(strategy).play(parts.held_out) for strategy in strategies}


def by_skill(models: Sequence[str], questions: Sequence[Question]) -> list[str]:
    """The most often right first."""
    return sorted(models, key=lambda model: -right_share(model, questions))


def right_share(model: str, questions: Sequence[Question]) -> float:
    """How often it is right."""
    return statistics.fmean(question.said[model].right for question in questions)


def scenarios(recordings: Recordings, learn: Sequence[Question]) -> Iterator[Scenario]:
    """The first one is that of the figures."""
    if set(LARGE).union(*SETS.values()) <= set(recordings.models):
        for name, experts in SETS.items():
            for aggregator in LARGE if name == next(iter(SETS)) else LARGE[:1]:
                yield Scenario(name, experts, aggregator)
        return
    best, *others = by_skill(recordings.models, learn)
    if len(others) < 2:
        raise BenchmarkError(f"{len(recordings.models)} models answered all questions; a mixture needs 3")
    yield Scenario("the best but one", others[:OF], best)


def measure(report: Report, recordings: Recordings, sizes: Sizes) -> None:
    """Fills the report."""
    parts = Parts.of(recordings.questions, SEED)
    if min(len(parts.learn), len(parts.held_out)) < OF:
        raise BenchmarkError(f"{len(recordings.questions)} questions are too few to learn on a part of them")
    bootstrap = Bootstrap.of(len(parts.held_out), seed=SEED, rounds=sizes.rounds)
    report.details["learned_on"] = len(parts.learn)
    report.details["reported_on"] = len(parts.held_out)
    report.details["models"] = {
        model: _told_model(model, recordings.questions) for model in recordings.models
    }
    first, *others = scenarios(recordings, parts.learn)
    mixture, told = measured(first, recordings, parts, bootstrap)
    report.details["scenarios"] = [
        told,
        *(measured(other, recordings, parts, bootstrap)[1] for other in others),
    ]
    report.figures.update({name: estimate.value for name, estimate in told["compared"].items()})
    report.figures.update(crossed(first, recordings, sizes.splits))
    report.figures.update(worst_sets(mixture, recordings, sizes))
    report.figures.update(gate_us())


def measured(
    scenario: Scenario, recordings: Recordings, parts: Parts, bootstrap: Bootstrap
) -> tuple[Adaptive, dict[str, Any]]:
    """The mixture as it was learned, and what is told of the scenario."""
    mixture = scenario.learned(recordings, parts.learn)
    outcomes = scenario.outcomes(recordings, parts, mixture)
    told = {
        "experts": scenario.name,
        "aggregator": scenario.aggregator,
        "setting": asdict(mixture.setting),
        "order": mixture.order,
        "compared": compared(outcomes["adaptive"], outcomes[FULL], bootstrap),
        "strategies": {name: summary(of, bootstrap) for name, of in outcomes.items()},
    }
    print(f"{scenario.name}, {scenario.aggregator}: {mixture.setting}", flush=True)
    return mixture, told


def crossed(scenario: Scenario, recordings: Recordings, splits: int) -> dict[str, float | None]:
    """The same figures for other splits, each in both directions: their means, and the worst."""
    found: list[Mapping[str, Estimate]] = []
    for seed in range(SEED + 1, SEED + 1 + splits):
        parts = Parts.of(recordings.questions, seed)
        for turn in (parts, parts.turned):
            outcomes = scenario.outcomes(recordings, turn, scenario.learned(recordings, turn.learn))
            once = Bootstrap.of(len(turn.held_out), seed=seed, rounds=1)
            found.append(compared(outcomes["adaptive"], outcomes[FULL], once))
    figures: dict[str, float | None] = {}
    for name in CROSSED:
        values = [each[name].value for each in found]
        figures[f"{name}_crossed_mean"] = statistics.fmean(values)
        figures[f"{name}_crossed_worst"] = min(values) if name == CROSSED[0] else max(values)
    return figures


def worst_sets(mixture: Adaptive, recordings: Recordings, sizes: Sizes) -> dict[str, float | None]:
    """Of all sets of five experts, that in which the adaptive mixture is worst beside the best single one of them.

    The best is the one that did best on the part that is learned on. `_crossed`: both parts are held out in turn, so
    that each set is judged by all questions. `_alone`: nobody aggregates.
    """
    sets = list(itertools.combinations(recordings.models, min(OF, len(recordings.models) - 1)))
    if sizes.sets is not None:
        sets = random.Random(SEED).sample(sets, min(sizes.sets, len(sets)))
    split_by = [Parts.of(recordings.questions, SEED + number) for number in range(sizes.set_splits)]
    found = [_both_ways(mixture, recordings, parts, sets) for parts in split_by]
    crossed = [min(map(sum, zip(*both, strict=True))) for both in found]
    alone = _both_ways(mixture, recordings, split_by[0], sets, alone=True)
    here, point, whole = found[0][0], len(split_by[0].held_out) / 100, len(recordings.questions) / 100
    return {
        "worst_set_delta_points": min(here) / point,
        "mean_set_delta_points": statistics.fmean(here) / point,
        "sets_worse_by_half_a_point": statistics.fmean(one < -0.5 * point for one in here),
        "worst_set_delta_points_crossed_mean": statistics.fmean(crossed) / whole,
        "worst_set_delta_points_crossed_worst": min(crossed) / whole,
        "worst_set_delta_points_alone": min(alone[0]) / point,
        "worst_set_delta_points_alone_crossed": min(map(sum, zip(*alone, strict=True))) / whole,
    }


def _both_ways(
    mixture: Adaptive,
    recordings: Recordings,
    parts: Parts,
    sets: Sequence[Sequence[str]],
    *,
    alone: bool = False,
) -> tuple[list[float], list[float]]:
    whom = "without an aggregator" if alone else "with one"
    print(f"{len(sets)} sets of {len(sets[0])}, {whom}, both parts held out in turn", flush=True)
    here, there = (deltas(mixture, recordings, turn, sets, alone=alone) for turn in (parts, parts.turned))
    return here, there


def deltas(
    mixture: Adaptive,
    recordings: Recordings,
    parts: Parts,
    sets: Sequence[Sequence[str]],
    *,
    alone: bool = False,
) -> list[float]:
    """For each set so many more right answers than its best expert gives."""
    profiles = profiles_of(parts.learn, recordings.models)
    ranked = by_skill(recordings.models, parts.learn)
    found = []
    for experts in sets:
        best = next(model for model in ranked if model in experts)
        aggregator = mixture.aggregator if mixture.aggregator not in experts else None
        aggregator = aggregator or next(model for model in ranked if model not in experts)
        one = Adaptive(experts, None if alone else aggregator, profiles, mixture.form, mixture.setting)
        outcomes = Fleet(one.strategy, in_flight=1).play(parts.held_out)
        right = sum(question.said[best].right for question in parts.held_out)
        found.append(sum(outcome.right for outcome in outcomes) - right)
    return found


HEARD = 32
REPEATS = 300
CAUSES = ("the truck broke down", "the harbour was on strike", "the parcel went to another town", "it snowed")


def gate_us() -> dict[str, float | None]:
    """What grouping, believing, and the gate take for 32 answers, by keys and by meaning: medians."""
    numbers = [f"The answer is {number % 6}." for number in range(HEARD)]
    texts = [
        f"The delivery was late because {CAUSES[number % len(CAUSES)]}, as {_name(number)} says who wrote the report, "
        "and so the customers were told to wait until the end of the week."
        for number in range(HEARD)
    ]
    return {
        "gate_us_32": _decides_us(numbers, AnswerForm(form="number")),
        "semantic_us_32": _decides_us(texts, AnswerForm(form="text")),
    }


def _decides_us(said: Sequence[str], form: AnswerForm) -> float:
    profiles = {f"expert-{number}": _somebody(number) for number in range(HEARD)}
    heard = [
        Heard(number, name, answer=normalise(text, form))
        for number, (name, text) in enumerate(zip(profiles, said, strict=True))
    ]
    families, gate = families_of(profiles), Gate()

    def decide() -> None:
        view = view_of(heard, profiles, form, planned=HEARD, families=families)
        verdict(gate, view)

    return 1e6 * statistics.median(_seconds(decide) for _ in range(REPEATS))


def _somebody(number: int) -> Profile:
    both = {f"expert-{other}": (3.0, 60.0) for other in range(HEARD) if other != number}
    return Profile(f"expert-{number}", right=50.0 + number % 9, wrong=10.0, agrees=both)


def _name(number: int) -> str:
    """A word of letters that no other number has."""
    return "".join("abcdefgh"[int(digit)] for digit in f"{number:o}")


def _seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _told_model(model: str, questions: Sequence[Question]) -> dict[str, Any]:
    of, said = rates(model), [question.said[model] for question in questions]
    return {
        "right": rounded(right_share(model, questions)),
        "tokens": rounded(statistics.fmean(one.tokens for one in said)),
        "tokens_until_complete": rounded(statistics.fmean(one.early_tokens for one in said)),
        "as_fast_as": of.like,
        "decode_tokens_s": rounded(of.speed.decode_tokens_s),
        "prefill_tokens_s": rounded(of.speed.prefill_tokens_s),
        "priced_as": of.priced_like,
        "usd_per_million": [of.price.input, of.price.output],
    }


def show(report: Report) -> None:
    """Prints each scenario, and the figures against their targets."""
    for told in report.details["scenarios"]:
        title = (
            f"{told['experts']}, {told['aggregator']} aggregates; learned on {report.details['learned_on']} "
            f"questions, reported on {report.details['reported_on']} others; for one question"
        )
        rows = [
            (name, found["accuracy"].told, *(shown(found[column].value) for column in COLUMNS.values()))
            for name, found in told["strategies"].items()
        ]
        show_table(title, ("strategy", "right %", *COLUMNS), rows)
        show_table("beside the full mixture", *_beside(told["compared"]))
    report.show(TARGETS)


COLUMNS: Mapping[str, str] = {
    "calls": "expert_calls",
    "aggregator": "aggregator_calls",
    "tokens": "expert_tokens",
    "s": "latency_s",
    "$/1000": "usd_per_1000",
}


def _beside(found: Mapping[str, Estimate]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    return ("", "adaptive"), [(name, estimate.told) for name, estimate in found.items()]


def plain(value: Any) -> Any:
    """Estimates as lists of value, low, high, for JSON."""
    if isinstance(value, Estimate):
        return [rounded(value.value), rounded(value.low), rounded(value.high)]
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def recordings_of(path: Path, form: str, sizes: Sizes, *, is_quick: bool) -> tuple[Recordings, str]:
    """The recordings, and what they are; small sizes take made-up ones where there are none."""
    if path.exists() or not is_quick:
        return read(path, form=form), str(path.name)
    with tempfile.TemporaryDirectory() as directory:
        return read(write(Path(directory) / "made.jsonl", count=sizes.made)), "made-up answers"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark as this process, whose exit status says whether it came to its end."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--answers", type=Path, default=ANSWERS)
    parser.add_argument("--form", default="auto")
    own, others = parser.parse_known_args(arguments)
    is_quick = wants_quick("Adaptive mixtures over recorded answers (--answers FILE, --form FORM).", others)
    sizes = QUICK_SIZES if is_quick else FULL_SIZES
    if own.answers == SHARED and not SHARED.exists() and not is_quick:
        print(f"aggregation: skipped, there are no recorded answers in {SHARED}; ANSWERS=FILE names others")
        return
    try:
        report = Report("aggregation", is_quick, versions(("mosaic-tasks", "rapidfuzz")))
        recordings, named = recordings_of(own.answers, own.form, sizes, is_quick=is_quick)
        report.details |= {"answers": named, "form": recordings.form.form, "gpus": GPU}
        measure(report, recordings, sizes)
    except BenchmarkError as error:
        sys.exit(f"aggregation: {error}")
    show(report)
    told = report.details["scenarios"][0]
    report.details = plain(report.details)
    print(f"written: benchmarks/out/{report.save().name}")
    title = f"{named}: {told['experts']}, {told['aggregator']} aggregates"
    (OUT / "aggregation.svg").write_text(plot(title, told["strategies"]), encoding="utf-8")
    print("written: benchmarks/out/aggregation.svg")


if __name__ == "__main__":
    main()
