"""The commands for messages that nobody could work on: dead list, show, requeue, drop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from mosaic_queues.errors import ConfigurationError, InputError
from mosaic_tasks.cli.options import JsonOption, utf8
from mosaic_tasks.cli.output import console, print_json, shown, table, to_json

if TYPE_CHECKING:
    from mosaic_queues.dead_letters import DeadLetter, DeadLetters

T = TypeVar("T")

dead = typer.Typer(
    name="dead",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show, send again or forget messages that nobody could work on.",
)

_NONE = "there are no dead letters"
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", callback=utf8, help="As `mosaic dead list` shows it.")
]
IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="As `mosaic dead list` shows them.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All that there are.")]


@dead.command("list")
def list_letters(as_json: JsonOption = False) -> None:
    """List them, the newest first.

    \b
    Examples:
      mosaic dead list
      mosaic dead list --json | jq -r '.[] | select(.reason | startswith("CallLost")) | .run'
    """
    found = _with_letters(lambda letters: letters.all())
    if as_json:
        print_json(found)
    elif not found:
        typer.echo(_NONE)
    else:
        rows = table("ID", "AT", "QUEUE", "TASK", "REASON")
        for letter in found:
            rows.add_row(letter.id, _at(letter), letter.queue, *map(shown, (letter.task, letter.reason)))
        console(unknown_width=200).print(rows)


@dead.command()
def show(letter_id: IdArgument, as_json: JsonOption = False) -> None:
    """Show one with all that is known of it, its message too.

    \b
    Example:
      ID=$(mosaic dead list --json | jq -r '.[0].id')
      mosaic dead show $ID
    """
    letter = _with_letters(lambda letters: letters.get(letter_id))
    if as_json:
        print_json(letter)
        return
    told = {"id": letter.id, "reason": letter.reason, "at": _at(letter), "queue": letter.queue}
    told |= {
        "worker": letter.worker,
        "task": letter.task,
        "run": letter.run,
        "calls": ", ".join(letter.calls),
    }
    for name, value in told.items():
        if value:
            typer.echo(shown(f"{name + ':':8} {value}"))
    if letter.message is not None:
        typer.echo(shown(f"message: {to_json(letter.message)}"))
    elif letter.text:
        typer.echo(shown(f"text:    {letter.text}"))


@dead.command()
def requeue(ids: IdsArgument = None, every: AllOption = False, as_json: JsonOption = False) -> None:
    """Put messages back into the queues that they came from, behind what waits there.

    With --all, letters that have no message to send are left where they are.

    \b
    Examples:
      mosaic dead requeue $ID
      mosaic dead requeue --all
    """

    def act(letters: DeadLetters) -> list[str]:
        chosen = _chosen(letters, ids, every=every)
        some = [letter for letter in chosen if letter.message is not None or not every]
        return [letter.id for letter in some if letters.requeue(letter)]

    done = _with_letters(act)
    _tell(done, "put back", as_json=as_json)
    if done and not as_json:
        typer.echo(
            "next: a worker of their queues takes them up; what still nobody can work on comes back here"
        )


@dead.command()
def drop(ids: IdsArgument = None, every: AllOption = False, as_json: JsonOption = False) -> None:
    """Forget them.

    \b
    Examples:
      mosaic dead drop $ID
      mosaic dead drop --all
    """

    def act(letters: DeadLetters) -> list[str]:
        chosen = _chosen(letters, ids, every=every)
        return [letter.id for letter in chosen if letters.drop(letter.id)]

    _tell(_with_letters(act), "forgotten", as_json=as_json)


def _chosen(letters: DeadLetters, ids: Sequence[str] | None, *, every: bool) -> list[DeadLetter]:
    """The letters that are meant; all are looked up before anything is done to one."""
    if bool(ids) == every:
        raise InputError("name the dead letters, or give --all; `mosaic dead list` shows them")
    return letters.all() if every else [letters.get(letter_id) for letter_id in dict.fromkeys(ids or ())]


def _tell(done: list[str], what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{what}: {', '.join(done) or 'none'}")


def _with_letters(act: Callable[[DeadLetters], T]) -> T:
    from mosaic_queues.connection import connect, server_urls
    from mosaic_queues.dead_letters import dead_letters
    from mosaic_tasks.app import app

    connect(server_urls().redis_url).close()  # told in one sentence where it does not answer
    with dead_letters(app) as letters:
        if letters is None:
            raise ConfigurationError("the broker is no Redis, and keeps no dead letters")
        return act(letters)


def _at(letter: DeadLetter) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(letter.at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
