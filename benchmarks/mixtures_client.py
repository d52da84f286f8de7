"""The client of the benchmark of mixtures: what its process does, asked for by `mixtures.py`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import mixtures_scenario as scenario
from aggregation_made import write as write_made
from aggregation_recordings import ANSWERS, CHARS, Question, Recordings, is_same, read, split
from mixtures_notes import Note, are_closed, cancelled_ms, take

from mosaic_tasks import Run, Workflow, compile_workflow, submit
from mosaic_tasks.app import app
from mosaic_tasks.execution.mixtures.expert_learning import ExpertLearning
from mosaic_tasks.execution.process import process_for
from mosaic_tasks.mixtures.answers import normalise
from mosaic_tasks.mixtures.judging import Ended
from mosaic_tasks.mixtures.mixture import Memory
from mosaic_tasks.mixtures.mixture import Question as Asked
from mosaic_tasks.mixtures.values import Heard

TIMEOUT_S = 120.0
SEED = 0
QUIET_S, LOOK_S = 20.0, 0.05
"""Streams of experts that were cut off are closed within this time; so often it is looked."""
_numbers = count()


@dataclass(frozen=True)
class Prepared:
    """What is asked, and by which workflows."""

    recordings: Recordings
    questions: Sequence[Question]
    fleet: scenario.Fleet
    workflows: Mapping[str, Workflow]


_prepared: list[Prepared] = []


def workers_answering(wanted: int) -> int:
    """How many of `wanted` workers answer now."""
    return len(app.control.ping(timeout=1.0, limit=wanted))


def prepare(made: int, most: int) -> dict[str, Any]:
    """Writes the recordings where this process works, and has the experts learned.

    Args:
        made: so many questions, where there are no recordings; 0: then there must be some.
        most: questions are asked at most.
    """
    folder = Path.cwd()
    path = write_made(folder / "made.jsonl", count=made) if made and not ANSWERS.exists() else ANSWERS
    recordings = read(path)
    learn, held_out = split(recordings.questions, SEED)
    questions, fleet = held_out[:most], scenario.fleet_of(recordings, learn)
    scenario.write(folder, fleet, questions)
    scenario.write_made(folder)
    workflows = scenario.workflows(folder, fleet)
    _prepared[:] = [Prepared(recordings, questions, fleet, workflows)]
    _learn(learn)
    return {
        "answers": path.name,
        "questions": len(questions),
        "learned_on": len(learn),
        "experts": list(fleet.experts),
        "aggregator": fleet.aggregator,
        "queues": dict(fleet.queues),
        "places": fleet.places,
    }


def _learn(questions: Sequence[Question]) -> None:
    """Scores what the experts said to these questions, as `Run.score` would."""
    (here,) = _prepared
    plan = compile_workflow(here.workflows["adaptive"])
    number = next(number for number, node in enumerate(plan.nodes) if node.mixture is not None)
    mixture = plan.nodes[number].mixture
    assert mixture is not None
    asked = tuple(
        Asked(index, f"{expert.node}.0", expert.name) for index, expert in enumerate(mixture.experts)
    )
    memory = Memory(begun_ms=process_for(app).now_ms(), asked=asked, heard=tuple(range(len(asked))))
    for question in questions:
        said = [question.said[model] for model in here.fleet.experts]
        heard = {
            index: Heard(index, asked[index].expert, text=one.text, answer=one.early)
            for index, one in enumerate(said)
        }
        learning = ExpertLearning(process_for(app), f"learned-{question.id}", plan, number)
        learning.score(Ended(mixture, memory, heard), 1.0, question.gold)


# -- adaptive against full -----------------------------------------------------------------------------------------


def ask(side: str, first: int, size: int, in_flight: int) -> list[dict[str, Any]]:
    """Asks some of the questions, so many at the same time; the next one begins when one is answered."""
    (here,) = _prepared
    questions = here.questions[first : first + size]
    with ThreadPoolExecutor(in_flight) as threads:
        answered = list(threads.map(partial(_ask, side), questions))
    written = _written()
    return [
        {**told, "right": _is_right(question, told.pop("answer")), **_generated(run, written[mark])}
        for question, (mark, run, told) in zip(questions, answered, strict=True)
    ]


def _ask(side: str, question: Question) -> tuple[str, Run, dict[str, Any]]:
    (here,) = _prepared
    mark, begun = f"{side}-{next(_numbers)}", time.perf_counter()
    run = submit(here.workflows[side], {"question": question.question, "mark": mark})
    record = run.result(TIMEOUT_S)
    told = {"seconds": time.perf_counter() - begun, "answer": record["answer"], "by": record["by"]}
    kinds = [said.get("kind", "expert") for said in record["calls"]]
    return mark, run, {**told, "experts": kinds.count("expert"), "aggregated": "aggregator" in kinds}


def _is_right(question: Question, answer: Any) -> bool:
    (here,) = _prepared
    form = here.recordings.form
    return is_same(normalise(str(answer), form), question.gold, form)


def _written() -> Mapping[str, list[Note]]:
    """What engines wrote, by the mark of the run, once no stream is open."""
    client, until = process_for(app).client, time.monotonic() + QUIET_S
    while not are_closed(client):
        if time.monotonic() > until:
            raise TimeoutError(f"engines still write {QUIET_S:g} s after the last answer")
        time.sleep(LOOK_S)
    found: defaultdict[str, list[Note]] = defaultdict(list)
    for note in take(client):
        found[note.mark].append(note)
    return found


def _generated(run: Run, written: Sequence[Note]) -> dict[str, Any]:
    """Tokens that engines wrote for a run, and how long those wrote on who were cut off."""
    (here,) = _prepared
    large, cut_off = scenario.name_of(here.fleet.aggregator), _cut_off(run)
    return {
        "expert_tokens": sum(note.chars for note in written if note.name != large) / CHARS,
        "aggregator_tokens": sum(note.chars for note in written if note.name == large) / CHARS,
        "cut": len(cut_off),
        "cancel_ms": cancelled_ms(written, cut_off),
    }


def _cut_off(run: Run) -> dict[str, float]:
    """Who was cut off when, by the server's clock (Unix time)."""
    nodes = run.plan().nodes
    return {
        nodes[int(call.partition(".")[0])].name.removeprefix(f"{scenario.NODE}."): event.at_ms / 1e3
        for event in run.events()
        if event.kind == "cut"
        for call in event.calls
    }


# -- cancelling, and what a mixture costs ----------------------------------------------------------------------------


def cut(runs: int, in_flight: int) -> dict[str, Any]:
    """Mixtures that cut experts off who write in the worker of another pool."""
    question = Question("cut", "How many?", _prepared[0].questions[0].gold, {})
    with ThreadPoolExecutor(in_flight) as threads:
        answered = list(threads.map(lambda _: _ask("cutting", question), range(runs)))
    written = _written()
    told = [_generated(run, written[mark]) for mark, run, _ in answered]
    return {
        "cut": sum(one["cut"] for one in told),
        "cancel_ms": [ms for one in told for ms in one["cancel_ms"]],
    }


def repeat(name: str, times: int) -> list[float]:
    """Seconds that each of so many runs takes, one after the other."""
    return [_once(name) for _ in range(times)]


def _once(name: str) -> float:
    workflow = _prepared[0].workflows[name]
    begun = time.perf_counter()
    result = submit(workflow, {"question": "How many?", "mark": "-"}).result(TIMEOUT_S)
    seconds = time.perf_counter() - begun
    if str(result["answer"] if isinstance(result, dict) else result) != "18":
        raise AssertionError(f"{name} answered {result!r}")
    return seconds
