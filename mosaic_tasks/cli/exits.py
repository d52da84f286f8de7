"""Exit codes of the `mosaic` command, and how an error becomes one message and one code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import typer

from mosaic_queues.errors import (
    ConfigurationError,
    DefinitionError,
    InputError,
    MosaicError,
    NoWorker,
    RunCancelled,
    ServerError,
    UnknownRun,
    WaitTimeout,
)
from mosaic_tasks.cli.output import print_json, shown


class ExitCode(IntEnum):
    """What a shell script can tell apart. `mosaic --help` documents them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNKNOWN_RUN = 3
    SERVER = 4
    NO_WORKER = 5
    CANCELLED = 6
    TIMEOUT = 7
    PARTLY = 8
    INTERRUPTED = 130


_CODES: tuple[tuple[type[MosaicError], ExitCode], ...] = (
    (DefinitionError, ExitCode.USAGE),
    (InputError, ExitCode.USAGE),
    (ConfigurationError, ExitCode.USAGE),
    (UnknownRun, ExitCode.UNKNOWN_RUN),
    (ServerError, ExitCode.SERVER),
    (NoWorker, ExitCode.NO_WORKER),
    (RunCancelled, ExitCode.CANCELLED),
    (WaitTimeout, ExitCode.TIMEOUT),
)


def code_of(error: MosaicError) -> ExitCode:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


@contextmanager
def told_errors(*, debug: bool, as_json: bool) -> Iterator[None]:
    """Ends the command with one message and the code for what was raised; `debug` adds the traceback."""
    try:
        yield
    except MosaicError as error:
        _tell(error, str(error), code_of(error), debug=debug, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except _server_errors() as error:
        _tell(error, _server_message(error), ExitCode.SERVER, debug=debug, as_json=as_json)


def _server_errors() -> tuple[type[Exception], ...]:
    """What the clients of broker and server raise. Imported only when something was raised."""
    from kombu.exceptions import OperationalError
    from redis.exceptions import RedisError

    return (RedisError, OperationalError)


def _server_message(error: Exception) -> str:
    from kombu.exceptions import OperationalError

    from mosaic_queues.connection import told_error

    told = told_error(error)
    if told is not None:
        return str(told)
    what = "does not answer" if isinstance(error, OperationalError) else "refuses a command"
    return f"the server {what} ({error}); look into it with: mosaic doctor"


def _tell(error: Exception, message: str, code: ExitCode, *, debug: bool, as_json: bool) -> NoReturn:
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        print_json({"error": {"type": type(error).__name__, "message": message}, "exit_code": int(code)})
    else:
        told = message if isinstance(error, DefinitionError) else f"mosaic: {message}"
        typer.echo(shown(told, stream=sys.stderr), err=True)
    raise typer.Exit(code)
