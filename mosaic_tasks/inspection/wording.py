"""Words for people: durations, counts and lists, the same in every message."""

from __future__ import annotations

from collections.abc import Sequence


def duration(ms: float) -> str:
    """A length of time: `850 ms`, `3.2 s`, `2 min 05 s`, `1 h 03 min`, `2 d 04 h`."""
    if ms < 1000:
        return f"{max(ms, 0):.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    minutes = seconds // 60
    if minutes < 1440:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60:02d} h"


def dollars(usd: float) -> str:
    """An amount of money: `0.2500 USD`; what one call of a small model costs needs two more places: `0.000039 USD`."""
    return f"{usd:.4f} USD" if not 0 < usd < 0.01 else f"{usd:.6f} USD"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 item`, `3 items`, `1,204 items`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(words: Sequence[str], *, most: int = 5) -> str:
    """`a, b and c`; of more than `most` words the first ones and how many more there are."""
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def shortened(text: str, most: int) -> str:
    """The beginning of a text on one line, without what would change a terminal."""
    line = "".join(char if char.isprintable() else "?" for char in " ".join(text[: 4 * most].split()))
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 3]}..."
