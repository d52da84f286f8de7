"""Renews the parts of an open page: made anew when there is news, and sent where they changed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from typing import Protocol, Self, TypeVar
from weakref import WeakValueDictionary

import structlog
from redis.exceptions import RedisError

from mosaic_queues.errors import MosaicError
from mosaic_tasks.gateway.readers import HERE, RETRY_MS, frame

log = structlog.get_logger(__name__)

T = TypeVar("T")
Fragments = Mapping[str, str]
"""Parts of a page, by the ids that they have in it."""

_TICKING = re.compile(r'data-took="\d+">[^<]*')
PAUSE_S = 0.3
"""A page is renewed no more often than this."""
COST_SHARE = 0.2
"""... and less often where that is dear, so that all open pages cost at most this share of a processor."""
AT_ONCE = 2
"""So many pages are made at a time; others wait, and the gateway's other work does not."""
LONGEST_S = 300.0
"""A browser comes again after this, and says again who it is: its session may be over."""


class News(Protocol):
    """Tells when a page is to be made anew."""

    async def __aenter__(self) -> Self: ...

    async def news(self) -> None:
        """Waits until something happened since the last time."""

    async def __aexit__(self, *_error: object) -> None: ...


class Looking:
    """News every so often: for what no stream of the server tells, such as how the workers fare."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    async def __aenter__(self) -> Self:
        return self

    async def news(self) -> None:
        """Waits."""
        await asyncio.sleep(self._pause_s)

    async def __aexit__(self, *_error: object) -> None:
        """Nothing to put back."""


class Studio:
    """Where pages are made: in threads, few at a time, off the event loop."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)
        self._sights = WeakValueDictionary[Hashable, Sight]()

    async def make(self, render: Callable[[], T]) -> T:
        """What `render` makes."""
        async with self._room:
            return await asyncio.to_thread(render)

    def pause_s(self, cost_s: float) -> float:
        """How long a page rests that took so much of a processor."""
        return max(PAUSE_S, cost_s * len(self._sights) / COST_SHARE)

    def sight(self, key: Hashable, render: Callable[[], Fragments]) -> Sight:
        """A page, shared with those who look at the same one."""
        return self._sights.setdefault(key, Sight(self, render))

    async def renewed(
        self,
        key: Hashable,
        render: Callable[[], Fragments],
        news: News,
        *,
        silence_s: float,
        longest_s: float = LONGEST_S,
    ) -> AsyncGenerator[bytes, None]:
        """The parts of a page that changed, now and when there is news, as server-sent events.

        A browser that lost the connection comes again, and gets all parts.

        Args:
            key: all that the page depends on, who looks included: who has the same one is sent the same.
            render: makes all parts.
            silence_s: after so long there is a comment, so that nobody between takes the connection for dead.
        """
        sight = self.sight(key, render)
        sent: Fragments = {}
        until_s = time.monotonic() + longest_s
        yield f"retry: {RETRY_MS}\n\n".encode()
        try:
            async with news:
                while time.monotonic() < until_s:
                    made = await sight.renewed()
                    if changed := changes(sent, made):
                        yield frame("change", changed)
                    sent = made
                    while not await _is_news(news, silence_s) and time.monotonic() < until_s:
                        yield HERE
        except (RedisError, MosaicError) as error:
            log.info("page.lost", what="cannot renew a page; its browser asks again", error=str(error))


class Sight:
    """A page that is open, once or many times; it is made for all who look at it together."""

    def __init__(self, studio: Studio, render: Callable[[], Fragments]) -> None:
        self._studio, self._render, self._turn = studio, render, asyncio.Lock()
        self._made: Fragments = {}
        self._begun = self._complete = 0
        self._rests_until_s = 0.0

    async def renewed(self) -> Fragments:
        """The page as it is made after this, with all others who ask before that begins."""
        asked = self._begun
        async with self._turn:
            if self._complete <= asked:
                await asyncio.sleep(self._rests_until_s - time.monotonic())
                self._begun += 1
                made, cost_s = await self._studio.make(self._timed)
                self._made, self._complete = made, self._begun
                self._rests_until_s = time.monotonic() + self._studio.pause_s(cost_s)
            return self._made

    def _timed(self) -> tuple[Fragments, float]:
        begun_s = time.thread_time()
        return self._render(), time.thread_time() - begun_s


def changes(sent: Fragments, made: Fragments) -> Fragments:
    """The parts that are otherwise than a browser has them. Times that it counts on by itself are no news."""
    return {
        part: text for part, text in made.items() if part not in sent or _still(sent[part]) != _still(text)
    }


def _still(text: str) -> str:
    return _TICKING.sub("", text)


async def _is_news(news: News, silence_s: float) -> bool:
    """Whether there is some, before it was silent for so long."""
    try:
        async with asyncio.timeout(silence_s):
            await news.news()
    except TimeoutError:
        return False
    return True


__all__ = ["Fragments", "Looking", "News", "Sight", "Studio", "changes"]
