"""What a mixture keeps in its run: what it remembers between two answers, and the answers that it heard."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mosaic_tasks.execution.observing import heard_of, with_fences
from mosaic_tasks.execution.process import Process
from mosaic_tasks.mixtures.mixture import Memory, Question
from mosaic_tasks.mixtures.values import Heard


def remembered(process: Process, run_id: str, state: bytes) -> Memory:
    """What a mixture's last commit left."""
    return msgspec.convert(process.payloads.unpack_many(run_id, [state])[0], Memory)


def hear(process: Process, run_id: str, questions: Sequence[Question]) -> dict[int, Heard]:
    """What came of questions that are answered, by their index."""
    calls = [question.call for question in questions]
    found = process.ledger.outputs(run_id, with_fences(process, calls))
    envelopes, fences = found[: len(calls)], found[len(calls) :]
    heard_of(calls, fences)
    payloads, heard = process.payloads, dict[int, Heard]()
    for question, envelope in zip(questions, envelopes, strict=True):
        if envelope is None or payloads.is_skipped(envelope) is not None:
            heard[question.index] = Heard(question.index, question.expert, failed="it was skipped")
        else:
            (value,) = payloads.unpack_many(run_id, [envelope])
            heard[question.index] = msgspec.convert(value, Heard)
    return heard


__all__ = ["hear", "remembered"]
