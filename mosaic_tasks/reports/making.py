"""Makes the files of a report: those whose results changed since, or that are not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from mosaic_queues.errors import InputError
from mosaic_tasks.reports import markdown, page
from mosaic_tasks.reports.document import About, Entries, Limits, excerpt_of
from mosaic_tasks.reports.formats import Format
from mosaic_tasks.reports.marks import Marks, read_marks, write_marks
from mosaic_tasks.reports.naming import file_name
from mosaic_tasks.reports.page import Page
from mosaic_tasks.reports.pdf import renderer, to_pdf
from mosaic_tasks.reports.places import Place
from mosaic_tasks.reports.result import Entry, pieces_of
from mosaic_tasks.reports.template import rendered
from mosaic_tasks.reports.texts import check_reader

HTML_LIMITS = Limits(failures=200, rows=5_000, outputs=500, output_chars=50_000, all_chars=4_000_000)
PDF_LIMITS = Limits(failures=100, rows=500, outputs=100, output_chars=20_000, all_chars=250_000)
ITEMS = "items"
"""The folder of the files of single lines."""
_SAVE_EVERY_S = 5.0


def check_formats(formats: Iterable[Format]) -> None:
    """Whether these can be made here; known before the first run is started.

    Raises:
        ConfigurationError: a library is missing.
    """
    wanted = set(formats)
    if wanted - {Format.JSONL}:
        check_reader()
    if Format.PDF in wanted:
        renderer()


@dataclass(frozen=True)
class Work:
    """What is to be made.

    Attributes:
        stem: the name of the report, without suffix.
        formats: of the report; JSONL is the file `results` itself, which is copied to the place.
        each: also a file a line.
        template: the text of a template.
        sources: the files that the entries are made of.
    """

    about: About
    entries: Entries
    place: Place
    stem: str
    formats: tuple[Format, ...]
    sources: tuple[Path, ...]
    results: Path
    each: bool = False
    template: str | None = None

    @cached_property
    def markdown(self) -> tuple[str, int]:
        """What the template makes, and when that ended."""
        text, totals = rendered(self.template or "", self.about, self.entries)
        return text, totals.ended_ms

    def page(self, limits: Limits) -> Page:
        """The report as a page."""
        if self.template is None:
            return page.report(self.about, excerpt_of(self.entries(), limits))
        text, ended_ms = self.markdown
        if len(text) > (most := 2 * limits.all_chars):
            raise InputError(
                f"the template makes {len(text):,} characters, and this format bears {most:,}; show fewer lines, or "
                "make --format markdown"
            )
        return page.of_markdown(self.about.title, text, ended_ms=ended_ms)

    def blocks(self) -> Iterator[str]:
        """The report as Markdown."""
        if self.template is None:
            return markdown.report(self.about, self.entries)
        return iter([f"{self.markdown[0]}\n"])


class _File(NamedTuple):
    """A file that is to be: its name, the digest of what it is made of, and how it is made."""

    name: str
    of: str
    pieces: Callable[[], Iterable[bytes]]


def make(work: Work, marks_path: Path) -> list[str]:
    """Makes what is missing.

    Returns:
        The names of the files of the report that are there now; of files of single lines their folder.

    Raises:
        InputError: a file cannot be read or written, or the template fails.
    """
    marks = read_marks(marks_path)
    files = [_report_file(work, each) for each in work.formats]
    for file in files:
        if _make(work.place, marks, file):
            write_marks(marks_path, marks)
    if work.each:
        _make_items(work, marks, marks_path)
    return [file.name for file in files] + ([ITEMS] if work.each else [])


def _make(place: Place, marks: Marks, file: _File) -> bool:
    """Whether the file had to be made."""
    if marks.made.get(file.name) == file.of and place.holds(file.name):
        return False
    with place.writing(file.name) as path, path.open("wb") as writer:
        writer.writelines(file.pieces())
    marks.made[file.name] = file.of
    return True


def _report_file(work: Work, wanted: Format) -> _File:
    if wanted is Format.JSONL:
        return _File(work.results.name, _digest(files=[work.results]), lambda: pieces_of(work.results))
    words = (wanted, work.stem, work.template or "", *vars(work.about).values())
    of = _digest(*words, files=work.sources)
    return _File(f"{work.stem}{wanted.suffix}", of, lambda: _report_pieces(work, wanted))


def _report_pieces(work: Work, wanted: Format) -> Iterable[bytes]:
    if wanted is Format.MARKDOWN:
        return (block.encode() for block in work.blocks())
    if wanted is Format.HTML:
        return [work.page(HTML_LIMITS).html().encode()]
    return [to_pdf(work.page(PDF_LIMITS).html())]


def _make_items(work: Work, marks: Marks, marks_path: Path) -> None:
    """Makes the files of single lines, and deletes those of lines that are gone."""
    saved_s, names = time.monotonic(), set[str]()
    for file in _item_files(work):
        names.add(file.name)
        if _make(work.place, marks, file) and time.monotonic() - saved_s > _SAVE_EVERY_S:
            write_marks(marks_path, marks)
            saved_s = time.monotonic()
    for name in [name for name in marks.made if name.startswith(f"{ITEMS}/") and name not in names]:
        work.place.delete(name)
        del marks.made[name]
    write_marks(marks_path, marks)


def _item_files(work: Work) -> Iterator[_File]:
    formats = [each for each in work.formats if each is not Format.JSONL]
    for entry in work.entries():
        if entry.result.is_done:
            yield from (_item_file(work, entry, each) for each in formats)


def _item_file(work: Work, entry: Entry, wanted: Format) -> _File:
    name = f"{ITEMS}/{file_name(entry.label, line=entry.result.line)}{wanted.suffix}"
    of = _digest(wanted, entry.label, msgspec.json.encode(entry.result).decode(), work.about.results)
    return _File(name, of, lambda: _item_pieces(work.about, entry, wanted))


def _item_pieces(about: About, entry: Entry, wanted: Format) -> Iterable[bytes]:
    if wanted is Format.MARKDOWN:
        return (block.encode() for block in markdown.item(about, entry))
    limits = HTML_LIMITS if wanted is Format.HTML else PDF_LIMITS
    html = page.item(about, entry, most=limits.output_chars).html()
    return [html.encode() if wanted is Format.HTML else to_pdf(html)]


def _digest(*words: str, files: Iterable[Path] = ()) -> str:
    """Stands for what a file is made of, and for the code that makes it."""
    digest = blake2b(_edition(), digest_size=16)
    for word in words:
        digest.update(blake2b(word.encode(errors="surrogateescape")).digest())
    for path in files:
        for piece in pieces_of(path):
            digest.update(piece)
        digest.update(b"\0")
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _edition() -> bytes:
    """Changes with this room."""
    room = sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".css"))
    return blake2b(b"".join(path.read_bytes() for path in room)).digest()
