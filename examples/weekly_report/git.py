"""Runs git on anybody's repository: without a shell, a pager, a hook, a prompt or the network."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from weekly_report.errors import RepositoryError

TIMEOUT_S = 120.0

_KEPT = {"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES"}
_SAFE = (
    "-c", "core.fsmonitor=false",
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.quotePath=false",
    "-c", "color.ui=false",
    "-c", "log.showSignature=false",
    "-c", "protocol.allow=never",
)  # fmt: skip

# Invisible characters that could steer a terminal or turn the reading direction.
_CONTROL = dict.fromkeys(
    [
        *range(9),
        11,
        12,
        13,
        *range(14, 32),
        127,
        *range(128, 160),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    ]
)


def text(data: bytes) -> str:
    """The bytes as text: what is not UTF-8 becomes the replacement character, control characters vanish."""
    return data.decode("utf-8", "replace").translate(_CONTROL)


class Git:
    """A repository to ask.

    Raises:
        RepositoryError: the folder does not exist or belongs to no repository, or git does not work here.
    """

    def __init__(self, repo: str) -> None:
        self.folder = _folder(repo)
        self.directory = self.line("rev-parse", "--absolute-git-dir")

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """What git prints; a `RepositoryError` when it fails."""
        done = self._call(arguments, stdin)
        if done.returncode:
            raise RepositoryError(_explained(self.folder, arguments[0], text(done.stderr).strip()))
        return done.stdout

    def line(self, *arguments: str) -> str:
        """What git prints, as text without the final newline."""
        return text(self.run(*arguments)).strip()

    def maybe(self, *arguments: str) -> str | None:
        """What git prints, or None when it answers no."""
        done = self._call(arguments, b"")
        return None if done.returncode else text(done.stdout).strip()

    def _call(self, arguments: tuple[str, ...], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        command = ["git", "--no-pager", "--no-optional-locks", *_SAFE, *arguments]
        try:
            return subprocess.run(  # noqa: S603 (no shell; the arguments are ours)
                command,
                cwd=self.folder,
                env=_environment(),
                input=stdin,
                capture_output=True,
                timeout=TIMEOUT_S,
            )
        except FileNotFoundError as error:
            raise RepositoryError(
                "git was not found on PATH; install git (for example `apt install git`) and run again"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RepositoryError(
                f"git {arguments[0]} in {str(self.folder)!r} took longer than {TIMEOUT_S:.0f} s; "
                "choose a shorter period"
            ) from error
        except OSError as error:
            raise RepositoryError(
                f"git cannot run in {str(self.folder)!r} ({error.strerror}); check the folder's permissions"
            ) from error


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT}
    return kept | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "GIT_NO_LAZY_FETCH": "1"}


def _folder(repo: str) -> Path:
    if "://" in repo or repo.startswith("git@"):
        raise RepositoryError(
            f"{_without_credentials(repo)!r} is an address; "
            "clone the repository first and give the path of the clone"
        )
    if not repo or "\0" in repo:
        raise RepositoryError(f"{repo!r} is not a path; give the path of a git repository")
    folder = Path(repo).expanduser()
    if not folder.exists():
        raise RepositoryError(f"the repository {repo!r} does not exist; give the path of a git repository")
    if not folder.is_dir():
        raise RepositoryError(
            f"the repository {repo!r} is a file; give the path of a git repository's folder"
        )
    return folder


def _without_credentials(address: str) -> str:
    scheme, separator, rest = address.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2] if separator else rest


def _explained(folder: Path, command: str, complaint: str) -> str:
    where = repr(str(folder))
    if "dubious ownership" in complaint:
        return (
            f"git does not trust {where} because another user owns it; if you do, run "
            f"git config --global --add safe.directory {folder.resolve()}"
        )
    if "not a git repository" in complaint:
        return f"{where} is not a git repository; give the path of one, or run git init there"
    if "not allowed" in complaint or "promisor" in complaint or "lazy fetch" in complaint:
        return f"{where} is a partial clone without its file contents; clone it again without --filter"
    last = complaint.splitlines()[-1] if complaint else "no message"
    return f"git {command} failed in {where} ({last}); check the repository with git fsck"
