"""Scores the answer of a mixture that has decided: its experts are believed more, or less, from then on."""

from __future__ import annotations

import math
import reprlib
from typing import Any

import msgspec

from mosaic_queues.errors import InputError
from mosaic_queues.transitions import MAILBOX
from mosaic_tasks.execution.mixtures.expert_learning import ExpertLearning
from mosaic_tasks.execution.mixtures.hearing import hear, remembered
from mosaic_tasks.execution.process import Process
from mosaic_tasks.mixtures.answers import FIELD, normalise
from mosaic_tasks.mixtures.calibration import Outcome
from mosaic_tasks.mixtures.judging import Ended, labelled, right_calls
from mosaic_tasks.mixtures.mixture import Memory
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Heard


class Score(msgspec.Struct, frozen=True):
    """What a score said.

    Attributes:
        judged: by expert, how right it was, 0 to 1, the mean of its answers; those of which it says nothing are not
            there.
        line: for the history of a calibration; None where it says nothing of the leading answer.
    """

    run: str
    node: str
    value: float
    judged: dict[str, float]
    line: Outcome | None


def score(process: Process, run_id: str, number: int, value: float, answer: Any = None) -> Score:
    """Scores a mixture of a run; see `Run.score`.

    Args:
        number: of its node.
    """
    plan = process.plan_of(run_id).plan
    node = plan.nodes[number]
    assert node.mixture is not None
    share, truth = _share(value), _truth(answer, node.mixture.form)
    over = Ended(node.mixture, *_kept(process, run_id, node.name, number))
    noted = ExpertLearning(process, run_id, plan, number).score(over, share, truth)
    if noted == "known":
        raise InputError(
            f"node {node.name!r} of run {run_id} runs again; score the answer that it comes to now"
        )
    if noted == "late":
        raise InputError(f"node {node.name!r} of run {run_id} answered too long ago to be scored")
    return _score(run_id, node.name, share, over, truth)


def _score(run_id: str, node: str, value: float, over: Ended, truth: Answer | None) -> Score:
    rights: dict[str, list[float]] = {}
    for index, right in right_calls(over, value, truth).items():
        rights.setdefault(over.memory.asked[index].expert, []).append(right)
    judged = {name: round(sum(each) / len(each), 4) for name, each in sorted(rights.items())}
    line = labelled(over, value, truth)
    named = None if line is None else msgspec.structs.replace(line, run=run_id, node=node)
    return Score(run_id, node, value, judged, named)


def _share(value: float) -> float:
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    if not is_number or not 0 <= value <= 1:
        raise InputError(f"{reprlib.repr(value)} is no score; give a number from 0, wrong, to 1, right")
    return float(value)


def _truth(answer: Any, form: AnswerForm) -> Answer | None:
    """The right answer as answers are compared: given as an expert would, or the compared part alone."""
    if answer is None:
        return None
    alone = answer if isinstance(answer, (str, dict)) else {FIELD: answer}
    found = normalise(answer, form) or normalise(alone, msgspec.structs.replace(form, field=""))
    if found is None:
        raise InputError(
            f"the right answer {reprlib.repr(answer)} is none of the form {form.form!r}, "
            "as which answers are compared"
        )
    return found


def _kept(process: Process, run_id: str, node: str, number: int) -> tuple[Memory, dict[int, Heard]]:
    """What the mixture remembers and heard, both of one execution."""
    while True:
        before, is_closed = _state(process, run_id, number)
        memory = remembered(process, run_id, before) if before is not None and is_closed else None
        if memory is None or memory.choice is None:
            status = process.ledger.run(run_id).status
            raise InputError(
                f"node {node!r} of run {run_id}, which is {status}, has no answer that could be scored"
            )
        heard = hear(process, run_id, [memory.asked[index] for index in memory.heard])
        if _state(process, run_id, number) == (before, is_closed):
            return memory, heard


def _state(process: Process, run_id: str, number: int) -> tuple[bytes | None, bool]:
    """What its last commit left, and whether its output is recorded: what it taught by itself is noted before that."""
    state = process.ledger.mailbox_state(run_id, f"{number}.{MAILBOX}")
    (output,) = process.ledger.outputs(run_id, [str(number)])
    return state, output is not None


__all__ = ["Score", "score"]
