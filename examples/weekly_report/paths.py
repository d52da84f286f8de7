"""What a path says about a file: whether its lines tell how much somebody worked."""

from __future__ import annotations

import re
from collections.abc import Iterable

from weekly_report.records import Commit, FileChange

_BULK = re.compile(
    r"(^|/)(pnpm-lock\.yaml|bun\.lockb|go\.sum|lock\.txt|[^/]*\.lock(file|\.txt)?)$"
    r"|(^|/)(node_modules|vendor(ed)?|third_party|dist|__snapshots__|generated)/"
    r"|\.(jsonl?|ndjson|geojson|csv|tsv|parquet|log|po)$"
    r"|\.min\.(js|css)$|\.(map|svg|snap|ipynb)$|_pb2(_grpc)?\.pyi?$|\.pb\.go$|[._]generated\.\w+$",
    re.IGNORECASE,
)
_TEST = re.compile(r"(^|/)(tests?|specs?|__tests__)/|(^|/)test_[^/]*$|[._-](test|spec)\.\w+$")
_SHARED = re.compile(
    r"(^|/)(changelog|changes|history|news|contributors|authors|readme)(\.\w+)?$", re.IGNORECASE
)


def is_bulk(path: str) -> bool:
    """Whether the file's lines tell nothing of the work: lock files, data, bundles, generated and vendored code."""
    return bool(_BULK.search(path))


def is_test(path: str) -> bool:
    """Whether the file holds tests."""
    return bool(_TEST.search(path))


def is_shared(path: str) -> bool:
    """Whether everybody is expected to write to the file, as to a changelog."""
    return bool(_SHARED.search(path))


def written(commit: Commit) -> list[FileChange]:
    """The files of a commit that people write line by line."""
    return [change for change in commit["files"] if not is_bulk(change["path"])]


def weight(commit: Commit) -> int:
    """Changed lines in files that people write line by line."""
    return sum(lines_written([commit]))


def lines_written(commits: Iterable[Commit]) -> tuple[int, int]:
    """Lines added to and removed from files that people write line by line."""
    changes = [change for commit in commits for change in written(commit)]
    return sum(change["insertions"] for change in changes), sum(change["deletions"] for change in changes)
