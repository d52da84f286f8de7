"""Writes a document as Markdown and as one self-contained HTML page; text from outside is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from weekly_report.document import Block, Bullets, Details, Heading, Note, Paragraph, Table, spans

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
_STYLE = Path(__file__).with_name("report.css")


def to_markdown(blocks: Iterable[Block]) -> str:
    """The document as Markdown (CommonMark with tables)."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def to_html(title: str, blocks: Iterable[Block]) -> str:
    """The document as an HTML page that loads nothing and runs nothing."""
    body = "\n".join(map(_html, blocks))
    return _PAGE.format(title=html.escape(title), style=_STYLE.read_text("utf-8"), body=body)


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_md(text)}"
        case Paragraph(text):
            return _md_start(_md(text))
        case Note(text):
            return f"> {_md_start(_md(text))}"
        case Bullets(items, ordered):
            marks = (
                (f"{number}." for number in range(1, len(items) + 1)) if ordered else iter("-" * len(items))
            )
            return "\n".join(
                f"{mark} {_md_start(_md(item))}" for mark, item in zip(marks, items, strict=True)
            )
        case Table():
            return "\n".join(_md_table(block))
        case Details(_, blocks):
            return "\n\n".join(map(_markdown, blocks))


def _md_table(table: Table) -> Iterator[str]:
    yield _md_row(table.header)
    yield (
        "|"
        + "|".join(" ---: " if column in table.numbers else " --- " for column in range(len(table.header)))
        + "|"
    )
    yield from map(_md_row, table.rows)


def _md_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_md(cell).replace("|", "\\|") for cell in cells) + " |"


def _md(text: str) -> str:
    return "".join(_MARKDOWN[style](piece) for style, piece in spans(text))


def _md_plain(text: str) -> str:
    """Text that shows as it stands: no tags, links, images, emphasis or entities of its own."""
    text = re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")
    text = re.sub(r"[\\`*]|~(?=~)|](?=[(\[:])", r"\\\g<0>", text)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def _md_start(text: str) -> str:
    """A beginning that does not turn the block into a heading, a list, a quotation or a rule."""
    return re.sub(r"^(#{1,6}\s|[-+>=]|\d+(?=[.)]\s))", lambda match: _escaped_start(match[1]), text)


def _escaped_start(start: str) -> str:
    return f"{start}\\" if start.isdigit() else f"\\{start}"


def _md_code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _md_strong(text: str) -> str:
    return f"**{_md_plain(text)}**"


_MARKDOWN = {"plain": _md_plain, "code": _md_code, "strong": _md_strong}


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Note(text):
            return f'<p class="note">{_inline(text)}</p>'
        case Bullets(items, ordered):
            tag = "ol" if ordered else "ul"
            return f"<{tag}>\n" + "".join(f"<li>{_inline(item)}</li>\n" for item in items) + f"</{tag}>"
        case Table():
            return _html_table(block)
        case Details(summary, blocks):
            inside = "\n".join(map(_html, blocks))
            return f"<details>\n<summary>{_inline(summary)}</summary>\n{inside}\n</details>"


def _html_table(table: Table) -> str:
    head = _html_row("th", table.header, table.numbers)
    rows = "".join(_html_row("td", row, table.numbers) for row in table.rows)
    return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>'


def _html_row(tag: str, cells: Iterable[str], numbers: frozenset[int]) -> str:
    shown = (
        f"<{tag}{' class=number' if column in numbers else ''}>{_inline(cell)}</{tag}>"
        for column, cell in enumerate(cells)
    )
    return f"<tr>{''.join(shown)}</tr>\n"


def _inline(text: str) -> str:
    return "".join(f"{_TAGS[style][0]}{html.escape(piece)}{_TAGS[style][1]}" for style, piece in spans(text))


_TAGS = {"plain": ("", ""), "code": ("<code>", "</code>"), "strong": ("<strong>", "</strong>")}
