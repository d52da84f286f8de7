"""A run as its watcher sees it: why it failed or was cancelled is left to the one message that ends the command."""

from __future__ import annotations

from collections.abc import Iterator

from mosaic_queues.events import Event
from mosaic_tasks.client import Run


class Watched(Run):
    """A run whose events say that it failed or was cancelled, and not why."""

    def events(self, *, follow: bool = False, after: str = "0") -> Iterator[Event]:
        """As those of any run, without the reason of its end."""
        for event in super().events(follow=follow, after=after):
            yield _without_reason(event)


def _without_reason(event: Event) -> Event:
    if event.kind == "failed":
        return event._replace(detail="")
    if event.kind == "closed":
        return event._replace(detail=event.detail.partition(":")[0])
    return event
