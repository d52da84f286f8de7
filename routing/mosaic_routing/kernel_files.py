"""Files in which the kernel tells of the machine: each may be missing, or not answer."""

from __future__ import annotations

from pathlib import Path


def text_of(file: Path) -> str:
    """What the file says; empty where the kernel does not have it, or does not answer now."""
    try:
        return file.read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""


def number_of(file: Path) -> int | None:
    """The number that the file says; None where it says none."""
    text = text_of(file)
    return int(text) if text.isascii() and text.isdigit() else None


__all__ = ["number_of", "text_of"]
