"""The weekly report's history on real repositories, odd ones included."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from weekly_report import history as history_module
from weekly_report.errors import PeriodError, RepositoryError
from weekly_report.history import commits
from weekly_report.people import people
from weekly_report.problems import problems
from weekly_report.tickets import tickets

from tests.integration.made_repository import Repo

pytestmark = pytest.mark.integration


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
