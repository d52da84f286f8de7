"""What of a batch was made and told already: a small file beside its results, so that the same command repeats nothing.

A file is made, and a webhook is told, before it is marked. Whoever dies between does it once more: a file has the same
bytes then, and a message the same id.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from mosaic_queues.errors import InputError


class Marks(msgspec.Struct):
    """What is done.

    Attributes:
        made: files by name, each with the digest of what it was made of.
        told: id of the message that the receiver of the webhook took last.
    """

    made: dict[str, str] = {}
    told: str = ""


def read_marks(path: Path) -> Marks:
    """The marks in a file; none where there is none, or where somebody wrote something else into it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Marks)
    except (OSError, ValueError, RecursionError):
        return Marks()


def write_marks(path: Path, marks: Marks) -> None:
    """Writes the marks, in one step.

    Raises:
        InputError: it cannot be written.
    """
    fresh = path.with_name(f"{path.name}.fresh")
    try:
        fresh.write_bytes(msgspec.json.encode(marks))
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):  # what keeps it from being written may keep it from being deleted
            fresh.unlink(missing_ok=True)
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
