"""What models write is only shown: as HTML, as Markdown, and in the names of files."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mosaic_tasks.reports.naming import file_name, label_of
from mosaic_tasks.reports.texts import fenced, plain, quoted, shown, to_html, untitled, without_html

_TAGS = re.compile("p|h[1-6]|[uo]l|li|pre|code|strong|em|s|blockquote|[hb]r|a|table|thead|tbody|t[rhd]")
_ATTRIBUTES = frozenset({"href", "title", "rel", "class", "start"})
NASTY = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- -->",
    "<a href='javascript:alert(1)'>x</a>",
    "a <b onclick=x>b</b> `<i>` c",
    "![a](http://192.0.2.1/a.png)",
    "![a][b]\n\n[b]: http://192.0.2.1/a.png",
    "\\![a](http://192.0.2.1/a.png) \\\\![a](http://192.0.2.1/a.png)",
    "[x](javascript:alert(1)) [y](JaVaScRiPt:x) [z](data:text/html;base64,eA==) [w](vbscript:x)",
    "[x](//192.0.2.1/) [y](file:///etc/passwd) [z](/etc/passwd) <javascript:alert(1)> [q](java\tscript:x)",
    "[x](&#106;avascript:alert(1)) [x](javascript&colon;alert(1))",
    "<div>\n```\n</div>\n\n```\n<script>\n```\n",
    "<!--\n```\n-->\n\n```\n<script>alert(1)</script>\n```\n",
    "<div>\n\\<script>alert(1)</script>\n</div>",
    "<a title=\"\\<\">x</a> `\\`<b>x</b>",
    "| a | b |\n|---|--:|\n| <i>x</i> | ![a](b) |",
    "    <script>\n\n- <script>\n  > <img src=x>\n",
    "&lt;script&gt; \u2028<script>\x0b<img src=x>\r<b>\r\n<i>",
    "<?php x ?> <![CDATA[x]]> <!DOCTYPE x>",
    "[a]: <javascript:x>\n\n[a]",
]  # fmt: skip


class _Found(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if not _TAGS.fullmatch(tag) or not set(given) <= _ATTRIBUTES:
            self.bad.append(f"{tag} {given}")
        if tag == "a" and not re.match(r"(https?|mailto):", given.get("href") or ""):
            self.bad.append(f"link {given}")

    def handle_comment(self, data: str) -> None:
        self.bad.append(f"comment {data}")

    handle_decl = unknown_decl = handle_pi = handle_comment


def bad_in(html: str) -> list[str]:
    found = _Found()
    found.feed(html)
    found.close()
    return found.bad


def active_in(markdown: str) -> list[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    every = [*tokens, *(child for token in tokens for child in token.children or [])]
    return [token.type for token in every if token.type in ("html_block", "html_inline", "image")]


def within(text: str) -> str:
    """A text in a document that knows the images which it refers to."""
    return (
        f"# x\n\n{without_html(quoted(text))}\n\n[a]: http://192.0.2.1/a.png\n[b]: http://192.0.2.1/b.png\n"
    )


# -- text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", NASTY)
def test_html_of_a_model_is_shown_as_text(text: str) -> None:
    assert bad_in(to_html(text)) == []
    assert bad_in(to_html(without_html(text))) == []


@pytest.mark.parametrize("text", NASTY)
def test_markdown_of_a_model_has_no_tags_and_loads_nothing_whoever_reads_it(text: str) -> None:
    assert active_in(without_html(text)) == []
    assert active_in(within(text)) == []


_PIECES = [*"<>![](){}`~\\&;:/\"'-=#*_| \n\ta", "<b>", "<!--", "```", "\n\n", "](b)"]
_MARKUP = st.lists(st.sampled_from(_PIECES), max_size=40).map("".join)


@given(_MARKUP)
def test_no_text_gets_through(text: str) -> None:
    assert bad_in(to_html(text)) == []
    assert active_in(without_html(text)) == []
    assert active_in(within(text)) == []


def test_text_without_tags_stays_as_it_is() -> None:
    text = "# A\n\n1 < 2 & `<b>` is code\n\n```\n<script>\n```\n\n[a](https://example.org)\n"
    assert without_html(text) == text


def test_headings_go_below_the_one_that_they_stand_under() -> None:
    assert to_html("# A\n\n### B\n", below=3) == "<h4>A</h4>\n<h6>B</h6>\n"


def test_links_tell_the_other_side_nothing() -> None:
    assert 'rel="nofollow noopener noreferrer"' in to_html("[a](https://example.org/)")


def test_a_column_of_numbers_is_told_by_a_class() -> None:
    assert '<td class="number">2</td>' in to_html("| a | b |\n|---|--:|\n| 1 | 2 |")


def test_what_is_open_at_the_end_of_a_text_ends_with_it() -> None:
    html = MarkdownIt("commonmark").render(quoted("```\nopen") + "\n\n# Next")
    assert "<h1>Next</h1>" in html


def test_code_with_fences_in_it_stays_whole() -> None:
    html = MarkdownIt("commonmark").render(fenced("a\n````\n<b>") + "\n\nx")
    assert html == '<pre><code class="language-json">a\n````\n&lt;b&gt;\n</code></pre>\n<p>x</p>\n'


@given(st.text(max_size=40))
def test_a_line_of_text_is_shown_as_it_is(text: str) -> None:
    html = MarkdownIt("commonmark").enable("table").render(f"| a |\n|---|\n| {plain(text)} |")
    cell = re.search(r"<td>(.*)</td>", html, re.DOTALL)
    parser = HTMLParser()
    said: list[str] = []
    parser.handle_data = said.append  # type: ignore[method-assign]
    parser.feed(cell[1] if cell else "")
    parser.close()
    kept = " ".join(text.replace("\0", "\ufffd").split())
    assert " ".join("".join(said).split()) == kept


@pytest.mark.parametrize("piece", ["[", "*", "`", "<", "> ", "![", "_a*", "- ", "[a](", "~", "&", "|", "\\"])
def test_a_text_that_is_nasty_to_read_does_not_stop_a_report(piece: str) -> None:
    assert to_html((piece * 50_000)[:50_000])


def test_outputs_are_text_or_code() -> None:
    assert shown("a" * 5, most=3) == ("aaa", False, 2)
    assert shown({"markdown": "# A", "html": "<p>"}, most=9) == ("# A", False, 0)
    assert shown({"a": [1]}, most=99) == ('{\n  "a": [\n    1\n  ]\n}', True, 0)
    assert shown({"markdown": 1}, most=99).is_code
    assert shown(None, most=99) == ("null", True, 0)


def test_a_heading_that_repeats_the_label_is_left_out() -> None:
    assert untitled("# Shop\n\nText", "Shop") == "Text"
    assert untitled("# Shop\n\nText", "Other") == "# Shop\n\nText"


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Shop & Backend", "00007-shop-backend"),
        ("../../etc/passwd", "00007-etc-passwd"),
        ("/etc/passwd", "00007-etc-passwd"),
        ("C:\\Windows\\con", "00007-c-windows-con"),
        ("..", "00007"),
        ("a\0b\n", "00007-a-b"),
        ("x" * 5_000, f"00007-{'x' * 40}"),
        ("Größe 東京", "00007-groe"),
    ],
)
def test_a_name_is_made_of_a_label(label: str, name: str) -> None:
    assert file_name(label, line=7) == name


@given(st.text())
def test_a_name_is_harmless(label: str) -> None:
    assert re.fullmatch(r"\d{5}(-[a-z0-9]+)*", name := file_name(label, line=3))
    assert len(name) <= 46


@pytest.mark.parametrize(
    ("inputs", "output", "label"),
    [
        ({"repo": "shop", "n": 1}, "text", "shop"),
        ({"repo": "shop"}, {"title": "Weekly report: shop"}, "Weekly report: shop"),
        ({"flag": True, "list": [1], "n": 4}, {"title": 7}, "7"),
        ({"flag": True, "n": 4}, None, "4"),
        ({}, {"title": ""}, "Line 2"),
        ({"a": " b \n\x1b[31m c "}, None, "b [31m c"),
        ({"a": "x" * 500}, None, "x" * 119 + "…"),
    ],
)
def test_a_line_is_called_by_its_title_or_its_first_input(inputs: Any, output: Any, label: str) -> None:
    assert label_of(inputs, output, line=2) == label
