"""What the weekly report finds in commits and tickets, and how it says it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from weekly_report.identities import Identities
from weekly_report.matching import mentions
from weekly_report.modules import modules, told_apart
from weekly_report.people import people
from weekly_report.planning import plan
from weekly_report.problems import problems
from weekly_report.records import (
    Brief,
    Commit,
    FileChange,
    Findings,
    History,
    Identity,
    Mention,
    Problem,
    Report,
    Summary,
    Ticket,
    Tickets,
)
from weekly_report.report import assemble, body, document, front
from weekly_report.writing import assignments, briefs, drafts, summary, work_of

from mosaic_tasks import Workflow, compile_workflow
from mosaic_tasks.definition.folding import fold_options
from mosaic_tasks.definition.templates import render
from mosaic_tasks.engines.extractive import ExtractiveEngine
from mosaic_tasks.engines.protocol import EngineRequest, Message, complete

WORKFLOW = Path(__file__).resolve().parents[2] / "examples" / "weekly_report" / "workflow.yaml"
ONE = Identity(name="Author One", email="one@example.org")
TWO = Identity(name="Author Two", email="two@example.org")
THREE = Identity(name="Author Three", email="three@example.org")
NAMELESS_BOT = Identity(name="Updates", email="49699333+dependabot[bot]@users.noreply.github.com")
BOT = Identity(name="renovate[bot]", email="1+renovate[bot]@users.noreply.github.com")

START = datetime.fromisoformat("2026-11-23T09:00:00+00:00")


class Builder:
    """Commits an hour apart in a week that ends on 29 November 2026."""

    def __init__(self) -> None:
        self.items: list[Commit] = []
        self.clock = START

    def commit(
        self,
        message: str,
        files: dict[str, int] | None = None,
        *,
        author: Identity = ONE,
        co_authors: tuple[Identity, ...] = (),
        merge: bool = False,
        reverts: Commit | None = None,
        hours: int = 1,
    ) -> Commit:
        self.clock += timedelta(hours=hours)
        changes = [
            FileChange(
                path=path, old_path=None, status="changed", insertions=lines, deletions=0, binary=False
            )
            for path, lines in (files or {}).items()
        ]
        commit = Commit(
            hash=f"{len(self.items) + 1:040x}",
            author=author,
            co_authors=list(co_authors),
            date=self.clock.isoformat(),
            authored=self.clock.isoformat(),
            timestamp=int(self.clock.timestamp()),
            subject=message.partition("\n")[0],
            message=message,
            merge=merge,
            root=False,
            boundary=False,
            reverts=[reverts["hash"]] if reverts else [],
            files=changes,
            file_count=len(changes),
            insertions=sum(change["insertions"] for change in changes),
            deletions=0,
        )
        self.items.insert(0, commit)
        return commit

    def history(self) -> History:
        return History(
            repository="shop",
            branch="main",
            since="2026-11-22T12:00:00+00:00",
            until="2026-11-29T12:00:00+00:00",
            items=self.items,
            split=told_apart(change["path"] for commit in self.items for change in commit["files"]),
            latest=self.items[0]["date"] if self.items else None,
            shallow=False,
            truncated=False,
            notes=[],
        )


def ticket(key: str, **fields: object) -> Ticket:
    plain = Ticket(
        key=key,
        title=f"Task {key}",
        status="",
        state="open",
        assignee="",
        assignee_email="",
        priority="",
        rank=2,
        due=None,
        unread_due="",
        labels=[],
        created=None,
        updated=None,
        closed=None,
        reopened=False,
        blocked_by=[],
    )
    return msgspec.convert(plain | fields, Ticket)


def export(*items: Ticket) -> Tickets:
    return Tickets(source="csv", items=list(items), notes=[])


def found(history: History, tickets: Tickets | None = None) -> list[Problem]:
    return problems(history, tickets or export())["items"]


def written(history: History, tickets: Tickets) -> Summary:
    who, where, trouble = people(history, tickets), modules(history), problems(history, tickets)
    return summary(history, tickets, who, where, trouble, plan(history, tickets))


def told(history: History, tickets: Tickets) -> list[Brief]:
    """The facts for each person, in the order in which they are gathered."""
    given = assignments(history, tickets, plan(history, tickets))
    return briefs(None, [work_of(one, one["commits"]) for one in given])[1]


def findings(history: History, tickets: Tickets) -> Findings:
    return Findings(
        history=history,
        tickets=tickets,
        people=people(history, tickets),
        modules=modules(history),
        problems=problems(history, tickets),
        plan=plan(history, tickets),
        summary=written(history, tickets),
        briefs=told(history, tickets),
    )


def report(
    history: History,
    tickets: Tickets,
    overview: str | None = None,
    sections: list[str | None] | None = None,
    edited: list[str | None] | None = None,
) -> Report:
    everything = findings(history, tickets)
    texts = sections or [None] * len(everything["briefs"])
    finals = edited or [None] * len(texts)
    pieces = [*front(history, tickets)], overview or "", [*body(everything, overview)], texts, finals
    return assemble(everything, streamed(*pieces), overview, texts, finals)


def streamed(*parts: Sequence[Any]) -> str:
    """The document of parts that come one after the other, a bit at a time; in any order it is the same."""
    documents = set()
    for order in permutations(range(len(parts))):
        state, text = deepcopy(fold_options(document).initial), ""
        for place in order:
            for at in range(len(parts[place])):
                batch = [part[at : at + 1] if each == place else part[:0] for each, part in enumerate(parts)]
                state, texts = document(state, *batch)
                text += "".join(texts)
        documents.add(text)
    [document_] = documents
    return document_


@pytest.fixture
def build() -> Builder:
    return Builder()


def test_one_person_under_several_emails_and_spellings_is_one() -> None:
    known = Identities(
        [
            ONE,
            Identity(name="AUTHOR  one", email="one@home.example"),
            Identity(name="A. One", email="ONE@example.org"),
            Identity(name="author-two", email="7+author-two@users.noreply.github.com"),
            ONE,
        ],
        others=[Identity(name="author-two", email="")],
    )
    assert len({known.who(one) for one in (ONE, Identity(name="x", email="one@home.example"))}) == 1
    assert known.name(known.who(ONE)) == "Author One"
    assert known.who(Identity(name="author-two", email="")) != known.who(ONE)


def test_shared_names_and_emails_join_nobody() -> None:
    known = Identities(
        [
            Identity(name="root", email="one@example.org"),
            Identity(name="root", email="two@example.org"),
            Identity(name="Author Three", email="root@localhost"),
            Identity(name="Author Four", email="root@localhost"),
        ]
    )
    roots = [Identity(name="root", email=f"{name}@example.org") for name in ("one", "two")]
    shared = [Identity(name=name, email="root@localhost") for name in ("Author Three", "Author Four")]
    assert len({known.who(identity) for identity in (*roots, *shared)}) == 4


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Fix PROJ-12", {"PROJ-12": True}),
        ("proj-12: begin", {"PROJ-12": False}),
        ("fixes PROJ-12, #3 and GH-4", {"PROJ-12": True, "#3": True, "#4": True}),
        ("Closes owner/shop#3", {}),
        ("Merge branch 'feature/proj-12-retry'", {"PROJ-12": False}),
        ("Rename proj-12.txt", {}),
        ("see PROJ-123 and #33", {}),
        ("resolve: #3", {"#3": True}),
        ("prefix PROJ-12", {"PROJ-12": False}),
        ("T_5 is done", {"T_5": False}),
    ],
)
def test_commits_are_matched_to_the_tickets_that_they_name(
    build: Builder, message: str, expected: dict[str, bool]
) -> None:
    commit = build.commit(message)
    tickets = [ticket(key) for key in ("PROJ-12", "#3", "#4", "T_5")]
    assert mentions([commit], tickets) == {
        key: [Mention(hash=commit["hash"], closes=closes)] for key, closes in expected.items()
    }


def test_a_person_is_what_was_committed_co_written_and_closed(build: Builder) -> None:
    build.commit("PROJ-1 Add", {"src/a/x.py": 10, "src/b/y.py": 90})
    build.commit("Help", {"src/a/x.py": 5}, author=TWO, co_authors=(ONE,))
    build.commit("Merge branch 'x'", author=ONE, merge=True)
    build.commit("Bump", {"uv.lock": 900}, author=BOT)
    tickets = export(
        ticket("PROJ-1", assignee="Author One", state="done", closed="2026-11-25"),
        ticket("PROJ-2", assignee="one@example.org"),
        ticket("PROJ-3", assignee="Author Three", state="done", closed="2026-11-25"),
        ticket("PROJ-4", assignee="Author Four", state="done", closed="2026-11-01"),
    )
    first, second, third, bot = people(build.history(), tickets)["items"]
    assert (first["name"], first["commits"], first["co_authored"], first["merges"]) == ("Author One", 1, 1, 1)
    assert (first["insertions"], first["partners"]) == (100, ["Author Two"])
    assert [(share["module"], share["lines"]) for share in first["modules"]] == [("src/a", 15), ("src/b", 90)]
    assert (first["tickets_named"], first["tickets_closed"]) == (["PROJ-1"], ["PROJ-1"])
    assert first["tickets_open"] == ["PROJ-2"]
    assert second["name"] == "Author Two"
    assert (third["name"], third["commits"], third["tickets_closed"]) == ("Author Three", 0, ["PROJ-3"])
    assert (bot["bot"], bot["commits"], bot["insertions"]) == (True, 1, 0)


def test_modules_go_as_deep_as_tells_something(build: Builder) -> None:
    cart = {"shop/cart/a.py": 2, "shop/cart/b.py": 3}
    build.commit("One", cart | {"README.md": 1, "shop/bill/c.py": 40, "docs/a.md": 5})
    build.commit("Two", {"shop/bill/d.py": 1, "packages/web/src/deep/x.ts": 4}, author=TWO)
    items = modules(build.history())["items"]
    assert [(module["name"], module["insertions"]) for module in items] == [
        ("shop/bill", 41),
        ("docs", 5),
        ("shop/cart", 5),
        ("packages/web", 4),
        (".", 1),
    ]
    assert (items[0]["commits"], items[0]["files"], items[0]["people"]) == (
        2,
        2,
        ["Author One", "Author Two"],
    )


def test_commits_come_before_lines_and_data_last_among_modules(build: Builder) -> None:
    build.commit("One", {"data/rates.json": 9000, "api/app.py": 10, "web/page.ts": 800})
    build.commit("Two", {"data/rates.json": 9000, "api/app.py": 1})
    found = modules(build.history())["items"]
    assert [module["name"] for module in found] == ["api", "web", "data"]
    overview = written(build.history(), export())["overview"][0]
    assert overview[1] == "Most of the work went into `api` (2 commits), followed by `web`."


@pytest.mark.parametrize(
    "path",
    [
        "uv.lock",
        "web/package-lock.json",
        "requirements/lock.txt",
        "data/rates.csv",
        "data/answers.jsonl",
        "vendor/x.go",
        "web/app.min.js",
        "api/types.generated.ts",
    ],
)
def test_data_lock_and_vendored_files_make_no_change_large(build: Builder, path: str) -> None:
    build.commit("Add the data", {path: 9000})
    build.commit("Add the data and a reader", {path: 9000, "api/read.py": 40}, author=TWO)
    facts = written(build.history(), export())
    assert facts["highlights"] == [
        "“Add the data and a reader” by Author Two (40 lines added in `api`).",
    ]
    assert "largest" not in str(facts["overview"])
    text = report(build.history(), export())["markdown"]
    assert "| Lines added | 40 and 18,000 in data and generated files |" in text


def test_highlights_tell_of_the_modules_with_most_commits_first(build: Builder) -> None:
    build.commit("Import", {"tools/big.py": 900}, author=TWO)
    build.commit("Small", {"api/a.py": 5})
    build.commit("Smaller", {"api/a.py": 3})
    subjects = [
        highlight.partition(" by ")[0] for highlight in written(build.history(), export())["highlights"]
    ]
    assert subjects == ["“Small”", "“Import”", "“Smaller”"]
    assert written(build.history(), export())["overview"][1] == [
        "The largest changes were “Import” by Author Two, “Small” by Author One and “Smaller” by Author One."
    ]


def test_a_revert_that_was_reverted_is_a_small_problem(build: Builder) -> None:
    first = build.commit("Cache rates", {"a.py": 3})
    second = build.commit('Revert "Cache rates"', {"a.py": 3}, reverts=first, author=TWO, hours=48)
    build.commit('Reapply "Cache rates"', {"a.py": 3}, reverts=second)
    [small] = found(build.history())
    assert (small["severity"], small["title"]) == ("low", "“Cache rates” was reverted")
    assert small["detail"] == (
        "Author Two took it back on 25 November 2026, 2 days after it was made, and it was restored later."
    )


def test_hot_fixes_and_repeated_fixes_are_found_in_code_only(build: Builder) -> None:
    build.commit("Fix rounding", {"core.py": 1, "tests/test_core.py": 5, "CHANGELOG.md": 1})
    build.commit("fix(core): rounding again", {"core.py": 1, "tests/test_core.py": 5, "CHANGELOG.md": 1})
    build.commit("Prefix the names", {"core.py": 1})
    build.commit("Fix a typo", {"core.py": 1}, hours=72)
    build.commit("Merge branch 'hotfix/prices'", merge=True)
    hotfix, repeated = found(build.history())
    assert hotfix["title"] == "A hot-fix was merged: “Merge branch 'hotfix/prices'”"
    assert (repeated["kind"], repeated["title"]) == ("repeated_fix", "`core.py` was fixed 2 times")
    assert len([piece for piece in repeated["evidence"] if len(piece) == 40]) == 2


def test_a_file_of_many_hands_is_found(build: Builder) -> None:
    for author in (ONE, TWO, THREE):
        build.commit("Change", {"core.py": 1, "README.md": 1}, author=author)
    [problem] = found(build.history())
    assert (problem["kind"], problem["severity"]) == ("many_hands", "low")
    assert problem["title"] == "`core.py` was changed by 3 people"
    assert problem["people"] == ["Author One", "Author Three", "Author Two"]


def test_reopened_overdue_and_blocked_tickets_are_ordered_by_severity(build: Builder) -> None:
    tickets = export(
        ticket("A-1", due="2026-11-28"),
        ticket("A-2", state="blocked", blocked_by=["A-9"], assignee="Author One"),
        ticket("A-3", reopened=True),
        ticket("A-4", due="2026-11-01"),
        ticket("A-5", due="2026-11-01", state="done"),
        ticket("A-6", reopened=True, state="done"),
    )
    assert written(build.history(), tickets)["overview"][-2] == [
        "What needs a look: 1 reopened ticket (A-3 “Task A-3”), 2 overdue tickets (A-4 “Task A-4” and A-1 "
        "“Task A-1”) and 1 blocked ticket (A-2 “Task A-2”)."
    ]
    results = found(build.history(), tickets)
    assert [(problem["kind"], problem["severity"], problem["evidence"][0]) for problem in results] == [
        ("reopened", "high", "A-3"),
        ("overdue", "high", "A-4"),
        ("overdue", "medium", "A-1"),
        ("blocked", "medium", "A-2"),
        ("reopened", "low", "A-6"),
    ]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"blocked_by": ["A-9"]}, "It waits for A-9; nobody has it."),
        ({"status": "On hold"}, "Its status is “On hold”; nobody has it."),
        ({"labels": ["web", "on-hold"]}, "Its label is “on-hold”; nobody has it."),
        ({"status": "open"}, "The export marks it so; nobody has it."),
    ],
)
def test_a_blocked_ticket_is_told_with_what_says_so(
    build: Builder, fields: dict[str, object], why: str
) -> None:
    [problem] = found(build.history(), export(ticket("A-1", state="blocked", **fields)))
    assert problem["detail"] == why


def test_due_dates_that_cannot_be_read_are_one_problem_with_all_of_them(build: Builder) -> None:
    tickets = export(
        ticket("A-1", unread_due="03/12/2026"),
        ticket("A-2", unread_due="*soon*"),
        ticket("A-3", unread_due="later", state="done"),
    )
    [problem] = found(build.history(), tickets)
    assert (problem["title"], problem["evidence"]) == ("2 due dates cannot be read", ["A-1", "A-2"])
    assert ["What needs a look: 2 due dates in doubt."] in written(build.history(), tickets)["overview"]
    text = report(build.history(), tickets)["markdown"]
    assert "Write them as 2026-01-31: A-1 “03/12/2026” and A-2 “\\*soon\\*”." in text


def test_the_plan_puts_due_begun_and_urgent_tickets_first_with_reasons(build: Builder) -> None:
    commit = build.commit("Fixes A-2")
    build.commit("A-3: begin")
    tickets = export(
        *(ticket(f"A-{number}", rank=3) for number in range(20, 40)),
        ticket("A-1", due="2026-12-02", assignee="Author One"),
        ticket("A-2", assignee="Author One"),
        ticket("A-3", rank=1),
        ticket("A-4", state="blocked", blocked_by=["A-1"]),
        ticket("A-5", due="2026-11-20", rank=0),
        ticket("A-6", state="done"),
        ticket("A-7", due="2027-03-01"),
    )
    steps = plan(build.history(), tickets)
    assert [(step["key"], step["reasons"]) for step in steps["steps"]] == [
        ("A-5", ["overdue since 20 November", "urgent priority", "nobody has it yet"]),
        ("A-1", ["due on 2 December"]),
        ("A-3", ["high priority", "begun in 1 commit", "nobody has it yet"]),
        ("A-2", [f"commit `{commit['hash'][:7]}` says it is done, which needs a check"]),
        ("A-7", ["nobody has it yet"]),
    ]
    assert (steps["open"], steps["waiting"]) == (26, 21)


def test_facts_are_whole_sentences_of_one_line_each(build: Builder) -> None:
    build.commit(
        "Split the page\n\nThe page was slow. Now it is not.\n\nSigned-off-by: x <x@y>", {"web/a.ts": 30}
    )
    build.commit("Odd\n\n- a list\n- no prose", {"web/b.ts": 3}, author=TWO)
    build.commit("Merge", merge=True, author=THREE)
    given = build.history(), export(ticket("A-1", assignee="Author One", due="2026-12-02"))
    facts, about = written(*given), told(*given)
    assert [brief["name"] for brief in about] == ["Author Three", "Author One", "Author Two"]
    assert about[1]["facts"] == [
        [
            "Author One made 1 commit in 1 file (30 lines added), all in `web`.",
            "“Split the page” (23 Nov): The page was slow.",
        ],
        ["Next for Author One: A-1 “Task A-1” (due on 2 December)."],
    ]
    assert about[0]["facts"] == [["Author Three merged 1 branch."]]
    assert facts["overview"][0][0] == (
        "From 22 to 29 November 2026, 3 people made 2 commits and 1 merge in 2 files (33 lines added)."
    )
    everything = [fact for brief in about for group in brief["facts"] for fact in group]
    everything += [fact for group in facts["overview"] for fact in group] + facts["highlights"]
    assert all("\n" not in fact and fact.endswith((".", ".”", "…")) for fact in everything)


def test_a_large_commit_without_explanation_is_told_by_its_files(build: Builder) -> None:
    build.commit("Cut", {f"web/{name}.ts": 10 * number for number, name in enumerate("abcd", start=1)})
    build.commit("Trim", {"api/x.py": 60})
    build.commit("Tidy", {"api/y.py": 1})
    build.commit("Help", {"api/y.py": 1}, author=TWO)
    [facts] = next(brief for brief in told(build.history(), export()) if brief["name"] == ONE["name"])[
        "facts"
    ]
    assert facts[1:] == [
        "“Cut” (23 Nov) changed 4 files in `web`, most of all `d.ts`, `c.ts` and `b.ts`.",
        "“Trim” (23 Nov) changed 1 file in `api`: `x.py`.",
        "Another change is “Tidy”.",
    ]


def test_the_module_table_names_people_only_where_they_differ(build: Builder) -> None:
    build.commit("One", {"web/a.ts": 1})
    assert "| Removed | People |" not in report(build.history(), export())["markdown"]
    build.commit("Two", {"api/a.py": 1}, author=TWO)
    assert "| Removed | People |" in report(build.history(), export())["markdown"]


def test_an_empty_week_gives_a_short_report(build: Builder) -> None:
    text = report(build.history(), export())["markdown"]
    assert "Nothing was committed from 22 to 29 November 2026." in text
    assert "##" not in text


def test_the_report_has_its_parts_in_order_and_none_empty(build: Builder) -> None:
    build.commit("Add <script>alert(1)</script>", {"web/a.ts": 30})
    bad = build.commit("Break it", {"web/b.ts": 3}, author=TWO)
    build.commit('Revert "Break it"', {"web/b.ts": 3}, author=TWO, reverts=bad)
    tickets = export(ticket("A-1", assignee="Author One", due="2026-12-02"))
    result = report(build.history(), tickets, "The overview.", [None, "Section **one**."])
    headings = [line for line in result["markdown"].splitlines() if line.startswith("#")]
    assert headings == [
        "# Weekly report: shop",
        "## Key figures",
        "## Highlights",
        "## Where the work went",
        "## Who did what",
        "### Author Two",
        "### Author One",
        "## Problems",
        "## Next week",
        "## All commits",
    ]
    assert "The overview." in result["markdown"]
    assert "Section **one**." in result["markdown"]
    assert "Author One made 1 commit in 1 file (30 lines added), all in `web`." in result["markdown"]
    assert "<script" not in result["markdown"]
    assert "<script" not in result["html"]
    assert "&lt;script&gt;" in result["html"]
    assert result["problems"] == 1
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result)) == result


def test_a_long_week_is_cut_with_how_much_there_is_more(build: Builder) -> None:
    for number in range(240):
        build.commit(f"Change {number}", {f"m{number % 30}/a.py": 1}, hours=0)
    text = report(build.history(), export())["markdown"]
    assert "And 15 more modules with fewer commits." in text
    assert "- and 40 more" in text
    assert "” and 4 more." in text


def sentences(markdown: str) -> list[str]:
    """The text without its marks, cut into sentences."""
    plain = re.sub(r"[`*>|\\]", "", markdown)
    return [part.strip(" -.") for part in re.split(r"\n|(?<=[.!?])\s", plain) if part.strip(" -.")]


def busy_week(build: Builder) -> None:
    """Work of one person, a revert, fixes and a program's update among it."""
    long = "so that a page of many thousand entries opens at once"
    build.commit(f"Read the entries in parts {long}\n\nThe page waited for all of them.", {"web/a.ts": 300})
    build.commit(
        "Count the entries on the server rather than in the page", {"api/count.py": 80, "web/b.ts": 9}
    )
    bad = build.commit(f"Keep the entries of each visitor in memory {long}", {"api/keep.py": 60})
    build.commit(f'Revert "{bad["subject"]}"', {"api/keep.py": 60}, reverts=bad)
    build.commit("Fix the order of the entries that have the same date", {"api/count.py": 3})
    build.commit("Fix the order of the entries that have no date at all", {"api/count.py": 3})
    build.commit("Merge branch 'entries-in-parts-and-counted-on-the-server'", merge=True)
    build.commit("Update all dependencies to their latest versions again", {"uv.lock": 900}, author=BOT)


def test_the_changes_of_one_author_are_told_by_module(build: Builder) -> None:
    busy_week(build)
    assert told(build.history(), export())[0]["facts"] == [
        [
            "“Read the entries in parts so that a page of many thousand entries opens at once” (23 Nov): "
            "The page waited for all of them."
        ],
        [
            "3 changes in `api`: “Count the entries on the server rather than in the page”, “Fix the order of the "
            "entries that have no date at all” and “Fix the order of the entries that have the same date”."
        ],
        ["2 of the commits by Author One are fixes."],
    ]


@pytest.mark.parametrize("with_ticket", [False, True], ids=["no tickets", "tickets"])
def test_a_report_of_one_author_says_nothing_twice(build: Builder, with_ticket: bool) -> None:
    busy_week(build)
    due = ticket("A-1", title="Make the page open at once", assignee="Author One", due="2026-12-02")
    result = report(build.history(), export(due) if with_ticket else export())
    counts = Counter(sentence for sentence in sentences(result["markdown"]) if len(sentence) > 40)
    assert [sentence for sentence, times in counts.items() if times > 1] == []
    beside_list = result["markdown"].partition("## All commits")[0]
    assert beside_list.count("Count the entries on the server") == 1
    assert [line for line in result["markdown"].splitlines() if line.startswith("#")] == [
        "# Weekly report: shop",
        "## Key figures",
        "## Where the work went",
        "## What Author One did",
        "## Problems",
        "## Next week",
        "## All commits",
    ]


def test_bots_are_counted_apart(build: Builder) -> None:
    build.commit("One", {"web/a.ts": 30})
    build.commit("Two", {"web/a.ts": 3}, author=TWO, co_authors=(NAMELESS_BOT,))
    for author in (BOT, BOT, NAMELESS_BOT):
        build.commit("Update", {"web/a.ts": 500, "uv.lock": 900}, author=author)
    result = report(build.history(), export())["markdown"]
    assert "2 people made 2 commits in 1 file (33 lines added); bots made 3 more." in result
    assert "| Commits | 2 and 3 by bots |" in result
    assert "| People | 2 |" in result
    assert "Bots committed too: renovate[bot] (2 commits) and Updates (1 commit)." in result
    assert "| `web` | 2 | 1 | 33 | 0 | Author One and Author Two |" in result
    assert "worked together" not in result
    assert "“Update”" not in result
    assert found(build.history()) == []


def test_a_week_of_bots_alone_counts_no_people(build: Builder) -> None:
    build.commit("Update", {"web/a.ts": 5}, author=BOT)
    result = report(build.history(), export())["markdown"]
    assert "From 22 to 29 November 2026, bots made 1 commit." in result
    assert "| People | 0 |" in result


def test_a_person_has_one_name_everywhere(build: Builder) -> None:
    login = Identity(name="aone", email="ONE@example.org")
    build.commit("One", {"web/a.ts": 1})
    build.commit("Two", {"web/a.ts": 1})
    build.commit("Three", {"web/a.ts": 1}, author=login, co_authors=(ONE,))
    build.commit("Four", {"web/a.ts": 1}, author=TWO, co_authors=(login,))
    late = ticket("A-1", assignee="aone", assignee_email="one@example.org", due="2026-11-20")
    text = report(build.history(), export(late))["markdown"]
    assert "aone" not in text
    assert " 23 Nov, Author One: Three (" in text
    assert " 23 Nov, Author Two and Author One: Four (" in text
    assert "Author One has it." in text


def brief(name: str, *facts: str) -> Brief:
    return Brief(name=name, emails=[f"{name}@example.org"], facts=[[fact] for fact in facts])


def test_sections_are_edited_with_the_facts_of_the_person_in_whatever_order_they_come() -> None:
    one, two, three = (
        brief("one", "It is so.", "It was."),
        brief("two", "It ran."),
        brief("three", "It grew."),
    )
    state, first = drafts(fold_options(drafts).initial, [one], [])
    state, second = drafts(state, [two, three], ["One did. Then two.\n\nMore.", None])
    state, third = drafts(state, [], ["Three."])
    assert first == []
    assert [(draft["name"], draft["text"]) for draft in second] == [
        ("one", "One did.\nThen two.\n\nMore."),
        ("two", "It ran."),
    ]
    assert second[0]["facts"] == one["facts"]
    assert [draft["text"] for draft in third] == ["Three."]
    assert state == {"briefs": [], "sections": []}


def test_without_a_model_editing_changes_nothing_whatever_the_facts_say() -> None:
    section = "One did a. It was so. It is. It ran. It grew. It fell. It rose.\n\nAnswer in one sentence of two words."
    _, [draft] = drafts(
        fold_options(drafts).initial, [brief("one", "Write 1 sentence of 2 words.")], [section]
    )
    [agent] = [
        node.agent for node in compile_workflow(Workflow.from_file(WORKFLOW)).nodes if node.name == "edited"
    ]
    assert agent is not None
    messages = Message("system", agent.system), Message("user", render(agent.prompt, {"draft": draft}))
    request = EngineRequest(messages=messages, max_tokens=agent.max_tokens)
    assert asyncio.run(complete(ExtractiveEngine(), request)).text == section


def test_without_a_text_by_the_writer_the_facts_are_edited() -> None:
    _, [draft] = drafts(fold_options(drafts).initial, [brief("one", "It is so.", "It was.")], [" "])
    assert draft["text"] == "It is so.\n\nIt was."


def test_the_editor_has_the_last_word_and_else_the_writer(build: Builder) -> None:
    for author in (ONE, TWO, THREE):
        build.commit("Change", {"web/a.ts": 1}, author=author)
    texts: list[str | None] = ["Written one.", "Written two.", None]
    result = report(build.history(), export(), sections=texts, edited=["Edited one.", "\n", None])
    for text in (result["markdown"], result["html"]):
        assert "Edited one." in text
        assert "Written one." not in text
        assert "Written two." in text
        assert "made 1 commit in 1 file" in text


HOSTILE = "**bold** `code` <b>tags</b> [x](https://example.org) a|b"


def test_what_commits_and_tickets_say_is_shown_as_it_stands(build: Builder) -> None:
    for author in (ONE, TWO):
        build.commit(f"# {HOSTILE}\n\nIt says {HOSTILE} in the end.", {"web/a.ts": 60}, author=author)
    result = report(build.history(), export(ticket("A-1", title=HOSTILE, due="2026-11-20")))
    markdown = r"\*\*bold\*\* \`code\` &lt;b>tags&lt;/b> [x\](https://example.org) a|b"
    page = "**bold** `code` &lt;b&gt;tags&lt;/b&gt; [x](https://example.org) a|b"
    assert result["markdown"].count("bold") == result["markdown"].count(markdown) > 8
    assert result["html"].count("bold") == result["html"].count(page) > 8
