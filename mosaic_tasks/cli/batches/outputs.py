"""Where the results of a batch go, and as what: read from `--output` and `--format`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from mosaic_queues.errors import InputError
from mosaic_queues.settings import settings
from mosaic_tasks.reports.formats import Format
from mosaic_tasks.reports.places import Folder, Place, Store

_SUFFIXES = {each.suffix: each for each in Format}
_STEM = "report"
_RESULTS = "results.jsonl"


class Output(NamedTuple):
    """Where all goes.

    Attributes:
        name: by which the batch is known, where it is given no other.
        results: the file with a line a result. It is gone on with, so it is a file of this machine also where the
            place is an object store, to which it is copied.
        place: of the reports.
        stem: their name without suffix.
        formats: what is made in the place.
    """

    name: str
    results: Path
    place: Place
    stem: str
    formats: tuple[Format, ...]

    @property
    def marks(self) -> Path:
        """The file that tells what is done."""
        return self.results.with_name(f".{self.results.name}.batch")

    @property
    def told(self) -> str:
        """The results for people: their path, or their address."""
        return self.place.where(self.results.name)


def output_of(given: str, formats: Sequence[Format], *, name: str | None) -> Output:
    """What `--output` names: a file, a folder (it is there, or ends with `/`), or the URL of an object store.

    The suffix of a file says the format where none is given. Results of a report stand beside it, as JSONL.

    Raises:
        InputError: formats are given for a file of something else.
        ConfigurationError: the store cannot be used.
    """
    if "://" in given:
        return _in_store(given, formats, name)
    path = Path(given)
    if given.endswith("/") or os.path.isdir(path):  # what cannot be looked at is told by who opens it
        results = path / _RESULTS
        _make_folder(path)
        return Output(_known(results), results, Folder(path), _STEM, _reports(formats or [Format.HTML]))
    chosen = formats or [_SUFFIXES.get(path.suffix, Format.JSONL)]
    results = path.with_suffix(".jsonl") if path.suffix in _SUFFIXES else path
    _check_suffix(given, path.suffix, chosen)
    return Output(_known(results), results, Folder(path.parent), path.stem, _reports(chosen))


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {str(path)!r}: {error.strerror}") from error


def _known(results: Path) -> str:
    return str(results.absolute())


def _reports(formats: Sequence[Format]) -> tuple[Format, ...]:
    """All but the results, which are in the folder anyway."""
    return tuple(each for each in dict.fromkeys(formats) if each is not Format.JSONL)


def _check_suffix(given: str, suffix: str, formats: Sequence[Format]) -> None:
    said = _SUFFIXES.get(suffix, Format.JSONL)
    if said not in (*formats, Format.JSONL):
        raise InputError(
            f"--output {given!r} ends as {said} does, and --format asks for {formats[0]}; name the results "
            f"(PATH.jsonl) or a folder (PATH/), or add --format {said}"
        )


def _in_store(given: str, formats: Sequence[Format], name: str | None) -> Output:
    if not given.isprintable():
        raise InputError(
            f"the URL of --output, {given!r}, has characters that URLs have not; write them as %XX"
        )
    if any(urlsplit(given)[3:]):
        raise InputError(
            "the URL of --output has a query or fragment; options of the store go into its environment"
        )
    root, _, last = given.rpartition("/")
    said = _SUFFIXES.get(PurePosixPath(last).suffix)
    stem, results = (
        (PurePosixPath(last).stem, f"{PurePosixPath(last).stem}.jsonl") if said else (_STEM, _RESULTS)
    )
    chosen = formats or [said or Format.HTML]
    if said:
        _check_suffix(given, said.suffix, chosen)
    work = settings().home / "batches" / blake2b(f"{name}\0{given}".encode(), digest_size=8).hexdigest()
    place = Store(root if said else given.rstrip("/"), work=work)
    if not (work / results).exists():
        _make_folder(work)
        place.fetch(results, work / results)
    return Output(place.where(results), work / results, place, stem, (Format.JSONL, *_reports(chosen)))
