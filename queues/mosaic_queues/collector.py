"""Python's collector of reference cycles: what a process has loaded stays, and need not be walked over again."""

from __future__ import annotations

import atexit
import gc

_USUAL = gc.get_threshold()
_LOADING = 20_000
"""Objects more than there were at the last collection, while a process loads."""


def spare_collector() -> None:
    """Before much is loaded: looking through it for garbage, and once more at the end, would take a third of the time
    of a short command. What goes on calls `end_loading`."""
    gc.set_threshold(_LOADING, *_USUAL[1:])
    atexit.register(gc.freeze)


def end_loading() -> None:
    """All is loaded: no collection walks over it, nor does the end, and forked processes share its memory. What comes
    from now on is collected as usual: else the cycles of thousands of calls would lie about."""
    gc.freeze()
    gc.set_threshold(*_USUAL)


__all__ = ["end_loading", "spare_collector"]
