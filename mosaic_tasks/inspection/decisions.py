"""What a mixture does and came to, in words and in tables.

Pure: what it is made of, the state of what it asked, and its record in, words out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mosaic_tasks.inspection.progress import NodeView, objection
from mosaic_tasks.inspection.wording import counted, dollars, duration, listed, shortened
from mosaic_tasks.mixtures.mixture import Mixture
from mosaic_tasks.mixtures.recording import Record, Said

DECIDED_BY: Mapping[str, str] = {
    "gate": "by its gate",
    "majority": "by majority",
    "weighted": "by weight",
    "verify": "by its verifier",
    "rank": "by its verifier",
    "build": "by its aggregator",
    "synthesis": "by its aggregator",
    "budget": "at the end of its budget",
    "deadline": "at its deadline",
}
_ANSWER_WIDTH = 40
_OBJECTION_WIDTH = 100
_WHY_WIDTH = 200
_FAILURE_WIDTH = 4000  # it has a reason for each expert


def in_short(record: Record) -> str:
    """What it answers, by what, and how sure it is; or why it has no answer."""
    if record.failure:
        return shortened(record.failure, _WHY_WIDTH)
    return f"{_answer(record.shown)} {DECIDED_BY[record.by]}, confidence {record.confidence:.2f}"


def in_full(mixture: Mixture, record: Record) -> str:
    """Why it stopped and how sure it is, the votes, who was cut off or not asked, and what that saved."""
    head = shortened(record.failure, _FAILURE_WIDTH) or f"{in_short(record)}; {_why(record)}"
    return "; ".join((head, *_about(mixture, record)))


def asking(name: str, mixture: Mixture, nodes: Sequence[NodeView]) -> str:
    """Whom the mixture asks now, and whom it waits for."""
    asked = [node for node in nodes if node.asked_by == name and node.calls]
    judges = [node for node in asked if _own_name(node) in ("verifier", "aggregator")]
    experts = [node for node in asked if node not in judges]
    calls = sum(node.calls for node in experts)
    answered = sum(node.calls_done for node in experts)
    how_often = f" in {counted(calls, 'call')}" if calls > len(experts) else ""
    clauses = [f"asks {len(experts)} of {counted(len(mixture.experts), 'expert')}{how_often}"]
    clauses += [f"and its {listed([_own_name(node) for node in judges])}"] if judges else []
    return f"{' '.join(clauses)}, has {counted(answered, 'answer')}, {_awaits(asked)}"


def _awaits(asked: Sequence[NodeView]) -> str:
    waiting = [node for node in asked if not node.is_over]
    left = sum(node.calls - node.calls_done - node.calls_cut for node in waiting)
    if not left:
        return "decides any moment"
    most = " at most" if left > 1 else ""
    return f"waits for {left} more{most}: {listed([f'{_own_name(node)} ({node.state})' for node in waiting])}"


def _own_name(node: NodeView) -> str:
    return node.name.removeprefix(f"{node.asked_by}.")


def _answer(text: str) -> str:
    return repr(shortened(text, _ANSWER_WIDTH))


def _why(record: Record) -> str:
    return shortened(record.why, _WHY_WIDTH)


def _about(mixture: Mixture, record: Record) -> Iterator[str]:
    if record.votes:
        yield f"votes: {listed([f'{v.votes} for {_answer(v.answer)} ({v.probability:.2f})' for v in record.votes])}"
    if cut := [said.expert for said in record.calls if said.is_cut]:
        yield f"cut off: {listed(cut)}"
    objected = [f"{said.expert} ({shortened(why, _OBJECTION_WIDTH)})" for said, why in _objected(record)]
    if objected:
        yield f"not counted: {listed(list(dict.fromkeys(objected)))}"
    if record.unasked:
        yield f"not asked: {_unasked(mixture, record)}"
    if record.relief:
        yield record.relief
    if record.skipped_aggregator:
        yield f"its {_judge(mixture)} was not needed"
    if saved := _saved(record):
        yield f"about {saved} saved"


def _objected(record: Record) -> Iterator[tuple[Said, str]]:
    if not record.failure:  # which tells them already
        yield from ((said, why) for said in record.calls if (why := objection(said)))


def _unasked(mixture: Mixture, record: Record) -> str:
    asked = {said.expert for said in record.calls}
    names = [expert.name for expert in mixture.experts if expert.name not in asked]
    calls = counted(record.unasked, "call")
    return listed(names) if len(names) == record.unasked else f"{calls} more"


def _judge(mixture: Mixture) -> str:
    return "verifier" if mixture.synthesizer is None else "aggregator"


def _saved(record: Record) -> str:
    parts = [counted(record.saved_tokens, "token")] if record.saved_tokens else []
    parts += [dollars(record.saved_usd)] if record.saved_usd else []
    parts += [duration(record.saved_s * 1000)] if record.saved_s else []
    return listed(parts)


# -- tables ------------------------------------------------------------------------------------------------------

CALL_COLUMNS = ("EXPERT", "ROUND", "ANSWER", "NOTE", "TOKENS", "COST", "TIME")
VOTE_COLUMNS = ("ANSWER", "VOTES", "PROBABILITY")


def call_rows(record: Record) -> list[tuple[str, ...]]:
    """A row a call, by `CALL_COLUMNS`."""
    return [
        (
            said.expert,
            str(said.round),
            shortened(said.answer, _ANSWER_WIDTH),
            _note(said),
            "" if said.is_cut else str(said.tokens),
            "" if said.cost_usd is None else dollars(said.cost_usd),
            "" if said.is_cut else duration(said.seconds * 1000),
        )
        for said in record.calls
    ]


def _note(said: Said) -> str:
    if said.is_cut:
        return "cut off"
    return shortened(f"failed: {said.failed}" if said.failed else ", ".join(said.problems), _WHY_WIDTH)


def answers(record: Record) -> dict[str, str]:
    """What each expert answered last, by its name; of one that has no answer that counts, why."""
    return {
        said.expert: _answer(said.answer) if said.answer else _note(said)
        for said in record.calls
        if said.kind == "expert"
    }


def vote_rows(record: Record) -> list[tuple[str, ...]]:
    """A row an answer, by `VOTE_COLUMNS`."""
    return [
        (shortened(vote.answer, _ANSWER_WIDTH), str(vote.votes), f"{vote.probability:.2f}")
        for vote in record.votes
    ]


def totals(record: Record) -> str:
    """All calls together."""
    cost = "" if record.cost_usd is None else f", {dollars(record.cost_usd)}"
    took = duration(record.seconds * 1000)
    return f"{counted(record.asked, 'call')}, {counted(record.tokens, 'token')}{cost}, {took}"


__all__ = [
    "CALL_COLUMNS",
    "DECIDED_BY",
    "VOTE_COLUMNS",
    "asking",
    "call_rows",
    "in_full",
    "in_short",
    "totals",
    "vote_rows",
]
