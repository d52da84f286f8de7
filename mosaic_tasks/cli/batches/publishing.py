"""What happens when all lines of a batch have their results: reports are made, and the webhook is told."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mosaic_queues.errors import InputError
from mosaic_queues.times import utc_text
from mosaic_tasks.cli.batches.items import Items
from mosaic_tasks.cli.batches.outputs import Output, output_of
from mosaic_tasks.reports.document import About
from mosaic_tasks.reports.formats import Format
from mosaic_tasks.reports.making import Work, check_formats, make
from mosaic_tasks.reports.marks import read_marks, write_marks
from mosaic_tasks.reports.naming import label_of
from mosaic_tasks.reports.result import Entry, Totals, pieces_of, read_results, totals_of
from mosaic_tasks.reports.template import read_template
from mosaic_tasks.webhooks.delivery import Message, Sender, deliver, sender_to


class Wish(NamedTuple):
    """What a command asks for beside the results, as it is given.

    Attributes:
        output: the place.
        each: a file a line, too.
        title: of the report.
        template: the path of one.
        webhook: the URL that is told.
        name: of the batch.
    """

    output: str
    formats: tuple[Format, ...]
    each: bool
    title: str | None
    template: Path | None
    webhook: str | None
    name: str | None


class Published(NamedTuple):
    """What came of it, for people.

    Attributes:
        reports: where they are.
        undelivered: why the webhook was not told; empty: it was, or there is none.
    """

    results: str
    reports: list[str]
    undelivered: str


def publishing_of(wish: Wish, workflow: str, command: Sequence[str]) -> Publishing:
    """Checks what is asked for, before the first run is started.

    Args:
        workflow: its name.
        command: the words that the command begins with.

    Raises:
        InputError: a place, a template or a URL that cannot be used.
        ConfigurationError: a library or a secret is missing.
    """
    output = output_of(wish.output, wish.formats, name=wish.name)
    if (wish.each or wish.template) and not set(output.formats) - {Format.JSONL}:
        raise InputError("--each and --template are for reports; add --format html, pdf or markdown")
    check_formats(output.formats)
    return Publishing(
        output,
        title=wish.title or workflow,
        workflow=workflow,
        again=shlex.join([*command, *_words(wish)]),
        each=wish.each,
        template=read_template(wish.template) if wish.template else None,
        sender=sender_to(wish.webhook) if wish.webhook else None,
    )


def _words(wish: Wish) -> Iterator[str]:
    """The options, without the webhook, whose URL may hold a secret."""
    yield from ("--output", wish.output)
    for wanted in wish.formats:
        yield from ("--format", wanted)
    if wish.each:
        yield "--each"
    for option, value in {"--title": wish.title, "--template": wish.template, "--name": wish.name}.items():
        if value:
            yield from (option, str(value))


@dataclass(frozen=True)
class Publishing:
    """A checked `Wish`.

    Attributes:
        again: the command that goes on with the batch.
        template: the text of one.
    """

    output: Output
    title: str
    workflow: str
    again: str
    each: bool
    template: str | None
    sender: Sender | None

    def publish(self, items: Items, name: str, *, told: Callable[[str], object]) -> Published:
        """Makes the reports, and tells the webhook unless it took this very message already.

        Args:
            name: of the batch.
            told: is called with a sentence when the receiver is to be told once more.

        Raises:
            InputError: something cannot be written.
        """
        made = make(self._work(items), self.output.marks) if self.output.formats else []
        reports = [self.output.place.where(each) for each in made if each != self.output.results.name]
        undelivered = self._tell(name, reports, told) if self.sender else ""
        return Published(self.output.told, reports, undelivered)

    def _tell(self, name: str, reports: list[str], told: Callable[[str], object]) -> str:
        """Returns why the webhook was not told; empty: it was."""
        assert self.sender is not None
        message = _message(name, self.workflow, self.output, reports)
        marks = read_marks(self.output.marks)
        if marks.told == message.id:
            return ""
        problem = deliver(self.sender, message, told=told)
        if not problem:
            write_marks(self.output.marks, msgspec.structs.replace(marks, told=message.id))
        return problem

    def _work(self, items: Items) -> Work:
        output = self.output
        return Work(
            about=self._about(items),
            entries=lambda: _entries(items, output.results),
            place=output.place,
            stem=output.stem,
            formats=output.formats,
            sources=(items.path, output.results),
            results=output.results,
            each=self.each,
            template=self.template,
        )

    def _about(self, items: Items) -> About:
        return About(
            title=_readable(self.title),
            workflow=self.workflow,
            again=_readable(self.again),
            inputs=_readable(str(items.path)),
            results=_readable(self.output.told),
        )


def _entries(items: Items, results: Path) -> Iterator[Entry]:
    """The results, which are in the order of the lines, with their labels."""
    try:
        for inputs, result in zip(items.inputs(), read_results(results), strict=True):
            yield Entry(label_of(inputs, result.output, line=result.line), result)
    except ValueError:
        raise InputError(f"{str(items.path)!r} was changed meanwhile; give the same command again") from None


def _message(name: str, workflow: str, output: Output, reports: list[str]) -> Message:
    """The same results make the same message, with the same id."""
    totals = totals_of(read_results(output.results))
    data = {
        "batch": _readable(name),
        "workflow": workflow,
        **_counts(totals),
        "results": _readable(output.told),
    }
    event = {
        "type": "batch.completed",
        "timestamp": _iso(totals.ended_ms),
        "data": {**data, "reports": reports},
    }
    body = msgspec.json.encode(event)
    digest = blake2b(body, digest_size=16)
    for piece in pieces_of(output.results):
        digest.update(piece)
    return Message(f"msg_{digest.hexdigest()}", body)


def _counts(totals: Totals) -> dict[str, Any]:
    return {
        "lines": totals.lines,
        "done": totals.done,
        "failed": totals.failed,
        "started": _iso(totals.began_ms),
        "ended": _iso(totals.ended_ms),
        "tokens": totals.tokens_in + totals.tokens_out,
        "cost_usd": round(totals.cost_usd, 6),
    }


def _iso(ms: int) -> str | None:
    """None where nothing ran."""
    return utc_text(ms) if ms else None


def _readable(text: str) -> str:
    """Text without the bytes of a path that are none."""
    return text.encode(errors="replace").decode()
