"""When a schedule ticks: pure, from its timing alone. All times are whole Unix seconds.

A tick is a moment at which a run is to start. What a cron expression means where a zone changes its clocks is what
Debian's cron makes of it:

- Of an expression that names its minutes and its hours (neither field begins with `*`), each time of the clock is one
  tick: one that the clock leaves out comes as soon as it has left it out, one that it shows twice comes the first time.
- Of every other expression, a tick is each moment at which the clock shows a time that fits: there is none in an hour
  that is left out, and there are twice as many in one that comes twice.

`every` counts elapsed time, from `start` or else from 1970 on, whatever clocks show.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim

from mosaic_tasks.definition.schedules import CatchUp, ScheduleSpec, moment_s

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY_S = 86_400
LATE_S = 60
"""A tick that is run later than this was missed: longer than another beat needs to take over."""
_SEARCHED_S = 50 * 366 * DAY_S
"""What has no tick for so long has none."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule ticks, and what becomes of ticks that nobody ran: either `cron` or `every_s` is set.

    Attributes:
        start_s, end_s: the first and the last moment that may be a tick.
        jitter_s: a run starts up to so much later than its tick, and before the next one.
        catch_up_limit: how many missed ticks are run at most.
    """

    cron: str = ""
    every_s: int = 0
    zone: str = "UTC"
    start_s: int | None = None
    end_s: int | None = None
    jitter_s: float = 0.0
    catch_up: CatchUp = "latest"
    catch_up_limit: int = 100

    @classmethod
    def of(cls, spec: ScheduleSpec) -> Timing:
        """That of what a workflow file says."""
        return cls(
            cron=spec.cron or "",
            every_s=int(spec.every or 0),
            zone=spec.zone,
            start_s=moment_s(spec.start, spec.zone),
            end_s=moment_s(spec.end, spec.zone),
            jitter_s=spec.jitter,
            catch_up=spec.catch_up,
            catch_up_limit=spec.catch_up_limit,
        )


class Due(NamedTuple):
    """What is to be run now.

    Attributes:
        ticks: in their order.
        upto: the last tick that is decided about, run or not; None: none is.
        next_s: when there is something to be run again; None: never.
    """

    ticks: tuple[int, ...]
    upto: int | None
    next_s: float | None


def due(name: str, timing: Timing, *, last: int, now: float) -> Due:
    """What a schedule is to run.

    Args:
        name: of the schedule, which its jitter depends on.
        last: the last tick that was decided about; or the moment from which on ticks count.
        now: Unix seconds.
    """
    first = after(timing, last)
    if first is None or starts_at(name, timing, first) > now:
        return Due((), None, None if first is None else starts_at(name, timing, first))
    newest = _newest_due(name, timing, last, now)
    following = after(timing, newest)
    next_s = None if following is None else starts_at(name, timing, following)
    return Due(_caught_up(name, timing, last, newest, now), newest, next_s)


def _newest_due(name: str, timing: Timing, last: int, now: float) -> int:
    newest = latest(timing, int(now), since=last)
    assert newest is not None, "the first tick since `last` is due"
    if starts_at(name, timing, newest) <= now:
        return newest
    earlier = latest(timing, newest - 1, since=last)
    assert earlier is not None, "a run starts before the next tick, so only the newest can wait"
    return earlier


def _caught_up(name: str, timing: Timing, last: int, newest: int, now: float) -> tuple[int, ...]:
    """Those that are run of the ticks after `last` up to `newest`."""
    if timing.catch_up == "skip":
        return (newest,) if now - starts_at(name, timing, newest) <= LATE_S else ()
    if timing.catch_up == "latest":
        return (newest,)
    return tuple(islice(_backwards(timing, newest, last), timing.catch_up_limit))[::-1]


def _backwards(timing: Timing, tick: int | None, last: int) -> Iterator[int]:
    while tick is not None:
        yield tick
        tick = latest(timing, tick - 1, since=last)


def starts_at(name: str, timing: Timing, tick: int) -> float:
    """When the run of a tick starts: the same for whoever asks."""
    if not timing.jitter_s:
        return tick
    following = after(timing, tick)
    room_s = timing.jitter_s if following is None else min(timing.jitter_s, following - tick)
    drawn = blake2b(f"{name}/{tick}".encode(), digest_size=8).digest()
    return tick + room_s * int.from_bytes(drawn) / 2**64


@lru_cache(maxsize=4096)
def after(timing: Timing, at: int) -> int | None:
    """The first tick later than a moment; None: there is none."""
    if timing.start_s is not None:
        at = max(at, timing.start_s - 1)
    if timing.every_s:
        anchor = timing.start_s or 0
        found: int | None = anchor + ((at - anchor) // timing.every_s + 1) * timing.every_s
    else:
        found = _cron_after(timing.cron, ZoneInfo(timing.zone), at)
    is_over = found is not None and timing.end_s is not None and found > timing.end_s
    return None if is_over else found


def latest(timing: Timing, at: int, *, since: int) -> int | None:
    """The last tick that is not later than a moment, and later than `since`; in few steps, however long ago that is."""
    span_s = 60
    while True:
        begin = max(at - span_s, since)
        if (tick := after(timing, begin)) is not None and tick <= at:
            while (following := after(timing, tick)) is not None and following <= at:
                tick = following
            return tick
        if begin == since:
            return None
        span_s *= 2


def previous(timing: Timing, tick: int) -> int:
    """The tick before this one, also where the schedule had not started yet; itself where there is none."""
    if timing.every_s:
        return tick - timing.every_s
    unbounded = msgspec.structs.replace(timing, start_s=None, end_s=None)
    found = latest(unbounded, tick - 1, since=tick - _SEARCHED_S)
    return tick if found is None else found


def upcoming(timing: Timing, at: int, count: int) -> list[int]:
    """The next ticks after a moment."""
    found: list[int] = []
    while len(found) < count and (tick := after(timing, found[-1] if found else at)) is not None:
        found.append(tick)
    return found


def shown_at(at: int, zone: str) -> str:
    """A moment for people: `2026-11-30 07:00:00+01:00 Europe/Berlin`."""
    return f"{datetime.fromtimestamp(at, ZoneInfo(zone)).isoformat(sep=' ')} {zone}"


def _cron_after(expression: str, zone: ZoneInfo, at: int) -> int | None:
    minute, hour = expression.split()[:2]
    is_elapsing = minute.startswith("*") or hour.startswith("*")
    return (_shown_after if is_elapsing else _named_after)(expression, zone, at)


def _named_after(expression: str, zone: ZoneInfo, at: int) -> int | None:
    """cronsim walks the times of the clock, and moves those that are left out; while an hour comes for the second time
    it finds ticks of the first again."""
    for moment in CronSim(expression, datetime.fromtimestamp(at, zone)):
        if (tick := int(moment.timestamp())) > at:
            return tick
    return None


def _shown_after(expression: str, zone: ZoneInfo, at: int) -> int | None:
    """cronsim walks a clock that never changes, up to the moment at which the zone's does; from there on another."""
    since = at
    while True:
        offset_s = _offset_s(zone, since)
        clock = datetime.fromtimestamp(at + offset_s, UTC).replace(tzinfo=None)
        shown = next(CronSim(expression, clock), None)
        if shown is None:
            return None
        tick = int(shown.replace(tzinfo=UTC).timestamp()) - offset_s
        change = _change(zone, since, tick)
        if change is None:
            return tick
        since, at = change, change - 1  # what the clock shows as it is set may be a tick


def _offset_s(zone: ZoneInfo, at: int) -> int:
    offset = datetime.fromtimestamp(at, zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _change(zone: ZoneInfo, after_s: int, upto_s: int) -> int | None:
    """The first moment at which a zone's clock is set otherwise than just before; looks at each day once."""
    offset_s = _offset_s(zone, after_s)
    while after_s < upto_s:
        day_end = min(after_s + DAY_S, upto_s)
        if _offset_s(zone, day_end) != offset_s:
            while day_end - after_s > 1:
                middle = (after_s + day_end) // 2
                if _offset_s(zone, middle) == offset_s:
                    after_s = middle
                else:
                    day_end = middle
            return day_end
        after_s = day_end
    return None


__all__ = ["Due", "Timing", "after", "due", "latest", "previous", "shown_at", "starts_at", "upcoming"]
