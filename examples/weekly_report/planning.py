"""Plans next week: which open tickets come first, and what this week left over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from weekly_report.identities import known
from weekly_report.matching import mentions
from weekly_report.records import History, Mention, Plan, Problems, Step, Ticket, Tickets
from weekly_report.ticket_fields import NORMAL
from weekly_report.words import code, count, date_of, day, listed

MOST = 12
LEAST = 5
AHEAD_DAYS = 7

_URGENCY = ("urgent", "high", "", "low", "lowest")


def plan(history: History, tickets: Tickets) -> Plan:
    """At most twelve tickets for next week in order, with reasons; an outline of the history is enough."""
    identities = known(history, tickets)
    named = mentions(history["items"], tickets["items"])
    today = date_of(history["until"])
    waiting = [ticket for ticket in tickets["items"] if ticket["state"] != "done"]
    waiting.sort(key=lambda ticket: _order(ticket, today, named.get(ticket["key"], [])))
    pressing = [ticket for ticket in waiting if _presses(ticket, today, named.get(ticket["key"], []))]
    chosen = pressing[:MOST] if len(pressing) > LEAST else waiting[:LEAST]
    return Plan(
        steps=[
            _step(ticket, identities.owner(ticket), today, named.get(ticket["key"], [])) for ticket in chosen
        ],
        waiting=len(waiting) - len(chosen),
        open=len(waiting),
    )


def _order(ticket: Ticket, today: date, found: Sequence[Mention]) -> tuple[int, int, int, str]:
    """What is late or due comes first, then what has begun, then by priority; blocked tickets move back."""
    days = _days_left(ticket, today)
    due = days is not None and days <= AHEAD_DAYS
    begun = bool(found) or ticket["state"] == "in_progress"
    score = ticket["rank"] - 2 * due - begun + 2 * (ticket["state"] == "blocked")
    return score, days if days is not None else 10_000, -len(found), ticket["key"]


def _presses(ticket: Ticket, today: date, found: Sequence[Mention]) -> bool:
    """Whether there is more to the ticket than that it exists."""
    days = _days_left(ticket, today)
    begun = found or ticket["state"] != "open" or ticket["reopened"]
    return ticket["rank"] < NORMAL or bool(begun) or (days is not None and days <= AHEAD_DAYS)


def _step(ticket: Ticket, who: str, today: date, found: Sequence[Mention]) -> Step:
    return Step(
        key=ticket["key"],
        title=ticket["title"],
        assignee=who,
        reasons=list(_reasons(ticket, today, found)),
        commits=[mention["hash"] for mention in found],
    )


def _reasons(ticket: Ticket, today: date, found: Sequence[Mention]) -> Iterator[str]:
    days, due = _days_left(ticket, today), ticket["due"]
    if days is not None and due is not None:
        if days < 0:
            yield f"overdue since {day(due, year=False)}"
        elif days <= AHEAD_DAYS:
            yield f"due on {day(due, year=False)}"
    if urgency := _URGENCY[ticket["rank"]]:
        yield f"{urgency} priority"
    if ticket["state"] == "blocked":
        yield f"blocked by {listed(ticket['blocked_by'])}" if ticket["blocked_by"] else "blocked"
    if ticket["reopened"]:
        yield "reopened"
    closing = [mention for mention in found if mention["closes"]]
    if closing:
        yield f"commit {code(closing[0]['hash'][:7])} says it is done, which needs a check"
    elif found:
        yield f"begun in {count(len(found), 'commit')}"
    elif ticket["state"] == "in_progress":
        yield "in progress"
    if not ticket["assignee"]:
        yield "nobody has it yet"


def _days_left(ticket: Ticket, today: date) -> int | None:
    return None if ticket["due"] is None else (date_of(ticket["due"]) - today).days


def follow_ups(problems: Problems) -> Iterator[str]:
    """What reverts and repeated fixes ask for."""
    for problem in problems["items"]:
        if problem["kind"] == "revert" and problem["severity"] != "low":
            change = problem["title"].removesuffix(" was reverted")
            yield f"Decide what replaces {change}, which was reverted."
        elif problem["kind"] == "repeated_fix":
            paths = problem["evidence"][-1:]
            yield f"Cover {code(paths[0])} with a test: it was fixed more than once within two days."
