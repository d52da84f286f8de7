"""A workflow with a mixture, and what happens to it, for the tests of what shows runs."""

from __future__ import annotations

from typing import Any

import msgspec
from made_runs import Story

from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.mixtures.recording import Record, Said, Vote

WORKFLOW = """
name: mixes
nodes:
  first: {task: t}
  answer:
    mixture:
      prompt: "{{ first }}"
      experts:
        - {name: a, model: "openai:a"}
        - {name: b, model: "openai:b"}
        - {name: slow, model: "openai:slow"}
        - {name: late, model: "openai:late", samples: 2}
      waves: 3
      gate: {kind: margin, margin: 2}
      aggregator: {kind: synthesis, model: "openai:big"}
  last: {task: t, with: {x: "${answer}"}}
output: last
"""
"""`first` is 0, `answer` 1, `last` 2, its experts 3 to 6, its aggregator 7."""
WHY = "'18' is 2 votes ahead, 2 are enough"
RECORD = Record(
    shown="18",
    confidence=0.876,
    by="gate",
    why=WHY,
    agreement=1.0,
    votes=(Vote("18", 2, 0.88), Vote("5", 1, 0.1)),
    asked=3,
    cut=1,
    unasked=2,
    skipped_aggregator=True,
    tokens=18,
    seconds=0.25,
    saved_usd=0.0012,
    saved_tokens=27,
    saved_s=1.5,
    calls=(
        Said("3.0", "a", answer="18", tokens=9, cost_usd=0.5, seconds=0.1),
        Said("4.0", "b", answer="18", tokens=9, seconds=0.2),
        Said("5.0", "slow", is_cut=True),
    ),
)


def plan() -> Plan:
    return compile_workflow(workflow())


def workflow(text: str = WORKFLOW) -> Workflow:
    return Workflow.from_yaml(text)


def asking() -> Story:
    """Three experts are asked at 20 ms; two have answered at 60 ms, and the mixture waits for the third."""
    story = (
        Story().tell(0, "opened", detail="mixes").tell(0, "ready", "0", detail="mosaic.cpu").run("0", 5, 10)
    )
    story.tell(10, "ready", "1.m", detail="mosaic.cpu").tell(15, "claimed", "1.m", holder="host/1/a")
    story.tell(20, "ready", "3.0", "4.0", "5.0", detail="mosaic.api.openai").tell(20, "idle", "1.m")
    return story.tell(30, "claimed", "3.0", "4.0", "5.0", holder="host/1/a").tell(60, "done", "3.0", "4.0")


def decided(record: Record = RECORD) -> Story:
    """The third is cut off at 80 ms, and the mixture has decided."""
    story = asking().tell(70, "claimed", "1.m", holder="host/1/a").tell(80, "cut", "5.0", holder="host/1/a")
    return story.tell(80, "decided", "1.m", detail=msgspec.json.encode(record).decode())


def over(record: Record = RECORD) -> Story:
    """... and the run is done at 110 ms."""
    story = (
        decided(record).tell(90, "done", "1.m", holder="host/1/a").tell(90, "ready", "2", detail="mosaic.cpu")
    )
    return story.run("2", 100, 110).tell(110, "closed", detail="done")


def with_calls(*calls: Said, **fields: Any) -> Record:
    """The record with other calls."""
    return msgspec.structs.replace(RECORD, calls=calls, **fields)
