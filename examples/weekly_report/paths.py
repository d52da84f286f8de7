"""What a path says about a file: who writes it, a person or a program."""

from __future__ import annotations

import re

from weekly_report.records import Commit, FileChange

_GENERATED = re.compile(
    r"(^|/)(package-lock\.json|npm-shrinkwrap\.json|yarn\.lock|pnpm-lock\.yaml|bun\.lockb?|poetry\.lock|uv\.lock|pdm\.lock"
    r"|Pipfile\.lock|Cargo\.lock|Gemfile\.lock|composer\.lock|go\.sum|flake\.lock|mix\.lock|pubspec\.lock)$"
    r"|(^|/)(node_modules|vendor|third_party|dist|__snapshots__)/"
    r"|\.min\.(js|css)$|\.(map|svg|snap|ipynb)$|_pb2(_grpc)?\.pyi?$|\.pb\.go$"
)
_TEST = re.compile(r"(^|/)(tests?|specs?|__tests__)/|(^|/)test_[^/]*$|[._-](test|spec)\.\w+$")
_SHARED = re.compile(
    r"(^|/)(changelog|changes|history|news|contributors|authors|readme)(\.\w+)?$", re.IGNORECASE
)


def is_generated(path: str) -> bool:
    """Whether a program writes the file: lock files, bundles, vendored code."""
    return bool(_GENERATED.search(path))


def is_test(path: str) -> bool:
    """Whether the file holds tests."""
    return bool(_TEST.search(path))


def is_shared(path: str) -> bool:
    """Whether everybody is expected to write to the file, as to a changelog."""
    return bool(_SHARED.search(path))


def written(commit: Commit) -> list[FileChange]:
    """The files of a commit that people write."""
    return [change for change in commit["files"] if not is_generated(change["path"])]


def weight(commit: Commit) -> int:
    """Changed lines in files that people write."""
    return sum(change["insertions"] + change["deletions"] for change in written(commit))
