"""The weekly report's loading of commits, with a gate before it."""

from __future__ import annotations

from weekly_report.records import Assignment, Work
from weekly_report.writing import work

from tests.integration.stream_tools import gate


def gated_work(assignment: Assignment, repo: str) -> Work:
    """Waits at the gate `last` where the person with the most commits is to be read."""
    if assignment["member"]["name"] == "Author Most":
        gate("last")
    return work(assignment, repo)
