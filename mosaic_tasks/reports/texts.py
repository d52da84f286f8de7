"""What models wrote, as text that is only shown: HTML in it stands as it is written, nothing loads from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from mosaic_queues.errors import ConfigurationError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_SCHEMES = ("http", "https", "mailto")
_IMAGE = re.compile(r"(?<!\\)((?:\\\\)*)!(?=\[)")
"""Not behind an odd number of backslashes, which escape it."""
_TAG = re.compile(r"(?<!\\)((?:\\\\)*)<")
_MAX_NESTING = 20
_LAST_HEADING = 6


class Shown(NamedTuple):
    """An output as text.

    Attributes:
        is_code: it is to be shown letter by letter; else it is Markdown.
        left_out: so many characters of its end are missing.
    """

    text: str
    is_code: bool
    left_out: int = 0


def shown(output: Any, *, most: int) -> Shown:
    """Text, and an object with a text `markdown`, as Markdown; everything else as JSON."""
    text = output.get("markdown") if isinstance(output, dict) else output
    if isinstance(text, str):
        return Shown(text[:most], False, max(len(text) - most, 0))
    code = msgspec.json.format(msgspec.json.encode(output), indent=2).decode()
    return Shown(code[:most], True, max(len(code) - most, 0))


def to_html(markdown: str, *, below: int = 0) -> str:
    """Markdown as HTML.

    Args:
        below: the level of the heading that it stands under; its own headings go below that.
    """
    tokens = _reader(is_html_read=False).parse(markdown)
    for token in tokens:
        _lower(token, below)
        _align(token)
        _mark_links(token.children or [])
    reader = _reader(is_html_read=False)
    return str(reader.renderer.render(tokens, reader.options, {}))


def _lower(token: Token, below: int) -> None:
    if token.type in ("heading_open", "heading_close"):
        token.tag = f"h{min(int(token.tag[1]) + below, _LAST_HEADING)}"


def _align(token: Token) -> None:
    """By a class; styles that stand in tags are not allowed in our pages."""
    if token.attrs.pop("style", "") == "text-align:right":
        token.attrSet("class", "number")


def _mark_links(tokens: Sequence[Token]) -> None:
    for token in tokens:
        if token.type == "link_open":
            token.attrSet("rel", "nofollow noopener noreferrer")


def untitled(markdown: str, label: str) -> str:
    """The text without the heading that says again what it is called."""
    first, _, rest = markdown.lstrip().partition("\n")
    return rest.lstrip("\n") if first.startswith("# ") and first[2:].strip() == label else markdown


def without_html(markdown: str) -> str:
    """Markdown that shows tags and images as they are written, whoever reads it; other blocks stay the same.

    What is escaped may end a block, so that what was code is none any more: hence again, until nothing is left.
    """
    if "<" not in markdown and "![" not in markdown:
        return markdown
    lines = _lines(markdown)
    while blocks := _active_blocks("\n".join(lines)):
        before = list(lines)
        for begin, end in blocks:
            lines[begin:end] = [_escaped(line) for line in lines[begin:end]]
        if lines == before:
            lines = [line.replace("<", "&lt;").replace("![", "&#33;[") for line in lines]
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    """The lines as Markdown counts them."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _active_blocks(markdown: str) -> list[tuple[int, int]]:
    """The first and the last line (not included) of blocks with tags or images."""
    tokens = _reader(is_html_read=True).parse(markdown)
    return [(token.map[0], token.map[1]) for token in tokens if token.map and _is_active(token)]


def _is_active(token: Token) -> bool:
    """Images also where they refer to what is not here: in the whole document it might be."""
    if token.type == "inline":
        has_tag = any(child.type == "html_inline" for child in token.children or [])
        return has_tag or bool(_IMAGE.search(token.content))
    return token.type == "html_block"


def _escaped(text: str) -> str:
    text = _IMAGE.sub(r"\1&#33;", text)
    return _TAG.sub(r"\1&lt;", text)


def plain(text: str) -> str:
    """Markdown that shows a line of text as it is, in a table too."""
    line = " ".join(text.split())
    line = re.sub(r"&(?=#?\w+;)", "&amp;", line).replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|~]|^[#+>=-]|^\d+(?=[.)]))", r"\\\1", line)


def quoted(markdown: str) -> str:
    """A block quotation: whatever is open at its end (a fence, a list) ends with it."""
    return "\n".join(f"> {line}".rstrip() for line in _lines(markdown.rstrip()))


def fenced(code: str, language: str = "json") -> str:
    """A block of code."""
    longest = max(map(len, re.findall(r"`{3,}", code)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"


@lru_cache(maxsize=2)
def _reader(*, is_html_read: bool) -> MarkdownIt:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise ConfigurationError(
            "reports need markdown-it-py; install it with: pip install 'mosaic-tasks[reports]'"
        ) from None
    options = {"html": is_html_read, "maxNesting": _MAX_NESTING}
    reader = MarkdownIt("commonmark", options).enable(["table", "strikethrough"])
    if not is_html_read:
        reader.disable("image")  # `![a](url)` becomes a sign and a link
        reader.validateLink = _is_harmless  # type: ignore[method-assign]
    return reader


def _is_harmless(url: str) -> bool:
    try:
        return urlsplit(url.strip()).scheme.lower() in _SCHEMES
    except ValueError:
        return False


def check_reader() -> None:
    """Whether Markdown can be read here.

    Raises:
        ConfigurationError: it cannot.
    """
    _reader(is_html_read=False)
