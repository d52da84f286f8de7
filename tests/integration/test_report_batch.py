"""`mosaic batch` with reports and a webhook: real workers, a real receiver, a real browser, and kills in between."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from json_worker import COMMAND
from playwright.sync_api import sync_playwright
from receiver import Receiver, receiving
from typer.testing import CliRunner

from mosaic_queues.settings import Settings
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.webhooks import delivery
from tests.services import Workers

pytestmark = pytest.mark.integration
WORKFLOW = {
    "name": "reported",
    "inputs": {"topic": {"type": "string"}},
    "nodes": {"told": {"tool": "tests.integration.report_tools:told", "with": {"topic": "${inputs.topic}"}}},
    "output": "told",
}


@pytest.fixture
def place(tmp_path: Path, mosaic_process: Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a workflow and inputs."""
    (tmp_path / "reported.yaml").write_text(json.dumps(WORKFLOW))
    give(tmp_path, "shop", "object", "api")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOSAIC_WEBHOOK_SECRET", f"whsec_{base64.b64encode(bytes(32)).decode()}")
    monkeypatch.setenv("MOSAIC_WEBHOOK_ALLOW", "127.0.0.1")
    monkeypatch.setattr(delivery, "PAUSES_S", (0.0,))
    return tmp_path


@pytest.fixture
def worker(place: Path, workers: Workers) -> None:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started


def give(place: Path, *topics: str) -> None:
    (place / "in.jsonl").write_text("".join(f"{json.dumps({'topic': topic})}\n" for topic in topics))


WORDS = ("batch", "reported.yaml", "--inputs", "in.jsonl")


def batch(*more: str) -> Any:
    return CliRunner().invoke(application, [*WORDS, *more], catch_exceptions=False)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# -- files -------------------------------------------------------------------------------------------------


def test_a_folder_gets_results_reports_and_a_file_a_line(place: Path, worker: None) -> None:
    give(place, "shop", "bad", "object")
    answer = batch(
        "--output", "out/", "-f", "html", "-f", "pdf", "-f", "markdown", "--each", "--title", "Week"
    )
    assert answer.exit_code == ExitCode.PARTLY
    assert answer.stderr.splitlines()[-1] == (
        "1 of 3 lines failed: line 2 of in.jsonl; results: out/results.jsonl; "
        "reports: out/report.html, out/report.pdf, out/report.md, out/items"
    )
    items = [
        f"items/{name}.{suffix}"
        for name in ("00001-report-shop", "00003-object")
        for suffix in ("html", "md", "pdf")
    ]
    assert names(place / "out") == [
        ".results.jsonl.batch",
        *items,
        "report.html",
        "report.md",
        "report.pdf",
        "results.jsonl",
    ]
    html = (place / "out" / "report.html").read_text()
    assert "<h1>Week</h1>" in html
    assert "--format markdown --each --title Week" in html
    assert "the topic &lt;b&gt;bad&lt;/b&gt; is not known" in html
    again = batch(
        "--output", "out/", "-f", "html", "-f", "pdf", "-f", "markdown", "--each", "--title", "Week"
    )
    assert again.stderr.splitlines()[-1] == answer.stderr.splitlines()[-1]
    assert (place / "out" / "report.html").read_text() == html


@pytest.mark.parametrize(
    ("output", "formats", "made"),
    [
        ("a.html", (), ["a.html", "a.jsonl"]),
        ("a.md", (), ["a.jsonl", "a.md"]),
        ("a.jsonl", (), ["a.jsonl"]),
        ("a.txt", (), ["a.txt"]),
        ("a.jsonl", ("html", "markdown"), ["a.html", "a.jsonl", "a.md"]),
        ("a.html", ("html", "markdown"), ["a.html", "a.jsonl", "a.md"]),
        ("new/", (), ["new/report.html", "new/results.jsonl"]),
        ("new/", ("jsonl",), ["new/results.jsonl"]),
    ],
)
def test_the_format_is_that_of_the_suffix_or_the_one_that_is_given(
    place: Path, worker: None, output: str, formats: tuple[str, ...], made: list[str]
) -> None:
    before = set(names(place))
    assert (
        batch("--output", output, *(word for each in formats for word in ("-f", each))).exit_code
        == ExitCode.OK
    )
    found = set(names(place)) - before
    assert sorted(name for name in found if "home/" not in name and not name.endswith(".batch")) == made


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--output", "a.html", "-f", "pdf"), "ends as html does, and --format asks for pdf"),
        (("--output", "a.jsonl", "--each"), "--each and --template are for reports"),
        (("--format", "html"), "with it name the place of the results"),
        (("--output", "a.html", "--template", "none.md"), "the template 'none.md' cannot be used"),
        (("--output", "a.jsonl", "--webhook", "http://10.0.0.1/"), "has no TLS"),
        (("--output", "a.jsonl", "--webhook", "https://169.254.169.254/"), "no public address"),
        (("--output", "s3://bucket/\udcff/"), "characters that URLs have not"),
        (("--webhook", "https://example.org/"), "with it name the place of the results"),
        (("--output", "a.jsonl", "-f", "docx"), "docx"),
    ],
)
@pytest.mark.leaves("keys", reason="nothing is started")
def test_what_cannot_be_is_told_before_anything_runs(
    place: Path, words: tuple[str, ...], reason: str
) -> None:
    answer = CliRunner().invoke(application, [*WORDS, *words])
    assert answer.exit_code == ExitCode.USAGE
    assert reason in " ".join(answer.stderr.replace("│", " ").split())
    assert not (place / "a.jsonl").exists()


def test_an_object_store_is_gone_on_with_from_another_machine(
    place: Path, worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{place}/store/week-48/"
    answer = batch("--output", url, "--json")
    told = json.loads(answer.stdout)
    assert (answer.exit_code, told["earlier"]) == (ExitCode.OK, 0)
    assert told["output"] == f"file://{place}/store/week-48/results.jsonl"
    assert told["reports"] == [f"file://{place}/store/week-48/report.html"]
    assert names(place / "store" / "week-48") == ["report.html", "results.jsonl"]
    (place / "home" / "batches").rename(place / "lost")
    assert json.loads(batch("--output", url, "--json").stdout)["earlier"] == 3
    assert json.loads(batch("--output", f"{url}named.md", "--json").stdout)["earlier"] == 0
    assert {"named.md", "named.jsonl"} < set(names(place / "store" / "week-48"))


def test_a_report_goes_with_its_results(place: Path, worker: None) -> None:
    give(place, "shop", "bad")
    assert batch("--output", "out.html").exit_code == ExitCode.PARTLY
    give(place, "shop", "mended")
    assert batch("--output", "out.html").exit_code == ExitCode.OK
    html = (place / "out.html").read_text()
    assert "All 2 lines done" in html
    assert "Report: mended" in html


_KILLED = """
import os, signal, sys
from mosaic_tasks.cli import application
from mosaic_tasks.reports import making

pieces = making._report_pieces

def killed(work, wanted):
    for piece in pieces(work, wanted):
        yield piece[: len(piece) // 2]
        os.kill(os.getpid(), signal.SIGKILL)

making._report_pieces = killed
application(sys.argv[1:])
"""


def test_a_kill_while_a_report_is_written_leaves_the_old_one(place: Path, worker: None) -> None:
    words = ("--output", "out/", "--format", "markdown")
    assert batch(*words).exit_code == ExitCode.OK
    old = (place / "out" / "report.md").read_bytes()
    give(place, "shop", "object", "api", "new")
    killed = subprocess.run([sys.executable, "-c", _KILLED, *WORDS, *words], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert (place / "out" / "report.md").read_bytes() == old
    assert batch(*words).exit_code == ExitCode.OK
    assert b"Report: new" in (place / "out" / "report.md").read_bytes()
    assert [name for name in names(place / "out") if "fresh" in name] == []


def test_a_page_runs_nothing_loads_nothing_and_keeps_its_style(place: Path, worker: None) -> None:
    assert batch("--output", "out.html").exit_code == ExitCode.OK
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM)
        page = browser.new_page()
        page.on("request", lambda request: said.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto((place / "out.html").as_uri())
        assert page.title() == "reported"
        assert page.locator("h1").inner_text() == "reported"
        assert '<script>document.title = "owned"</script>' in page.locator("#line-1").inner_text()
        assert page.locator("script, img, iframe").count() == 0
        assert page.locator("td.number").last.evaluate("each => getComputedStyle(each).textAlign") == "right"
        page.locator("a[href='#line-3']").click()
        assert page.url.endswith("#line-3")
        browser.close()
    assert said == [(place / "out.html").as_uri()]


CHROMIUM = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


# -- the webhook ---------------------------------------------------------------------------------------------


def test_the_end_is_told_once(place: Path, worker: None, receiver: Receiver) -> None:
    give(place, "shop", "bad")
    words = ("--output", "out.html", "--name", "Weekly", "--webhook", receiver.url)
    answer = batch(*words)
    assert answer.exit_code == ExitCode.PARTLY
    [(headers, body)] = receiver.came
    told = json.loads(body)
    data = told["data"]
    assert (told["type"], told["timestamp"]) == ("batch.completed", data["ended"])
    assert data["started"] <= data["ended"]
    assert {name: data[name] for name in ("batch", "workflow", "lines", "done", "failed", "results", "reports")} == {
        "batch": "Weekly", "workflow": "reported", "lines": 2, "done": 1, "failed": 1,
        "results": "out.jsonl", "reports": ["out.html"],
    }  # fmt: skip
    assert headers["webhook-id"].startswith("msg_")
    assert batch(*words).exit_code == ExitCode.PARTLY
    assert len(receiver.came) == 1
    give(place, "shop", "mended")
    assert batch(*words).exit_code == ExitCode.OK
    assert len(set(receiver.ids())) == 2
    assert receiver.url not in (place / "out.html").read_text()


def test_who_could_not_be_told_is_told_by_the_same_command(
    place: Path, worker: None, receiver: Receiver
) -> None:
    receiver.statuses = [(500, {}), (503, {})]
    words = ("--output", "out.jsonl", "--webhook", receiver.url)
    answer = batch(*words)
    assert answer.exit_code == ExitCode.FAILED
    assert "; the webhook was not told: http://127.0.0.1:" in answer.stderr.splitlines()[-1]
    assert answer.stderr.splitlines()[-1].endswith("answers with status 503")
    assert "/hook" not in answer.stderr
    receiver.statuses = [(500, {})] * 2
    assert json.loads(batch(*words, "--json").stdout)["undelivered"].endswith("status 500")
    assert batch(*words).exit_code == ExitCode.OK
    assert len(receiver.came) == 5
    assert len({(headers["webhook-id"], body) for headers, body in receiver.came}) == 1


def test_a_kill_before_it_is_noted_that_the_end_was_told_tells_it_again_with_the_same_id(
    place: Path, worker: None, receiver: Receiver
) -> None:
    words = ("--output", "out.jsonl", "--webhook", receiver.url)
    receiver.before = lambda: killed.kill()
    killed = subprocess.Popen(
        [*COMMAND, *WORDS, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert killed.wait() == -signal.SIGKILL
    receiver.before = lambda: None
    assert batch(*words).exit_code == ExitCode.OK
    assert batch(*words).exit_code == ExitCode.OK
    assert len(receiver.came) == 2
    assert receiver.came[0][1] == receiver.came[1][1]
    assert len(set(receiver.ids())) == 1
