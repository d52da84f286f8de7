"""The weekly report over several repositories, as docs/batches.md has it: HTML, PDF, a file each, and a webhook."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from made_repository import Repo
from pypdf import PdfReader
from receiver import receiving
from typer.testing import CliRunner

from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from tests.services import Workers

pytestmark = pytest.mark.integration
WORKFLOW = Path(__file__).resolve().parents[2] / "examples" / "weekly_report" / "workflow.yaml"


@pytest.mark.usefixtures("mosaic_process")
def test_the_weekly_report_of_several_repositories(
    tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", f"whsec_{base64.b64encode(bytes(32)).decode()}")
    monkeypatch.setenv("MOSAIC_WEBHOOK_ALLOW", "127.0.0.1")
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=4).wait_ready()
    repositories = [repository(tmp_path / name) for name in ("shop", "warehouse")]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps({'repo': path})}\n" for path in repositories))
    words = ["batch", str(WORKFLOW), "-i", "in.jsonl", "-o", "out/", "-f", "html", "-f", "pdf", "--each"]
    with receiving() as receiver:
        answer = CliRunner().invoke(application, [*words, "--title", "The week", "--webhook", receiver.url])
    assert answer.exit_code == ExitCode.OK, answer.stderr
    [(_, body)] = receiver.came
    assert json.loads(body)["data"]["reports"] == ["out/report.html", "out/report.pdf", "out/items"]
    html = (tmp_path / "out" / "report.html").read_text()
    for part in ("All 2 lines done", "Weekly report: warehouse", "Keep the &lt;b&gt;basket&lt;/b&gt;"):
        assert part in html
    pages = PdfReader(tmp_path / "out" / "report.pdf").pages
    assert "Weekly report: shop" in "".join(page.extract_text() for page in pages)
    items = sorted(path.name for path in (tmp_path / "out" / "items").iterdir())
    assert items == [
        f"0000{line}-weekly-report-{name}.{suffix}"
        for line, name in ((1, "shop"), (2, "warehouse"))
        for suffix in ("html", "pdf")
    ]


def repository(folder: Path) -> str:
    repo = Repo(folder)
    for number in range(3):
        repo.commit("Keep the <b>basket</b>\n\nIt was slow.", {f"src/{number}.py": "x\n" * 9})
    return str(folder)
