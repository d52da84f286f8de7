"""Fills in the templates that stand beside this module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def rendered(template: str, **values: Any) -> str:
    """The text of a template. It is YAML, so what comes from outside passes through its filter `tojson`."""
    environment = Environment(  # noqa: S701  YAML, not HTML
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)


__all__ = ["rendered"]
