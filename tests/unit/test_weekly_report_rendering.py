"""Documents as Markdown and HTML, and the words in them."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from weekly_report.document import (
    Block,
    Bullets,
    Details,
    Heading,
    Note,
    Paragraph,
    Table,
    cut,
    prose,
    spans,
)
from weekly_report.rendering import to_html, to_markdown
from weekly_report.words import (
    clipped,
    count,
    escaped,
    first_sentence,
    lines,
    listed,
    period,
    quoted,
    sentence,
)

DOCUMENT: list[Block] = [
    Heading("Report", 1),
    Note("Take care."),
    Paragraph("All of `a_b` is **new**."),
    Bullets(("one", "two")),
    Bullets(("first",), ordered=True),
    Table(("Name", "Lines"), (("`a|b`", "1"),), frozenset({1})),
    Details("Show", (Paragraph("inside"),)),
]


def test_a_document_as_markdown() -> None:
    assert to_markdown(DOCUMENT) == (
        "# Report\n\n> Take care.\n\nAll of `a_b` is **new**.\n\n- one\n- two\n\n1. first\n\n"
        "| Name | Lines |\n| --- | ---: |\n| `a\\|b` | 1 |\n\ninside\n"
    )


def test_a_document_as_html_is_one_file_that_loads_and_runs_nothing() -> None:
    page = to_html("Report", DOCUMENT)
    for part in (
        "<h1>Report</h1>",
        '<p class="note">Take care.</p>',
        "<p>All of <code>a_b</code> is <strong>new</strong>.</p>",
        "<ul>\n<li>one</li>\n<li>two</li>\n</ul>",
        "<ol>\n<li>first</li>\n</ol>",
        "<td><code>a|b</code></td><td class=number>1</td>",
        "<details>\n<summary>Show</summary>\n<p>inside</p>\n</details>",
        "prefers-color-scheme: dark",
        "@media print",
        'name="viewport"',
    ):
        assert part in page
    assert not any(sign in page for sign in ("<script", "http://", "https://", "@import", "url("))


def test_html_is_well_formed() -> None:
    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    balance = Balance()
    balance.feed(to_html("<b>", [*DOCUMENT, Paragraph("</p></main> `</code>` **<b>**")]))
    assert balance.open == []


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "`<script>`",
        "**<img src=x onerror=alert(1)>**",
        '"><script>',
        "&lt;script&gt;",
    ],
)
def test_tags_from_outside_are_shown_and_never_live(hostile: str) -> None:
    blocks: list[Block] = [
        Heading(hostile),
        Paragraph(hostile),
        Bullets((hostile,)),
        Table((hostile,), ((hostile,),)),
    ]
    body = to_html(hostile, blocks).partition("<body>")[2]
    assert "<script" not in body
    assert "<img" not in body
    assert "<title><" not in to_html(hostile, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>", "&lt;b>"),
        ("&lt;", "&amp;lt;"),
        ("AT&T", "AT&T"),
        ("a*b", "a\\*b"),
        ("__init__.py and a_b", "\\_\\_init\\_\\_.py and a_b"),
        ("[x](javascript:1)", "[x\\](javascript:1)"),
        ("robot[bot]", "robot[bot]"),
        ("a ` b", "a \\` b"),
        ("# no heading", "\\# no heading"),
        ("#12 is done", "#12 is done"),
        (escaped("**a** `b` \\`"), "\\*\\*a\\*\\* \\`b\\` \\\\\\`"),
        ("- no item", "\\- no item"),
        ("1. no item", "1\\. no item"),
        ("> no quotation", "\\> no quotation"),
    ],
)
def test_text_from_outside_shows_as_it_stands_in_markdown(text: str, expected: str) -> None:
    assert to_markdown([Paragraph(text)]) == expected + "\n"


def test_marks_are_found_only_where_they_are_closed() -> None:
    assert list(spans("a `b` **c** `d **e")) == [
        ("plain", "a "),
        ("code", "b"),
        ("plain", " "),
        ("strong", "c"),
        ("plain", " `d **e"),
    ]


def test_escaped_text_has_no_marks_beside_those_that_have() -> None:
    text = escaped("`a` **b** c:\\d") + " `e` " + escaped("*")
    assert list(spans(text)) == [("plain", "`a` **b** c:\\d "), ("code", "e"), ("plain", " *")]


def test_what_a_writer_wrote_becomes_paragraphs_and_lists_without_headings() -> None:
    text = "## Author One\n\nAuthor One did\nmuch:\n- this\n* that\n1. and this\n\n---\n```\nLast.\n```\n"
    assert prose(text) == [
        Paragraph("Author One did much:"),
        Bullets(("this", "that", "and this")),
        Paragraph("Last."),
    ]
    assert prose(" \n") == []


def test_long_lists_are_cut_but_never_for_a_single_entry() -> None:
    assert cut("abcd", 3) == ("a", "b", "c", "d")
    assert cut("abcde", 3) == ("a", "b", "c", "and 2 more")


def test_plurals_and_lists_read_well() -> None:
    assert [count(number, "commit") for number in (0, 1, 2, 1204)] == [
        "0 commits",
        "1 commit",
        "2 commits",
        "1,204 commits",
    ]
    assert count(2, "person", "people") == "2 people"
    assert [listed(list("abcd")[:size]) for size in range(5)] == [
        "",
        "a",
        "a and b",
        "a, b and c",
        "a, b, c and d",
    ]
    assert listed(list("abcd"), limit=2) == "a, b and 2 more"
    assert [lines(*pair) for pair in ((1, 0), (0, 2), (3, 1), (0, 0))] == [
        "1 line added",
        "2 lines removed",
        "3 lines added, 1 removed",
        "no lines changed",
    ]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("2026-11-22T10:00:00+00:00", "2026-11-29T10:00:00+00:00", "22 to 29 November 2026"),
        ("2026-11-28", "2026-12-03", "28 November to 3 December 2026"),
        ("2026-12-28", "2027-01-03", "28 December 2026 to 3 January 2027"),
        ("2026-12-28", "2026-12-28", "28 December 2026"),
    ],
)
def test_periods_say_nothing_twice(since: str, until: str, expected: str) -> None:
    assert period(since, until) == expected


def test_sentences_begin_and_end_as_sentences() -> None:
    assert sentence("it  works\nnow") == "It works now."
    assert sentence("mosaic_queues is new") == "mosaic_queues is new."
    assert sentence("“Done.”") == "“Done.”"
    assert quoted("Add it.") == "“Add it”"
    assert clipped("a word " * 40, 20) == "a word a word a…"
    assert first_sentence("It reads Python 3.11 files. Then it stops.") == "It reads Python 3.11 files."
    assert first_sentence("See e.g. the docs") == "See e.g. the docs"
