"""What pages of the reference are made of: Markdown from texts, tables and docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

HEAD = "<!-- Written by scripts/reference.py from the code: `make reference`. Do not edit. -->\n"
WIDTH = 120


def page(title: str, about: str, *parts: str) -> str:
    """A page."""
    return "\n\n".join([f"{HEAD}\n# {title}", prose(about), *(part for part in parts if part)]) + "\n"


def table(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell(each) for each in line)} |" for line in lines)


def cell(value: Any) -> str:
    return unwrapped(str(value or "")).replace("|", r"\|")


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)


def prose(text: str) -> str:
    """A paragraph in lines."""
    return textwrap.fill(unwrapped(text), WIDTH, break_long_words=False, break_on_hyphens=False)


def docstring(thing: Any) -> Iterator[str]:
    """A docstring in Google's style as paragraphs and lists."""
    for paragraph in re.split(r"\n\n(?=\S)", inspect.getdoc(thing) or ""):
        title, _, body = paragraph.partition("\n")
        if title not in ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:"):
            yield _with_code(paragraph)
        elif title in ("Returns:", "Yields:"):
            yield prose(f"{title} {textwrap.dedent(body)}")
        else:
            yield f"{title}\n\n{listed(body)}"


def _with_code(paragraph: str) -> str:
    """A paragraph; what is indented in it is code."""
    words, _, code = paragraph.partition("\n\n    ")
    block = f"\n\n```text\n{textwrap.dedent('    ' + code).rstrip()}\n```" if code else ""
    return prose(words) + block


def fields_of(thing: Any) -> str:
    """The attributes that a docstring tells, as a list."""
    return listed((inspect.getdoc(thing) or "").partition("Attributes:\n")[2])


def listed(body: str) -> str:
    """Names and what is said of them, as a list."""
    return "\n".join(f"- {line}" for line in items(textwrap.dedent(body)))


def items(body: str) -> Iterator[str]:
    for item in re.split(r"\n(?=\S)", body):
        names, _, about = item.partition(":")
        yield f"{', '.join(f'`{name.strip()}`' for name in names.split(','))}: {unwrapped(about)}"


def is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException)
