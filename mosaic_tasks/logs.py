"""The log of a worker: lines of one form for all that log in its processes, Celery, libraries and engines included."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import structlog

Form = Literal["text", "json"]

_form: Form = "text"
_extend: Callable[[dict[str, Any]], dict[str, Any]] = dict


def extend(add: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Has lines of the form `json` go through a function, which may add what it knows of where they come from."""
    global _extend
    _extend = add


def form() -> Form:
    """That of this process."""
    return _form


def configure(level: str | int, form: Form, *, file: str | None = None) -> None:
    """Has everybody in this process log in this form, from `level` up.

    Args:
        file: to write to; default: stderr.
    """
    global _form
    _form = form
    handler = logging.FileHandler(file) if file else logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form, colors=not file and sys.stderr.isatty()))
    logging.basicConfig(
        level=level.upper() if isinstance(level, str) else level, handlers=[handler], force=True
    )
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_added(form),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def formatter(form: Form, *, colors: bool = False) -> logging.Formatter:
    """Formats the records of structlog and of everybody else; vLLM's processes find it by its name."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_added(form), _in_one_line],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(form, colors)],
    )


def _added(form: Form) -> Sequence[Any]:
    """What a line has beside what is said."""
    std = structlog.stdlib
    if form == "text":
        return [std.add_log_level, structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False)]
    return [
        structlog.contextvars.merge_contextvars,
        _extended,
        std.add_logger_name,
        std.add_log_level,
        std.ExtraAdder(allow=["error"]),
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]


def _extended(_logger: Any, _method: str, event: Any) -> Any:
    return _extend(event)


def _renderer(form: Form, colors: bool) -> Any:
    if form == "json":
        return structlog.processors.JSONRenderer()
    # Without the values of variables, which may be secrets.
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)


def _in_one_line(_logger: Any, _method: str, event: Any) -> Any:
    """Warnings come with a line of source, and with what breaks they like."""
    if event["_record"].name == "py.warnings":
        event["event"] = " ".join(event["event"].split())
    return event
