"""The commits of a period, from git."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from weekly_report.errors import PeriodError
from weekly_report.git import Git, text
from weekly_report.modules import told_apart
from weekly_report.records import Commit, FileChange, FileStatus, History, Identity, Work
from weekly_report.words import count, date_of, day, escaped, local_iso

MAX_COMMITS = 5_000
MAX_FILES = 1_000
MAX_MESSAGE = 10_000
WEEK_S = 7 * 86_400

_FIELDS = ("%H", "%P", "%aN", "%aE", "%ct", "%cI", "%aI", "%B")
_QUIET = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-show-signature")
_CHANGES = ("--find-renames", "--raw", "--no-abbrev", "--numstat")
_STATUS: dict[str, FileStatus] = {"A": "added", "D": "removed", "R": "renamed", "C": "copied"}
_CO_AUTHOR = re.compile(
    r"^[ \t]*co-authored-by:[ \t]*([^<\n]*?)[ \t]*<([^<>\n]*)>", re.IGNORECASE | re.MULTILINE
)
_REVERTS = re.compile(r"\bthis reverts commit ([0-9a-f]{7,64})", re.IGNORECASE)


def outline(repo: str = ".", since: str | None = None, until: str | None = None) -> History:
    """The commits on the checked-out branch in a period, without what they changed: that is read quickly.

    Args:
        repo: path of a git repository or of a folder in one.
        since: what `git log --since` accepts; without it the last seven days, or, when nothing
            happened in them, the seven days up to the latest commit.
        until: what `git log --until` accepts; without it now.

    Raises:
        RepositoryError: there is no usable repository.
        PeriodError: a date is not understood, or the period ends before it begins.
    """
    git = Git(repo)
    latest = _latest(git)
    first, last = _period(git, since, until, latest)
    found, paths = _outlined(git, first, last) if latest is not None else ([], [])
    shallow = git.line("rev-parse", "--is-shallow-repository") == "true"
    truncated = len(found) > MAX_COMMITS
    history = History(
        repository=_name(git),
        branch=git.maybe("symbolic-ref", "--short", "--quiet", "HEAD") or None,
        since=local_iso(first),
        until=local_iso(last),
        items=found[:MAX_COMMITS],
        split=told_apart(path for changed in paths[:MAX_COMMITS] for path in changed),
        latest=None if latest is None else local_iso(latest),
        shallow=shallow,
        truncated=truncated,
        notes=[],
    )
    history["notes"] = list(_notes(history, asked=bool(since or until)))
    return history


def changed(repo: str, outlined: Sequence[Commit]) -> list[Commit]:
    """The commits of an outline with what they changed.

    Raises:
        RepositoryError: the repository is no longer usable.
    """
    git = Git(repo)
    wanted = [commit["hash"] for commit in outlined if not (commit["merge"] or commit["boundary"])]
    lists = ("".join(f"{identifier}\n" for identifier in wanted)).encode()
    records = _log(git, "--no-walk=unsorted", "--stdin", *_CHANGES, stdin=lists) if wanted else []
    files = {text(record[0]): list(_files(iter(record[len(_FIELDS) :]))) for record in records}
    return [_with_changes(commit, files.get(commit["hash"], [])) for commit in outlined]


def whole(outline: History, works: list[Work]) -> History:
    """The history, from its outline and what everybody's commits changed; merges change nothing themselves."""
    return _joined(outline, (work["commits"] for work in works))


def commits(repo: str = ".", since: str | None = None, until: str | None = None) -> History:
    """The whole history at once; see `outline` for the arguments and what it raises."""
    found = outline(repo, since, until)
    return _joined(found, [changed(repo, found["items"])])


def _joined(outline: History, parts: Iterable[Sequence[Commit]]) -> History:
    known = {commit["hash"]: commit for part in parts for commit in part}
    return {**outline, "items": [known.get(commit["hash"], commit) for commit in outline["items"]]}


def check(repo: str = ".", since: str | None = None, until: str | None = None) -> None:
    """Raises what `outline` would raise about its arguments, without reading the commits."""
    git = Git(repo)
    _period(git, since, until, _latest(git))


def _latest(git: Git) -> int | None:
    """When the latest commit was made; None in a repository, or on a branch, without one."""
    if git.maybe("rev-parse", "--quiet", "--verify", "HEAD^{commit}") is None:
        return None
    return _number(git.line("log", "-1", "--format=%ct"))


def _period(git: Git, since: str | None, until: str | None, latest: int | None) -> tuple[int, int]:
    now = int(time.time())
    last = _moment(git, "until", until, now) if until else now
    if since:
        first = _moment(git, "since", since, now)
    else:
        if not until and latest is not None and latest < now - WEEK_S:
            last = latest
        first = last - WEEK_S
    if first >= last:
        raise PeriodError(
            f"the period from {since!r} to {until or 'now'!r} ends before it begins; choose an earlier start"
        )
    return first, last


def _moment(git: Git, name: str, value: str, now: int) -> int:
    """The Unix time that git understands; git takes what it does not understand for now."""
    answer = "" if not value.isprintable() else git.line("rev-parse", f"--{name}={value}")
    moment = _number(answer.partition("=")[2])
    is_now = abs(moment - now) <= 2 and value.strip().casefold() not in {"now", "today"}
    if moment and not is_now and _agrees(moment, value):
        return moment
    raise PeriodError(
        f"{name} {value!r} is not a date in the past that git understands; "
        "give for example '7 days ago', 'last monday' or '2026-01-31'"
    )


def _agrees(moment: int, value: str) -> bool:
    """Whether git takes what looks like `2026-01-31` for that day; it guesses at `2026-13-45`."""
    if not re.match(r"\s*\d{4}-\d\d-\d\d", value):
        return True
    try:
        day_meant = date_of(value.strip())
    except ValueError:
        return False
    return abs((date_of(local_iso(moment)) - day_meant).days) <= 1


def _name(git: Git) -> str:
    """The repository's name: the last part of where it was cloned from, else of its folder."""
    remote = git.maybe("config", "--get", "remote.origin.url") or ""
    folder = git.maybe("rev-parse", "--show-toplevel") or git.directory
    for place in (remote, folder):
        name = re.split(r"[/:\\]", place.rstrip("/"))[-1].removesuffix(".git")
        if name:
            return name
    return "repository"


def _outlined(git: Git, first: int, last: int) -> tuple[list[Commit], list[list[str]]]:
    """The commits of a period, and the paths that each of them changed."""
    period = (f"--max-age={first}", f"--min-age={last}", f"--max-count={MAX_COMMITS + 1}")
    records = _log(git, *period, "--name-only", "--no-renames", "HEAD")
    boundaries = _boundaries(git)
    found = [_commit(record, boundaries) for record in records]
    _map_co_authors(git, found)
    paths = [
        [] if commit["boundary"] else [text(path).lstrip("\n") for path in record[len(_FIELDS) :]]
        for commit, record in zip(found, records, strict=True)
    ]
    return found, [list(filter(None, names)) for names in paths]


def _log(git: Git, *arguments: str, stdin: bytes = b"") -> list[list[bytes]]:
    """The tokens of each commit that git lists: its fields, then what else was asked for."""
    marker = secrets.token_hex(16)
    fields = f"--format={marker}%x00{'%x00'.join(_FIELDS)}%x00"
    output = git.run("log", "--encoding=UTF-8", *_QUIET, "-z", fields, *arguments, "--", stdin=stdin)
    records: list[list[bytes]] = []
    for token in output.split(b"\0"):
        if token.endswith(marker.encode()):
            records.append([])
        elif records:
            records[-1].append(token)
    return records


def _commit(record: list[bytes], boundaries: frozenset[str]) -> Commit:
    fields = [text(field) for field in record[: len(_FIELDS)]]
    identifier, parents, name, email, timestamp, date, authored, message = fields
    message = message.strip()[:MAX_MESSAGE]
    author = _identity(name, email)
    moment = _number(timestamp)
    return Commit(
        hash=identifier,
        author=author,
        co_authors=_co_authors(message, author),
        date=date or local_iso(moment),
        authored=authored or date or local_iso(moment),
        timestamp=moment,
        subject=" ".join(message.partition("\n\n")[0].split()) or "(no message)",
        message=message,
        merge=len(parents.split()) > 1,
        root=not parents and identifier not in boundaries,
        boundary=identifier in boundaries,
        reverts=_REVERTS.findall(message),
        files=[],
        file_count=0,
        insertions=0,
        deletions=0,
    )


def _with_changes(commit: Commit, files: list[FileChange]) -> Commit:
    return {
        **commit,
        "files": files[:MAX_FILES],
        "file_count": len(files),
        "insertions": sum(change["insertions"] for change in files),
        "deletions": sum(change["deletions"] for change in files),
    }


def _files(tokens: Iterator[bytes]) -> Iterator[FileChange]:
    """First come the raw entries, which tell the status, then the numstat entries, which tell the lines."""
    status: dict[bytes, FileStatus] = {}
    for token in tokens:
        entry = token.lstrip(b"\n")
        if entry.startswith(b":"):
            letter = chr(entry.rsplit(b" ", 1)[-1][0])
            path = next(tokens)
            path = next(tokens) if letter in "RC" else path
            status[path] = _STATUS.get(letter, "changed")
        elif entry:
            yield _numstat(entry, tokens, status)


def _numstat(entry: bytes, tokens: Iterator[bytes], status: dict[bytes, FileStatus]) -> FileChange:
    added, removed, path = entry.split(b"\t", 2)
    old = None if path else next(tokens)
    path = path or next(tokens)
    return FileChange(
        path=text(path),
        old_path=None if old is None else text(old),
        status=status.get(path, "changed"),
        insertions=_number(text(added)),
        deletions=_number(text(removed)),
        binary=added == b"-",
    )


def _identity(name: str, email: str) -> Identity:
    email = email.strip()
    return Identity(name=" ".join(name.split()) or email.partition("@")[0] or "(no name)", email=email)


def _co_authors(message: str, author: Identity) -> list[Identity]:
    found = {email.casefold(): _identity(name, email) for name, email in _CO_AUTHOR.findall(message)}
    found.pop(author["email"].casefold(), None)
    return list(found.values())


def _map_co_authors(git: Git, found: list[Commit]) -> None:
    """Applies the mailmap to co-authors; `%aN` has already applied it to authors."""
    known = {_contact(person) for commit in found for person in commit["co_authors"]}
    asked = sorted(known)
    if not asked:
        return
    answer = git.run("check-mailmap", "--stdin", stdin="".join(f"{line}\n" for line in asked).encode())
    mapped = dict(zip(asked, text(answer).splitlines(), strict=True))
    for commit in found:
        commit["co_authors"] = [_mapped(person, mapped[_contact(person)]) for person in commit["co_authors"]]


def _contact(person: Identity) -> str:
    return f"{person['name']} <{person['email']}>"


def _mapped(person: Identity, line: str) -> Identity:
    match = re.fullmatch(r"(.*?)\s*<(.*)>", line)
    return _identity(match[1] or person["name"], match[2]) if match else person


def _boundaries(git: Git) -> frozenset[str]:
    """The commits at which a shallow clone was cut; git shows all files as added there."""
    path = Path(git.folder, git.line("rev-parse", "--git-path", "shallow"))
    return frozenset(path.read_text("ascii").split()) if path.is_file() else frozenset()


def _number(value: str) -> int:
    return int(value) if re.fullmatch(r"-?\d+", value) else 0


def _notes(history: History, *, asked: bool) -> Iterator[str]:
    latest = history["latest"]
    branch = f"The branch {escaped(history['branch'])}" if history["branch"] else "The repository"
    if latest is None:
        yield f"{branch} has no commits yet."
    elif not history["items"]:
        yield (
            f"No commit falls in this period; the latest is of {day(latest)}. "
            "Choose an earlier start to include it."
        )
    elif not asked and latest == history["until"]:
        yield (
            "Nothing was committed in the last seven days, so the report covers "
            f"the seven days up to the latest commit, of {day(latest)}."
        )
    if history["shallow"]:
        yield (
            "The repository is a shallow clone: older commits are missing and the numbers may be too low "
            "(`git fetch --unshallow` gets them)."
        )
    if history["truncated"]:
        yield f"Only the latest {count(MAX_COMMITS, 'commit')} are counted; choose a shorter period."
    if latest is not None and history["branch"] is None:
        yield "The repository is on a detached head; the report covers the commits that lead to it."
