"""Git repositories made for tests."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
