"""`make reference`: writes docs/reference/ from the code, so that neither says what the other does not.

With `--check` it writes nothing, and fails where a page is not what it would write.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from manual.commands import cli_page  # which lies beside this script
from manual.http import http_page
from manual.names import errors_page, metrics_page, settings_page, tasks_page
from manual.python import python_page
from manual.shapes import workflow_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
CONTENTS: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "errors.md": errors_page,
    "http.md": http_page,
    "metrics.md": metrics_page,
    "python.md": python_page,
    "settings.md": settings_page,
    "tasks.md": tasks_page,
    "workflow.md": workflow_page,
}


def stale() -> list[str]:
    """The pages that are not what the code says."""
    found = {path.name for path in PAGES.glob("*.md")} - CONTENTS.keys()
    return sorted([*found, *(name for name, page in CONTENTS.items() if _read(name) != page())])


def _read(name: str) -> str:
    path = PAGES / name
    return path.read_text("utf-8") if path.exists() else ""


def main(words: list[str]) -> int:
    """Writes the pages, or checks them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is stale")
    if parser.parse_args(words).check:
        pages = stale()
        print(
            *(f"docs/reference/{name} is not what the code says; run: make reference" for name in pages),
            sep="\n",
        )
        return 1 if pages else 0
    PAGES.mkdir(exist_ok=True)
    for name, page in CONTENTS.items():
        (PAGES / name).write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
