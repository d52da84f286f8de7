"""The financial report with real workers and recorded answers: what it says, and what begins before what ends."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from financial_report.source import read

from mosaic_tasks import Run, Workflow, submit
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "financial_report"
RECORDINGS = EXAMPLE / "recordings.jsonl"
MODEL = f"replay:{RECORDINGS}"
DONE_S = 60
HEADINGS = ("Overview", "Ratios", "Risks", "Outlook", "What to do", "Questions to ask", "Figures")
BATCHED = (
    "Write the next paragraph of the section",
    "Write what the risks below mean for the coming year",
    "Write the next point on what the board should do",
    "Write the next questions for the general meeting",
)
"""How the questions begin that are asked again and again."""


@pytest.fixture
def replaying(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """A worker that answers with the recordings, five times as fast as they were made."""
    monkeypatch.setenv("MOSAIC_MODEL", MODEL)
    env = {"MOSAIC_MODEL": MODEL, "MOSAIC_REPLAY_SPEED": "5"}
    queues = ["mosaic.cpu", "mosaic.api.replay"]
    workers.start("mosaic_tasks.app", queues, pool="threads", concurrency=8, env=env).wait_ready()
    return workers


def definition() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((EXAMPLE / "workflow.yaml").read_text("utf-8"))
    return loaded


def barrier() -> Workflow:
    """The same, but every node waits until those that it reads have closed, and takes them at once.

    What a batch was asked to keep short is not what the answer to all of them is.
    """
    data = definition()
    closed = {"kind": "stream", "stable": True}
    data["nodes"]["risks"]["edges"] = {"extract": "final"}
    for node in data["nodes"].values():
        kinds = node.get("edges", {})
        node["edges"] = {source: closed if kind == "stream" else "final" for source, kind in kinds.items()}
        if node.pop("batch", None):
            del node["agent"]["max_tokens"]
    return Workflow.from_data(data)


def order(run: Run) -> list[tuple[str, str]]:
    """What happened, as kind and node."""
    names = {str(number): each.name for number, each in enumerate(run.plan().nodes)}
    return [(event.kind, names[call.partition(".")[0]]) for event in run.events() for call in event.calls]


def test_the_report_is_written_while_the_annual_report_is_read(replaying: Workers) -> None:
    run = submit(Workflow.from_data(definition()))
    with run.stream() as reading:
        told = "".join(event.value for event in reading if event.kind == "text")
    report = run.result(DONE_S)
    assert told == report
    assert [line for line in report.splitlines() if line.startswith("#")] == [
        "# Ostrelle Filtration Group plc: the year 2025",
        *(f"## {heading}" for heading in HEADINGS),
    ]
    happened = order(run)
    read = happened.index(("done", "extract"))
    for early in ("ratios", "overview", "risks"):
        assert happened.index(("done", early)) < read, early
    for begun in ("risk_paragraph", "figure_section", "report"):
        assert happened.index(("claimed", begun)) < read, begun
    for before, after in pairwise(("risk_paragraph", "outlook", "actions", "questions")):
        assert happened.index(("claimed", after)) < happened.index(("done", before)), after


def test_it_says_the_same_without_streams(replaying: Workers) -> None:
    streamed, waited = submit(Workflow.from_data(definition())), submit(barrier())
    assert streamed.result(DONE_S) == waited.result(DONE_S)
    happened = order(waited)
    read = happened.index(("done", "extract"))
    assert all(happened.index(("claimed", late)) > read for late in ("ratios", "overview", "report"))
    for before, after in pairwise(("risk_paragraph", "outlook", "actions", "questions")):
        assert happened.index(("claimed", after)) > happened.index(("done", before)), after


def test_without_a_model_a_report_is_made_too(workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=8).wait_ready()
    report = submit(Workflow.from_data(definition())).result(DONE_S)
    title, *sections = report.split("\n## ")
    assert title.strip() == "# Ostrelle Filtration Group plc: the year 2025"
    assert [section.partition("\n")[0] for section in sections] == list(HEADINGS)
    for row in ("| Net margin | 7.9% |", "| Equity ratio | 41.1% |", "| Current ratio | 1.55 |"):
        assert row in report
    assert "| Gross Profit | 510.6 | EUR m | 2 |" in report
    prose = [line for line in report.splitlines() if line and line[0] not in "#|"]
    assert not [line for line in prose if line[-1] not in ".?" or line[0].islower() or "[page" in line]
    sentences = [said for line in prose for said in re.split(r"(?<=[.?]) (?=[A-Z0-9])", line)]
    assert len(sentences) > 60
    assert sorted(set(sentences)) == sorted(sentences)


def test_a_report_without_any_form_is_read_too() -> None:
    text = "The firm sells pumps. A claim of 3 million could cost us money. We expect growth in 2027."
    found = read(text)
    assert found["opening"] == text
    assert found["facts"] == [f"A danger (risk, page 1): {text}"]
    assert found["questions"] == ["What has been done about a danger since the report was written?"]
    assert read("")["facts"] == []


def test_headings_need_no_blank_lines() -> None:
    found = read("## Risks\n### Fire\nThe hall can burn.\n## Outlook\nWe expect growth.\n")
    assert found["facts"] == ["Fire (risk, page 1): The hall can burn."]


def test_the_answers_to_batches_are_together_the_one_to_all() -> None:
    recorded = [json.loads(line) for line in RECORDINGS.read_text("utf-8").splitlines()]
    by_question: dict[str, list[dict[str, Any]]] = {}
    for each in recorded:
        by_question.setdefault(each["match"][0], []).append(each)
    for question in BATCHED:
        *batches, whole = sorted(by_question[question], key=lambda each: len(each["match"]))
        assert whole["text"] == "\n\n".join(each["text"] for each in batches)
        assert whole["match"][1:] == [part for each in batches for part in each["match"][1:]]


def test_the_recorded_figures_are_those_of_the_annual_report() -> None:
    text = (EXAMPLE / "annual_report.md").read_text("utf-8")
    pages = {
        int(number): page for number, page in re.findall(r"\[page (\d+)\](.*?)(?=\[page|\Z)", text, re.DOTALL)
    }
    answer = json.loads(json.loads(RECORDINGS.read_text("utf-8").splitlines()[0])["text"])
    for figure in answer["figures"]:
        written = {f"{figure['value']:,.{digits}f}" for digits in (0, 1, 2)}
        assert any(number in pages[figure["page"]] for number in written), figure
    for name in ("revenue", "net_profit", "total_assets", "total_liabilities", "equity"):
        assert f"{answer[name]:,.1f} million euros" in pages[2], name
    for warning in answer["warnings"]:
        for sentence in re.split(r"(?<=\.) (?=[A-Z])", warning["text"]):
            assert sentence in text, sentence
