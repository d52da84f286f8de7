"""The results of a batch: a JSON object a line, in the order of the inputs, in a file that is gone on with."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec
import typer

from mosaic_queues.errors import InputError
from mosaic_tasks.cli.batches.items import Item
from mosaic_tasks.cli.output import shown, to_json
from mosaic_tasks.inspection.wording import counted
from mosaic_tasks.reports.result import Result

_BEGIN = b'{"line":'
_PIECE_BYTES = 1 << 20
_READ = "read the results in"


def text_of(result: Result) -> str:
    """The line that stands for a result."""
    end = {"output": result.output} if result.is_done else {"error": result.error}
    usage = {} if result.usage is None else {"usage": msgspec.to_builtins(result.usage)}
    told = {
        "line": result.line,
        "run": result.run,
        "status": result.status,
        **usage,
        **end,
        "key": result.key,
    }
    return to_json(told, indent=0)


class Earlier(msgspec.Struct, frozen=True):
    """What is read back of a result; its output is not."""

    line: int
    status: str
    key: str


class Results(Protocol):
    """Where results go.

    Attributes:
        in_order: so many of the first items have their results already, in order.
    """

    in_order: int

    def earlier(self, item: Item) -> Earlier | None:
        """The result of the item that an earlier try wrote; None: it wrote none. Ask for all items, in order."""

    def settle(self) -> list[str]:
        """Once that is done: makes ready for more; sentences about what is left out of what an earlier try wrote."""

    def lacks(self, item: Item) -> bool:
        """Whether the item, one behind those `in_order`, has no earlier result."""

    def append(self, result: Result) -> None:
        """Writes the next result."""

    def sort(self, items: Iterable[Item]) -> None:
        """Brings the results into the order of the items, all of which have one now."""


@contextmanager
def opened(path: Path | None, *, mark: str) -> Iterator[Results]:
    """The results in a file, which belongs to one batch at a time; without one on stdout.

    Args:
        mark: with which the keys of the batch begin.

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
        with _told(path, _READ):
            file = path.open("rb")
        with file as reader:
            yield Written(path, descriptor, _Lines(reader), mark=mark)
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
def _told(path: Path, doing: str = "write the results to") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot {doing} {str(path)!r}: {error.strerror}") from error


class Printed:
    """Results on stdout, where nobody finds them again."""

    in_order = 0

    def earlier(self, _item: Item) -> None:
        """None."""

    def settle(self) -> list[str]:
        """Nothing to leave out."""
        return []

    def lacks(self, _item: Item) -> bool:
        """Always."""
        return True

    def append(self, result: Result) -> None:
        """Prints a line.

        Raises:
            InputError: it cannot be written; that nobody reads any more is no error.
        """
        try:
            typer.echo(shown(text_of(result)))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise InputError(f"cannot write the results to stdout: {error.strerror}") from error

    def sort(self, items: Iterable[Item]) -> None:
        """They are in order."""


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


class _Place(NamedTuple):
    """Where a result stands in a file."""

    begin: int
    size: int
    earlier: Earlier


class Written:
    """Results in a file.

    As long as they follow the items, they are only counted. From the first that does not (a line was changed, added or
    taken out since) their places are kept: those of lines that are still there stay, new ones are appended, and at the
    end the file is written anew in the order of the items.

    Args:
        mark: with which the keys of this batch begin.
    """

    def __init__(self, path: Path, descriptor: int, lines: _Lines, *, mark: str) -> None:
        self._path, self._descriptor, self._lines, self._mark = path, descriptor, lines, mark
        self.in_order = 0
        self._end_in_order = 0
        self._count = 0
        self._found: set[str] = set()
        self._places: dict[str, _Place] | None = None

    def earlier(self, item: Item) -> Earlier | None:
        """Looks for the result of an item.

        Raises:
            InputError: the file holds what is no result, or is that of something else.
        """
        if self._places is None:
            place = self._next()
            if place is not None and (place.earlier.line, place.earlier.key) == (item.number, item.key):
                self.in_order += 1
                self._end_in_order = self._lines.end
                return place.earlier
            self._places = self._indexed(place)
        found = self._places.get(item.key)
        if found is None:
            return None
        self._found.add(item.key)
        return found.earlier

    def _next(self) -> _Place | None:
        """The next whole line; None after the last."""
        begin = self._lines.end
        with _told(self._path, _READ):
            line = self._lines.next()
        if not line:
            self._check_rest()
            return None
        self._count += 1
        return _Place(begin, len(line), self._read(line))

    def _indexed(self, place: _Place | None) -> dict[str, _Place]:
        """This and all that follow, by their keys."""
        places: dict[str, _Place] = {}
        while place is not None:
            places[place.earlier.key] = place
            place = self._next()
        return places

    def _read(self, line: bytes) -> Earlier:
        try:
            found = msgspec.json.decode(line, type=Earlier)
        except (ValueError, RecursionError) as error:
            raise self._foreign(f"line {self._count}") from error
        if not found.key.startswith(self._mark):
            raise InputError(
                f"{str(self._path)!r}, line {self._count}, is the result of another workflow or model, or of another "
                "--name than this batch has; name another --output"
            )
        return found

    def _check_rest(self) -> None:
        """A line without an end is ours, and not whole, when it begins as ours would."""
        rest = self._lines.rest
        if rest[: len(_BEGIN)] != _BEGIN[: len(rest)]:
            raise self._foreign("the end")

    def _foreign(self, where: str) -> InputError:
        return InputError(
            f"{str(self._path)!r}, {where}, is no result of a batch; name another --output, it is left as it is"
        )

    def settle(self) -> list[str]:
        """Cuts the file after its last whole line.

        Raises:
            InputError: more outputs would be left out than results are kept: these are rather other inputs.
        """
        if self._places is None:
            self._places = self._indexed(self._next())
        said = []
        if left_out := self._left_out(self._places):
            said.append(
                f"{counted(left_out, 'result')} of lines that changed or are gone: left out of {self._path}"
            )
        if self._lines.rest:
            with _told(self._path):
                os.ftruncate(self._descriptor, self._lines.end)
            said.append(f"a line of {self._path} that was written in part is written again")
        return said

    def _left_out(self, places: Mapping[str, _Place]) -> int:
        """How many results no item has; most of the outputs must not be among them."""
        rest = [place.earlier for key, place in places.items() if key not in self._found]
        lost, kept = sum(each.status == "done" for each in rest), self.in_order + len(self._found)
        if lost > kept:
            raise InputError(
                f"{str(self._path)!r} has outputs of {counted(lost, 'line')} that these inputs do not have, and "
                f"results of {kept:,} that they have; name another --output"
            )
        return len(rest)

    def lacks(self, item: Item) -> bool:
        """Looks among the places."""
        assert self._places is not None, "settle comes first"
        return item.key not in self._places

    def append(self, result: Result) -> None:
        """Writes a line at the end of the file.

        Raises:
            InputError: it cannot be written.
        """
        data = f"{text_of(result)}\n".encode()
        with _told(self._path):
            _write_all(self._descriptor, data)
        if self._places:
            self._places[result.key] = _Place(
                self._lines.end, len(data), Earlier(result.line, result.status, result.key)
            )
        self._lines.end += len(data)

    def sort(self, items: Iterable[Item]) -> None:
        """Writes the file anew where it is not in order.

        Raises:
            InputError: it cannot be written.
        """
        if not self._places:
            return
        path = self._path.resolve()
        fresh = path.with_name(f".{path.name}.sorted")
        try:
            with _told(self._path), path.open("rb") as old, fresh.open("wb") as new:
                fcntl.flock(new, fcntl.LOCK_EX)
                _copy(old, new, self._end_in_order)
                for item in islice(items, self.in_order, None):
                    place = self._places[item.key]
                    old.seek(place.begin)
                    new.write(_renumbered(old.read(place.size), item.number))
                new.flush()
                shutil.copymode(path, fresh)
                fresh.replace(path)
                os.dup2(
                    new.fileno(), self._descriptor, inheritable=False
                )  # the lock goes on with the new file
        finally:
            with suppress(OSError):  # what keeps it from being written may keep it from being deleted
                fresh.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _copy(old: BinaryIO, new: BinaryIO, size: int) -> None:
    """The first bytes of a file."""
    while size and (piece := old.read(min(size, _PIECE_BYTES))):
        new.write(piece)
        size -= len(piece)


def _renumbered(line: bytes, number: int) -> bytes:
    """A result whose line has moved."""
    return b"%s%d%s" % (_BEGIN, number, line[line.index(b",") :])
