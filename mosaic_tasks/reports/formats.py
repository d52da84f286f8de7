"""What results come as."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """A format, as `--format` names it."""

    JSONL = "jsonl"
    MARKDOWN = "markdown"
    HTML = "html"
    PDF = "pdf"

    @property
    def suffix(self) -> str:
        """Of files."""
        return ".md" if self is Format.MARKDOWN else f".{self.value}"
