"""The quiz, and the first mixture of the guide, with a real worker and recorded answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from mosaic_tasks import Record, Run, Workflow, submit
from mosaic_tasks.cli import application
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

ROOT = Path(__file__).resolve().parents[2]
QUIZ = ROOT / "examples" / "quiz"
FILE = "examples/quiz/workflow.yaml"
TABLE = re.findall(r"^\| (.+\?) \| (\S+) \| (\d) \|", (QUIZ / "README.md").read_text("utf-8"), re.MULTILINE)
"""What the README says of each question: the answer, and how many calls it takes."""
DONE_S = 60


@pytest.fixture(autouse=True)
def worker(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in a directory above `examples`, five times as fast as the recordings."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    env = {"MOSAIC_REPLAY_SPEED": "5"}
    queues = ["mosaic.cpu", "mosaic.api.replay"]
    workers.start("mosaic_tasks.app", queues, pool="async", concurrency=32, env=env).wait_ready()


def mosaic(*words: str) -> str:
    done = CliRunner().invoke(application, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def decided(run: Run) -> Record:
    run.result(DONE_S)
    record = run.mixture("answer")
    assert record is not None
    return record


def test_each_question_takes_what_the_readme_says() -> None:
    quiz = Workflow.from_file(FILE)
    tenants = (f"t{place}" for place in range(len(TABLE)))  # each has learned nothing of its experts yet
    runs = [
        submit(quiz, {"question": row[0]}, tenant=tenant) for row, tenant in zip(TABLE, tenants, strict=True)
    ]
    records = [decided(run) for run in runs]
    assert [(record.shown, str(record.asked)) for record in records] == [(row[1], row[2]) for row in TABLE]
    assert [record.by for record in records] == ["gate"] * 5 + ["synthesis"]
    assert [record.skipped_aggregator for record in records] == [True] * 5 + [False]


def test_the_gate_and_the_compared_field_save_what_the_readme_says() -> None:
    as_it_is, without_gate, whole = (
        record_with(fields) for fields in ({}, {"gate": "none"}, {"whole": True})
    )
    assert (as_it_is.asked, without_gate.asked, whole.asked) == (2, 3, 2)
    assert as_it_is.tokens < whole.tokens


def record_with(fields: dict[str, Any]) -> Record:
    """What the first question comes to, with other fields of the mixture."""
    data = yaml.safe_load(Path(FILE).read_text("utf-8"))
    data["nodes"]["answer"]["mixture"] |= fields
    return decided(submit(Workflow.from_data(data), {"question": TABLE[0][0]}))


def test_all_questions_run_as_a_batch() -> None:
    mosaic("batch", FILE, "--inputs", "examples/quiz/questions.jsonl", "--output", "answers.jsonl")
    lines = [json.loads(line) for line in Path("answers.jsonl").read_text("utf-8").splitlines()]
    assert [str(line["output"]) for line in lines] == [answer for _, answer, _ in TABLE]


def test_the_commands_of_the_readme_run() -> None:
    assert mosaic("run", FILE, "--input", f"question={TABLE[0][0]}").splitlines()[-1] == "12"
    run_id = mosaic("run", FILE, "--no-wait").strip()
    assert mosaic("result", run_id, "--wait").strip() == "Mercury"
    assert re.search(r"^physicist +1 +Mercury", mosaic("explain", run_id, "--node", "answer"), re.MULTILINE)


def test_the_first_mixture_of_the_guide_runs() -> None:
    guide = (ROOT / "docs" / "mixtures.md").read_text("utf-8")
    found = re.search(r"^```yaml\n(# quiz\.yaml\n.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert found is not None
    Path("quiz.yaml").write_text(found[1], "utf-8")
    record = decided(submit(Workflow.from_file("quiz.yaml")))
    assert (record.shown, record.asked, record.by) == ("12", 2, "gate")
