"""The results of a batch: a JSON object a line, in the order of the inputs, in a file that is gone on with."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import typer

from mosaic_queues.errors import InputError
from mosaic_tasks.cli.batches.items import Item
from mosaic_tasks.cli.output import to_json


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a line came to.

    Attributes:
        line: number of the line.
        run: None where none was started.
        status: `done`, `failed` or `cancelled` as of runs; `bad`: no run could be made of it.
        output: of a run that is done.
        error: of one that is not, and of a bad line.
        key: of its `Item`; the same key, the same work.
    """

    line: int
    run: str | None
    status: str
    key: str
    output: Any = None
    error: str = ""

    def text(self) -> str:
        """The line that stands for it."""
        end = {"output": self.output} if self.status == "done" else {"error": self.error}
        return to_json(
            {"line": self.line, "run": self.run, "status": self.status, **end, "key": self.key}, indent=0
        )


class Earlier(msgspec.Struct, frozen=True):
    """What is read back of a result; its output is not."""

    line: int
    status: str
    key: str


class Results(Protocol):
    """Where results go."""

    def earlier(self, item: Item) -> Earlier | None:
        """The result of the item that an earlier try wrote; None from the first that it did not. Ask in order."""

    def mend(self) -> bool:
        """Takes off what an earlier try wrote in part; whether there was something. No earlier result may be left."""

    def append(self, result: Result) -> None:
        """Writes the next result."""


@contextmanager
def opened(path: Path | None) -> Iterator[Results]:
    """The results in a file, which belongs to one batch at a time; without one on stdout.

    Raises:
        InputError: it cannot be written, or another batch writes it.
    """
    if path is None:
        yield Printed()
        return
    with _told(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        _take(path, descriptor)
        with path.open("rb") as reader:
            yield Written(path, descriptor, _Lines(reader))
    finally:
        os.close(descriptor)


def _take(path: Path, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InputError(f"{str(path)!r} is no regular file; without --output the results go to stdout")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"another `mosaic batch` writes {str(path)!r}; wait for its end") from None


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write the results to {str(path)!r}: {error.strerror}") from error


class Printed:
    """Results on stdout, where nobody finds them again."""

    def earlier(self, _item: Item) -> None:
        """None."""

    def mend(self) -> bool:
        """Nothing to mend."""
        return False

    def append(self, result: Result) -> None:
        """Prints a line."""
        typer.echo(result.text())


class _Lines:
    """The whole lines of a file, and where they end."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.end = 0
        self.rest = b""

    def next(self) -> bytes:
        """The next whole line; empty after the last."""
        line: bytes = self._file.readline()
        if not line.endswith(b"\n"):
            self.rest += line
            return b""
        self.end += len(line)
        return line


class Written:
    """Results in a file."""

    def __init__(self, path: Path, descriptor: int, lines: _Lines) -> None:
        self._path, self._descriptor, self._lines = path, descriptor, lines
        self._is_at_end = False
        self._count = 0

    def earlier(self, item: Item) -> Earlier | None:
        """Reads the next line of the file.

        Raises:
            InputError: it is no result, or that of something else.
        """
        if self._is_at_end:
            return None
        line = self._lines.next()
        if not line:
            self._is_at_end = True
            self._check_rest(item)
            return None
        self._count += 1
        found = self._read(line)
        if (found.line, found.key) != (item.number, item.key):
            raise InputError(
                f"{str(self._path)!r}, line {self._count}, is the result of other inputs, another workflow or model, "
                f"or another --name than line {item.number} of these inputs has now; name another --output"
            )
        return found

    def _read(self, line: bytes) -> Earlier:
        try:
            return msgspec.json.decode(line, type=Earlier)
        except (ValueError, RecursionError) as error:
            raise self._foreign(f"line {self._count}") from error

    def _check_rest(self, item: Item) -> None:
        """A line without an end is ours, and not whole, when it begins as ours would."""
        begin = f'{{"line":{item.number},'.encode()
        if self._lines.rest[: len(begin)] != begin[: len(self._lines.rest)]:
            raise self._foreign("the end")

    def _foreign(self, where: str) -> InputError:
        return InputError(
            f"{str(self._path)!r}, {where}, is no result of a batch; name another --output, it is left as it is"
        )

    def mend(self) -> bool:
        """Cuts the file after its last whole line.

        Raises:
            InputError: there are more results than items.
        """
        if not self._is_at_end and (self._lines.next() or self._lines.rest):
            raise InputError(
                f"{str(self._path)!r} has results of more lines than there are; name another --output"
            )
        if self._lines.rest:
            with _told(self._path):
                os.ftruncate(self._descriptor, self._lines.end)
        return bool(self._lines.rest)

    def append(self, result: Result) -> None:
        """Writes a line at the end of the file.

        Raises:
            InputError: it cannot be written.
        """
        left = memoryview(f"{result.text()}\n".encode())
        with _told(self._path):
            while left:
                left = left[os.write(self._descriptor, left) :]
