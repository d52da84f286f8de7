"""What to do where the extra `gateway` is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mosaic_queues.errors import ConfigurationError


@contextmanager
def needs_gateway() -> Iterator[None]:
    """Around imports of what comes with that extra.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"this needs {error.name!r}, which is not installed: pip install 'mosaic-tasks[gateway]'"
        ) from error
