"""The weekly report's history on real repositories, odd ones included."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from weekly_report import history as history_module
from weekly_report.errors import PeriodError, RepositoryError
from weekly_report.history import commits
from weekly_report.people import people
from weekly_report.problems import problems
from weekly_report.records import Report
from weekly_report.tickets import tickets

pytestmark = pytest.mark.integration

NOW = datetime.now(UTC).replace(microsecond=0)


class Repo:
    """A repository under construction: each commit is an hour later than the one before."""

    def __init__(self, folder: Path, *, start: datetime = NOW - timedelta(days=3)) -> None:
        self.folder = folder
        self.clock = start
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str | bytes, author: str = "Author One <one@example.org>") -> str:
        name, _, email = author.rstrip(">").partition(" <")
        when = self.clock.isoformat()
        env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": name,
            "GIT_AUTHOR_EMAIL": email,
            "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": email,
            "GIT_AUTHOR_DATE": when,
            "GIT_COMMITTER_DATE": when,
        }
        done = subprocess.run(["git", *arguments], cwd=self.folder, env=env, capture_output=True, check=True)
        return done.stdout.decode("utf-8", "replace").strip()

    def commit(
        self,
        message: str | bytes,
        files: dict[str, str | bytes] | None = None,
        *,
        author: str = "Author One <one@example.org>",
    ) -> str:
        for path, content in (files or {}).items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.clock += timedelta(hours=1)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message, author=author)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "shop")


def test_a_commit_is_read_with_all_it_says(repo: Repo) -> None:
    identifier = repo.commit(
        "Add a parser\n\nIt reads numbers.\n\nCo-authored-by: Author Two <two@example.org>\n",
        {"src/a.py": "1\n2\n3\n", "logo.png": b"\x00\x01"},
    )
    history = commits(str(repo.folder))
    [commit] = history["items"]
    assert commit["hash"] == identifier
    assert commit["author"] == {"name": "Author One", "email": "one@example.org"}
    assert commit["co_authors"] == [{"name": "Author Two", "email": "two@example.org"}]
    assert commit["subject"] == "Add a parser"
    assert "It reads numbers." in commit["message"]
    assert datetime.fromisoformat(commit["date"]) == repo.clock
    assert (commit["insertions"], commit["deletions"], commit["root"]) == (3, 0, True)
    binary, text = commit["files"]
    assert (binary["path"], binary["binary"], binary["insertions"]) == ("logo.png", True, 0)
    assert (text["path"], text["status"], text["insertions"]) == ("src/a.py", "added", 3)
    assert (history["repository"], history["branch"], history["notes"]) == ("shop", "main", [])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(history)) == history


def test_a_rename_is_one_file_with_its_old_name(repo: Repo) -> None:
    repo.commit("One", {"a b.txt": "x\n" * 20})
    (repo.folder / "a b.txt").rename(repo.folder / "tab\tnew\nline.txt")
    repo.commit("Two")
    [change] = commits(str(repo.folder))["items"][0]["files"]
    assert change["status"] == "renamed"
    assert change["old_path"] == "a b.txt"
    assert change["path"] == "tab\tnew\nline.txt"


def test_a_merge_is_flagged_and_counts_no_line_twice(repo: Repo) -> None:
    repo.commit("Base", {"a.txt": "1\n"})
    repo.git("checkout", "--quiet", "-b", "side")
    repo.commit("On the side", {"b.txt": "1\n2\n"})
    repo.git("checkout", "--quiet", "main")
    repo.commit("On main", {"c.txt": "1\n"})
    repo.git("merge", "--quiet", "--no-ff", "-m", "Merge branch 'side'", "side")
    items = commits(str(repo.folder))["items"]
    assert [commit["merge"] for commit in items].count(True) == 1
    assert sum(commit["insertions"] for commit in items) == 4
    assert next(commit for commit in items if commit["merge"])["files"] == []


def test_declared_latin_1_is_decoded_and_undeclared_bytes_never_crash(repo: Repo) -> None:
    repo.git("config", "i18n.commitEncoding", "ISO-8859-1")
    repo.commit("Größe".encode("latin-1"), {"a.txt": "1\n"})
    repo.git("config", "--unset", "i18n.commitEncoding")
    repo.commit("to be replaced", {"a.txt": "2\n"})
    commit = subprocess.run(
        ["git", "cat-file", "commit", "HEAD"], cwd=repo.folder, capture_output=True, check=True
    )
    odd = commit.stdout.replace(b"to be replaced", b"bad \xff bytes").replace(b"Author One", b"Auth\xf6r One")
    (repo.folder / "odd").write_bytes(odd)
    repo.git("reset", "--quiet", "--hard", repo.git("hash-object", "-w", "-t", "commit", "odd"))
    second, first = commits(str(repo.folder))["items"]
    assert first["subject"] == "Größe"
    assert second["subject"] == "bad \N{REPLACEMENT CHARACTER} bytes"
    assert second["author"]["name"] == "Auth\N{REPLACEMENT CHARACTER}r One"


def test_a_file_name_that_is_not_utf_8_is_shown_with_replacements(repo: Repo) -> None:
    repo.commit("Base")
    blob = repo.git("hash-object", "-w", "--stdin")
    repo.git("update-index", "--add", "--cacheinfo", b"100644," + blob.encode() + b",caf\xe9.txt")
    repo.clock += timedelta(hours=1)
    repo.git("commit", "--quiet", "-m", "Odd name")
    history = commits(str(repo.folder))
    assert history["items"][0]["files"][0]["path"] == "caf\N{REPLACEMENT CHARACTER}.txt"
    assert msgspec.msgpack.encode(history)


def test_control_characters_of_a_message_do_not_reach_the_terminal(repo: Repo) -> None:
    repo.commit("red \x1b[31m and \u202eturned", {"a.txt": "1\n"})
    assert commits(str(repo.folder))["items"][0]["subject"] == "red [31m and turned"


def test_a_repository_without_commits_gives_an_empty_report(repo: Repo) -> None:
    history = commits(str(repo.folder))
    assert history["items"] == []
    assert history["latest"] is None
    assert history["notes"] == ["The branch main has no commits yet."]


def test_the_oldest_commit_of_a_shallow_clone_claims_no_changes(repo: Repo, tmp_path: Path) -> None:
    repo.commit("One", {"a.txt": "1\n" * 50})
    repo.commit("Two", {"b.txt": "1\n"})
    repo.commit("Three", {"c.txt": "1\n"})
    repo.git("clone", "--quiet", "--depth=2", f"file://{repo.folder}", str(tmp_path / "clone"))
    history = commits(str(tmp_path / "clone"))
    assert history["shallow"]
    assert [commit["boundary"] for commit in history["items"]] == [False, True]
    assert [commit["insertions"] for commit in history["items"]] == [1, 0]
    assert "shallow clone" in history["notes"][0]
    assert history["repository"] == "shop"


def test_a_detached_head_and_a_bare_repository_are_read(repo: Repo, tmp_path: Path) -> None:
    repo.commit("One", {"a.txt": "1\n"})
    repo.git("checkout", "--quiet", "--detach")
    repo.git("clone", "--quiet", "--bare", str(repo.folder), str(tmp_path / "bare.git"))
    detached = commits(str(repo.folder))
    assert detached["branch"] is None
    assert "detached head" in detached["notes"][-1]
    assert len(commits(str(tmp_path / "bare.git"))["items"]) == 1


def test_a_revert_names_what_it_took_back_and_why(repo: Repo) -> None:
    bad = repo.commit("Cache rates", {"a.txt": "1\n"})
    repo.clock += timedelta(hours=1)
    repo.git("revert", "--no-edit", bad)
    message = repo.git("log", "-1", "--format=%B")
    repo.git("commit", "--quiet", "--amend", "-m", f"{message}\n\nThe rates were stale. More later.")
    history = commits(str(repo.folder))
    assert history["items"][0]["reverts"] == [bad]
    [problem] = problems(history, tickets(None))["items"]
    assert problem["kind"] == "revert"
    assert problem["evidence"] == [history["items"][0]["hash"], bad]
    assert problem["title"] == "“Cache rates” was reverted"
    assert problem["detail"].endswith("The reason given: The rates were stale.")


def test_the_mailmap_joins_authors_and_co_authors(repo: Repo) -> None:
    mailmap = "Author Two <two@example.org> <old@example.net>\n"
    repo.commit("One", {".mailmap": mailmap}, author="A. Two <old@example.net>")
    repo.commit("Two\n\nCo-authored-by: Somebody <old@example.net>", {"b.txt": "1\n"})
    history = commits(str(repo.folder))
    assert history["items"][1]["author"]["name"] == "Author Two"
    assert history["items"][0]["co_authors"] == [{"name": "Author Two", "email": "two@example.org"}]
    assert {person["name"] for person in people(history, tickets(None))["items"]} == {
        "Author One",
        "Author Two",
    }


def test_an_empty_period_tells_the_latest_commit(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "old", start=datetime(2024, 2, 28, 23, tzinfo=UTC))
    repo.commit("One", {"a.txt": "1\n"})
    history = commits(str(repo.folder), since="7 days ago")
    assert history["items"] == []
    assert "the latest is of" in history["notes"][0]
    assert "February 2024" in history["notes"][0]


def test_without_a_start_a_quiet_repository_reports_its_last_active_week(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "old", start=datetime(2024, 2, 28, 12, tzinfo=UTC))
    repo.commit("One", {"a.txt": "1\n"})
    history = commits(str(repo.folder))
    assert len(history["items"]) == 1
    assert "the seven days up to the latest commit" in history["notes"][0]


def test_a_young_repository_fills_the_default_period(repo: Repo) -> None:
    repo.commit("One", {"a.txt": "1\n"})
    assert len(commits(str(repo.folder))["items"]) == 1
    assert len(commits(str(repo.folder), since="")["items"]) == 1


def test_the_period_has_both_ends(repo: Repo) -> None:
    repo.commit("One")
    middle = repo.clock + timedelta(minutes=30)
    repo.commit("Two")
    before = commits(str(repo.folder), since="1 month ago", until=middle.isoformat())
    after = commits(str(repo.folder), since=middle.isoformat())
    assert [commit["subject"] for commit in before["items"]] == ["One"]
    assert [commit["subject"] for commit in after["items"]] == ["Two"]


@pytest.mark.parametrize(
    "since", ["blah", "--output=/tmp/x", "7 days ago\n--all", "2098-01-01", "2199-01-01", "2026-13-45", "\0"]
)
def test_a_date_that_git_does_not_understand_is_refused(repo: Repo, since: str) -> None:
    repo.commit("One")
    with pytest.raises(PeriodError, match=r"give for example|ends before it begins"):
        commits(str(repo.folder), since=since)


def test_more_commits_than_the_limit_are_cut_and_the_report_says_so(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "MAX_COMMITS", 2)
    for subject in ("One", "Two", "Three"):
        repo.commit(subject)
    history = commits(str(repo.folder))
    assert [commit["subject"] for commit in history["items"]] == ["Three", "Two"]
    assert history["truncated"]
    assert "2 commits" in history["notes"][0]


def _missing(tmp_path: Path) -> str:
    return str(tmp_path / "nowhere")


def _file(tmp_path: Path) -> str:
    (tmp_path / "file").write_text("x")
    return str(tmp_path / "file")


def _plain(tmp_path: Path) -> str:
    (tmp_path / "plain").mkdir()
    return str(tmp_path / "plain")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (_missing, "does not exist"),
        (_file, "is a file"),
        (_plain, "is not a git repository"),
        (lambda _: "", "is not a path"),
        (lambda _: "-C", "does not exist"),
        (
            lambda _: "https://user:secret@example.org/shop.git",
            "'https://example.org/shop.git' is an address",
        ),
    ],
)
def test_an_unusable_place_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[Path], str], words: str
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(RepositoryError, match=words) as caught:
        commits(place(tmp_path))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_machine_without_git_is_told_what_to_install(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repo.folder))
    with pytest.raises(RepositoryError, match="install git"):
        commits(str(repo.folder))


def test_the_environment_and_the_repository_cannot_steer_git(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.commit("One", {"a.txt": "1\n"})
    trap = tmp_path / "trap"
    script = tmp_path / "trap.sh"
    script.write_text(f"#!/bin/sh\ntouch {trap}\n")
    script.chmod(0o755)
    for name in ("diff.external", "core.fsmonitor", "core.pager"):
        repo.git("config", name, str(script))
    for name, value in (("log.showSignature", "true"), ("color.ui", "always"), ("diff.renames", "false")):
        repo.git("config", name, value)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(script))
    assert len(commits(str(repo.folder))["items"]) == 1
    assert not trap.exists()


def test_a_damaged_repository_is_told_with_a_way_on(repo: Repo) -> None:
    repo.commit("One", {"a.txt": "1\n"})
    tree = repo.git("rev-parse", "HEAD^{tree}")
    (repo.folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(RepositoryError, match="git fsck"):
        commits(str(repo.folder))


WORKFLOW = Path(history_module.__file__).with_name("workflow.yaml")


def _filled(value: Any, outputs: dict[str, Any]) -> Any:
    """A binding of the workflow: `${node.path}` replaced by what the node gave."""
    if not (isinstance(value, str) and value.startswith("${")):
        return value
    found: Any = outputs
    for step in value[2:-1].split("."):
        found = found[step]
    return found


def _wrote(agent: dict[str, Any], names: dict[str, Any]) -> str:
    """A writer that repeats its facts."""
    template = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(
        agent["prompt"]
    )
    return template.render(**names).partition("\nFACTS:\n")[2].strip()


def _run(**inputs: Any) -> Report:
    """Runs the nodes of workflow.yaml in their order, without the engine."""
    workflow = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    defaults = {name: spec["default"] for name, spec in workflow["inputs"].items()}
    outputs: dict[str, Any] = {"inputs": defaults | inputs}
    for name, node in workflow["nodes"].items():
        if "tool" in node:
            module, _, function = node["tool"].partition(":")
            bound = {key: _filled(value, outputs) for key, value in node["with"].items()}
            result = getattr(importlib.import_module(module), function)(**bound)
        elif "for_each" in node:
            items = _filled(node["for_each"], outputs)
            result = [_wrote(node["agent"], outputs | {node["as"]: item}) for item in items]
        else:
            result = _wrote(node["agent"], outputs)
        outputs[name] = msgspec.msgpack.decode(msgspec.msgpack.encode(result))
    report: Report = outputs[workflow["output"]]
    return report


def test_the_workflow_from_repository_and_tickets_to_the_whole_report(repo: Repo, tmp_path: Path) -> None:
    two = "Author Two <two@example.org>"
    repo.commit("Add the parser\n\nIt reads numbers as they stream.", {"src/parser/a.py": "1\n" * 40})
    repo.commit("Fix A-1: <script>alert('x')</script>", {"src/lexer/b.py": "1\n2\n"}, author=two)
    bad = repo.commit("Cache tokens", {"docs/c.md": "1\n"}, author=two)
    repo.git("revert", "--no-edit", bad)
    due = (NOW + timedelta(days=2)).date()
    export = tmp_path / "tickets.txt"
    export.write_text(f"id,title,status,assignee,due\nA-1,Mend <b>,open,Author Two,{due}\n")
    report = _run(repo=str(repo.folder), tickets=str(export), title="The week")
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


def test_the_workflow_of_a_repository_without_commits_ends_with_a_report(repo: Repo) -> None:
    report = _run(repo=str(repo.folder))
    assert "The branch main has no commits yet." in report["markdown"]
    assert "##" not in report["markdown"]
    assert report["people"] == []
