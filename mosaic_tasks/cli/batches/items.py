"""The inputs of a batch: a file with a JSON object a line, read one line at a time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mosaic_queues.errors import InputError
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.definition.workflow import Workflow
from mosaic_tasks.submission import check_inputs


class Item(NamedTuple):
    """One line.

    Attributes:
        number: of the line in its file, from 1.
        key: stands for batch, workflow and content of the line; the idempotency key of its run. Of lines that say the
            same, each has its own.
        inputs: of its run; of no use where there is a `problem`.
        problem: why no run can be made of it.
    """

    number: int
    key: str
    inputs: dict[str, Any]
    problem: str = ""


class Items:
    """The lines of a file that are not blank. Each iteration reads the file again and keeps no line.

    Args:
        name: of the batch: another name makes other keys, so other runs.

    Attributes:
        mark: with which the keys of this batch begin.
    """

    def __init__(self, path: Path, workflow: Workflow, plan: Plan, *, name: str) -> None:
        # What cannot be looked at is told by who opens it.
        if os.path.exists(path) and not os.path.isfile(path):
            raise InputError(f"{str(path)!r} is no file; the inputs are read twice, so write them into one")
        self.path, self._workflow = path, workflow
        seed = blake2b(name.encode(errors="surrogateescape") + b"\0" + plan.encode(), digest_size=8)
        self.mark = f"batch-{seed.hexdigest()}-"

    def __iter__(self) -> Iterator[Item]:
        seen: Counter[bytes] = Counter()
        for number, line in enumerate(self._lines(), 1):
            if text := line.strip():
                yield self._item(number, text, seen)

    def inputs(self) -> Iterator[dict[str, Any]]:
        """Those of each line, unchecked and without the workflow's defaults; none of a line that is no object."""
        for text in filter(None, map(bytes.strip, self._lines())):
            try:
                yield _object(text)
            except InputError:
                yield {}

    def _lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as lines:
                yield from lines
        except OSError as error:
            raise InputError(
                f"cannot read the inputs {str(self.path)!r}: {error.strerror or error}"
            ) from error

    def _item(self, number: int, text: bytes, seen: Counter[bytes]) -> Item:
        digest = blake2b(text, digest_size=16)
        seen[digest.digest()] += 1
        if (times := seen[digest.digest()]) > 1:
            digest.update(b"\0%d" % times)
        key = self.mark + digest.hexdigest()
        try:
            inputs = _object(text)
            check_inputs(self._workflow, inputs)
        except InputError as error:
            return Item(number, key, {}, str(error))
        return Item(number, key, inputs)


def _object(text: bytes) -> dict[str, Any]:
    try:
        read = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise InputError(f"it is {text.decode()!r:.80}, but an object is wanted: the inputs by their names")
    return read
