"""The weekly report with real workers: sections are written while commits still load, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis

from mosaic_tasks import Run, Workflow, submit
from tests.integration.made_repository import NOW, Repo
from tests.integration.stream_tools import GATE_S, open_gate
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]

WORKFLOW = Path(__file__).resolve().parents[2] / "examples" / "weekly_report" / "workflow.yaml"
TICKETS = """id,title,status,assignee,due,closed
A-1,Mend the <b>lexer</b>,open,Author Two,{due},
A-2,Read numbers,done,Author Most,,{closed}
A-3,Nobody's,open,,{due},
"""


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "shop")


@pytest.fixture
def worker(workers: Workers) -> Workers:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=8).wait_ready()
    return workers


def many_hands(repo: Repo) -> Path:
    """A week of many authors, merged identities, co-authors, a bot, a revert and a merge; returns its tickets."""
    most, two, late = "Author Most <m@example.org>", "Author Two <two@example.org>", "A. Most <m@example.org>"
    together = (
        "\n\nCo-authored-by: Author Two <two@example.org>\nCo-authored-by: Old Name <m@old.example.org>"
    )
    repo.commit("Map", {".mailmap": "Author Most <m@example.org> <m@old.example.org>\n"}, author=most)
    for number in range(12):
        author = f"Author {number} <a{number}@example.org>"
        paths = {f"src/part{number % 3}/f{number}.py": "1\n" * (number + 1), "src/common.py": f"{number}\n"}
        repo.commit(f"Add {number}\n\nIt adds the part {number} of it all.{together}", paths, author=author)
    for number in range(9):
        author = late if number % 2 else most
        repo.commit(f"A-2: step {number}", {f"lib/s{number}.py": "x\n" * 9 * number}, author=author)
    bad = repo.commit("Cache tokens", {"docs/c.md": "1\n"}, author=two)
    repo.git("revert", "--no-edit", bad)
    repo.commit("Bump", {"uv.lock": "1\n" * 500}, author="renovate[bot] <b@users.noreply.github.com>")
    repo.git("checkout", "--quiet", "-b", "side")
    repo.git("mv", "src/part0/f0.py", "src/moved.py")
    repo.commit("Move it", author=two)
    repo.git("checkout", "--quiet", "main")
    repo.git("merge", "--quiet", "--no-ff", "-m", "Merge branch 'side'", "side", author=two)
    export = repo.folder.parent / "tickets.csv"
    due = (NOW + timedelta(days=2)).date()
    export.write_text(TICKETS.format(due=due, closed=(NOW - timedelta(days=1)).date()))
    return export


def workflow(**changes: dict[str, Any]) -> Workflow:
    """The example with some options of its nodes changed."""
    data = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    for name, options in changes.items():
        data["nodes"][name].update(options)
    return Workflow.from_data(data)


def barrier() -> Workflow:
    """The same without streams: every node waits until those that it reads have closed."""
    closed = {"kind": "stream", "stable": True}
    return workflow(
        work={"edges": {"assignments": "final"}},
        briefs={"edges": {"work": closed}},
        sections={"edges": {"briefs": "final"}},
        drafts={"edges": dict.fromkeys(("briefs", "sections"), closed)},
        edited={"edges": {"drafts": "final"}},
        document={"edges": dict.fromkeys(("front", "overview", "body", "sections", "edited"), closed)},
    )


def run(flow: Workflow, repo: Repo, **inputs: Any) -> Run:
    return submit(flow, {"repo": str(repo.folder), **inputs})


def calls_done(started: Run, *nodes: str) -> Iterator[tuple[str, str]]:
    """Node and call of what is done, in its order, as it happens."""
    names = {str(number): each.name for number, each in enumerate(started.plan().nodes)}
    for event in started.events(follow=True):
        for call in event.calls if event.kind == "done" else ():
            if (name := names[call.partition(".")[0]]) in nodes:
                yield name, call


def test_sections_and_the_report_begin_while_commits_load(
    worker: Workers, repo: Repo, redis_client: Redis
) -> None:
    export = many_hands(repo)
    gated = workflow(work={"tool": "tests.integration.weekly_report_tools:gated_work"})
    started = run(gated, repo, tickets=str(export))
    with started.stream("document") as text:
        first = next(iter(text))
    assert first.value.startswith("# Weekly report: shop\n")
    done = calls_done(started, "work", "sections", "edited")
    assert next(node for node, _ in done if node == "edited")
    open_gate(redis_client, "last")
    later = {node for node, call in done if call.partition(".")[2].isdecimal()}
    assert later == {"work", "sections", "edited"}
    assert started.result(GATE_S)["people"][0] == "Author Most"


def test_the_report_is_that_of_a_run_without_streams(worker: Workers, repo: Repo) -> None:
    export = many_hands(repo)
    until = {"tickets": str(export), "since": (NOW - timedelta(days=5)).isoformat()}
    streamed, waited = run(workflow(), repo, **until), run(barrier(), repo, **until)
    report = streamed.result(GATE_S)
    assert report["markdown"] == streamed.node_output("document")
    assert streamed.node_output("edited") == streamed.node_output("sections")
    assert report == waited.result(GATE_S)
    for part in (
        "15 people made 25 commits and 1 merge",
        "2 commits · 12 co-written",
        "Author Two also co-wrote 12 commits of others.",
        "Author Most closed A-2 “Read numbers”.",
        "Bots committed too: renovate[bot] (1 commit).",
    ):
        assert part in report["markdown"], part
    assert "Old Name" not in report["markdown"]
    assert report["people"].count("Author Most") == 1


def test_from_repository_and_tickets_to_the_whole_report(worker: Workers, repo: Repo, tmp_path: Path) -> None:
    two = "Author Two <two@example.org>"
    repo.commit("Add the parser\n\nIt reads numbers as they stream.", {"src/parser/a.py": "1\n" * 40})
    repo.commit("Fix A-1: <script>alert('x')</script>", {"src/lexer/b.py": "1\n2\n"}, author=two)
    bad = repo.commit("Cache tokens", {"docs/c.md": "1\n"}, author=two)
    repo.git("revert", "--no-edit", bad)
    due = (NOW + timedelta(days=2)).date()
    export = tmp_path / "tickets.txt"
    export.write_text(f"id,title,status,assignee,due\nA-1,Mend <b>,open,Author Two,{due}\n")
    report = run(workflow(), repo, tickets=str(export), title="The week").result(GATE_S)
    lines = report["markdown"].splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "# The week",
        "## Key figures",
        "## Highlights",
        "## Where the work went",
        "## Who did what",
        "### Author One",
        "### Author Two",
        "## Problems",
        "## Next week",
        "## All commits",
    ]
    for part in (
        "2 people made 4 commits in 3 files (43 lines added, 1 removed).",
        "“Add the parser” (",
        "It reads numbers as they stream.",
        "“Cache tokens” was reverted.",
        "Next for Author Two: A-1 “Mend &lt;b>”",
        "says it is done, which needs a check",
        "| `src/parser` | 1 | 1 | 40 | 0 | Author One |",
    ):
        assert part in report["markdown"], part
    assert "<script" not in report["markdown"] + report["html"]
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;" in report["html"]
    assert report["title"] == "The week"


def test_where_the_editor_fails_the_sections_stand_as_they_were_written(worker: Workers, repo: Repo) -> None:
    for number, author in enumerate(("Author One <one@example.org>", "Author Two <two@example.org>")):
        repo.commit(f"Change {number}", {f"src/f{number}.py": "1\n" * 40}, author=author)
    broken = workflow(edited={"agent": {"prompt": "{{ draft.nothing.at_all }}"}, "retry": 1})
    plain, unedited = run(workflow(), repo), run(broken, repo)
    report = unedited.result(GATE_S)
    assert unedited.node_output("edited") == [None, None]
    assert report["markdown"] == plain.result(GATE_S)["markdown"]


def test_the_workflow_of_a_repository_without_commits_ends_with_a_report(worker: Workers, repo: Repo) -> None:
    report = run(workflow(), repo).result(GATE_S)
    assert "The branch main has no commits yet." in report["markdown"]
    assert "##" not in report["markdown"]
    assert report["people"] == []
