"""When schedules tick: pure, on clocks that change, on rare days, after breaks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_tasks.scheduling.ticks import LATE_S, Timing, after, due, latest, previous, starts_at, upcoming

BERLIN, LORD_HOWE = "Europe/Berlin", "Australia/Lord_Howe"
ZONES = [
    BERLIN,
    LORD_HOWE,
    "America/New_York",
    "America/St_Johns",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "UTC",
]
CRONS = [
    "* * * * *",
    "*/20 * * * *",
    "30 * * * *",
    "*/15 2 * * *",
    "30 2 * * *",
    "15,45 1-3 * * *",
    "0 0 * * *",
]


def seconds(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def shown(ticks: Sequence[int], zone: str = "UTC") -> list[str]:
    return [f"{datetime.fromtimestamp(tick, ZoneInfo(zone)):%Y-%m-%d %H:%M%z}" for tick in ticks]


@pytest.mark.parametrize(
    ("cron", "zone", "begin", "expected"),
    [
        pytest.param(
            "30 2 * * *",
            BERLIN,
            "2026-03-28",
            ["2026-03-28 02:30+0100", "2026-03-29 03:00+0200", "2026-03-30 02:30+0200"],
            id="a time that is left out comes as soon as it was",
        ),
        pytest.param(
            "0,30 2,3 * * *",
            BERLIN,
            "2026-03-28T12:00",
            ["2026-03-29 03:00+0200", "2026-03-29 03:30+0200", "2026-03-30 02:00+0200"],
            id="several that are left out, and what follows, are one tick where they fall together",
        ),
        pytest.param(
            "30 2 * * *",
            BERLIN,
            "2026-10-25",
            ["2026-10-25 02:30+0200", "2026-10-26 02:30+0100"],
            id="a time that comes twice is a tick the first time",
        ),
        pytest.param(
            "*/30 2 * * *",
            BERLIN,
            "2026-03-28T12:00",
            ["2026-03-30 02:00+0200", "2026-03-30 02:30+0200"],
            id="in an hour that is left out nothing elapses",
        ),
        pytest.param(
            "*/30 2 * * *",
            BERLIN,
            "2026-10-25",
            [
                "2026-10-25 02:00+0200",
                "2026-10-25 02:30+0200",
                "2026-10-25 02:00+0100",
                "2026-10-25 02:30+0100",
            ],
            id="an hour that comes twice elapses twice",
        ),
        pytest.param(
            "0 2 * * *",
            "America/New_York",
            "2026-03-07T12:00",
            ["2026-03-08 03:00-0400", "2026-03-09 02:00-0400"],
            id="America",
        ),
        pytest.param(
            "30 1 * * *",
            "America/New_York",
            "2026-11-01",
            ["2026-11-01 01:30-0400", "2026-11-02 01:30-0500"],
            id="America, back",
        ),
        pytest.param(
            "15 2 * * *",
            LORD_HOWE,
            "2026-10-03T12:00",
            ["2026-10-04 02:30+1100", "2026-10-05 02:15+1100"],
            id="half an hour is left out",
        ),
        pytest.param(
            "30 * * * *",
            LORD_HOWE,
            "2026-04-05T00:45",
            ["2026-04-05 01:30+1100", "2026-04-05 01:30+1030", "2026-04-05 02:30+1030"],
            id="half an hour comes twice",
        ),
        pytest.param(
            "*/5 5 * * *",
            LORD_HOWE,
            "2026-10-04",
            ["2026-10-04 05:00+1100", "2026-10-04 05:05+1100"],
            id="what comes after half an hour that is left out is whole",
        ),
        pytest.param(
            "0 7 * * *",
            "Pacific/Apia",
            "2011-12-29",
            ["2011-12-29 07:00-1000", "2011-12-31 00:00+1400", "2011-12-31 07:00+1400"],
            id="a day that is left out",
        ),
        pytest.param(
            "0 6 * * *",
            "Europe/Istanbul",
            "2015-10-24T12:00",
            ["2015-10-25 06:00+0300", "2015-10-26 06:00+0300"],
            id="a zone that put its change off once",
        ),
        pytest.param(
            "0 6 * * *",
            "Europe/Istanbul",
            "2016-10-29T12:00",
            ["2016-10-30 06:00+0300", "2016-10-31 06:00+0300"],
            id="and gave it up",
        ),
        pytest.param(
            "0 0 29 2 *",
            "UTC",
            "2097-01-01",
            ["2104-02-29 00:00+0000", "2108-02-29 00:00+0000"],
            id="a leap day, and the year 2100 has none",
        ),
        pytest.param(
            "0 0 31 * *",
            BERLIN,
            "2026-01-01",
            [
                "2026-01-31 00:00+0100",
                "2026-03-31 00:00+0200",
                "2026-05-31 00:00+0200",
                "2026-07-31 00:00+0200",
            ],
            id="months without that day have none",
        ),
        pytest.param(
            "59 23 31 12 *",
            BERLIN,
            "2026-06-01",
            ["2026-12-31 23:59+0100", "2027-12-31 23:59+0100"],
            id="year's end",
        ),
        pytest.param(
            "*/30 * * * *",
            BERLIN,
            "2026-12-31T23:20",
            ["2026-12-31 23:30+0100", "2027-01-01 00:00+0100"],
            id="over the year's end",
        ),
        pytest.param(
            "0 9 L * *",
            BERLIN,
            "2028-02-01",
            ["2028-02-29 09:00+0100", "2028-03-31 09:00+0200"],
            id="last day",
        ),
        pytest.param(
            "0 9 1 * MON",
            "UTC",
            "2026-11-30T10:00",
            ["2026-12-01 09:00+0000", "2026-12-07 09:00+0000"],
            id="day of month or weekday",
        ),
    ],
)
def test_a_cron_expression_ticks_at(cron: str, zone: str, begin: str, expected: list[str]) -> None:
    timing = Timing(cron=cron, zone=zone)
    assert shown(upcoming(timing, seconds(begin, zone) - 1, len(expected)), zone) == expected


def brute(cron: str, zone: str, begin: int, end: int) -> list[int]:
    """What an expression ticks at, by looking at each minute's clock."""
    minutes, hours = (
        {value for part in field.split(",") for value in _values(part, most)}
        for field, most in zip(cron.split()[:2], (59, 23), strict=True)
    )
    is_elapsing = cron.startswith("*") or cron.split()[1].startswith("*")
    found: set[int] = set()
    for at in range(begin - begin % 60, end + 1, 60):
        now = datetime.fromtimestamp(at, ZoneInfo(zone))
        before = datetime.fromtimestamp(at - 60, ZoneInfo(zone))
        clock, stepped = now.replace(tzinfo=None), before.replace(tzinfo=None) + timedelta(minutes=1)
        if is_elapsing:
            times = [clock]
        else:  # those that the clock has left out now, and this one unless it was shown before
            times = [
                stepped + timedelta(minutes=n) for n in range(int((clock - stepped) / timedelta(minutes=1)))
            ]
            times += [clock] if not now.fold else []
        if any(time.minute in minutes and time.hour in hours for time in times):
            found.add(at)
    return sorted(tick for tick in found if begin < tick <= end)


def _values(part: str, most: int) -> range:
    span, _, step = part.partition("/")
    first, _, last = ("0", "", str(most)) if span == "*" else span.partition("-")
    return range(int(first), int(last or first) + 1, int(step or 1))


CHANGES = {
    BERLIN: ("2026-03-29", "2026-10-25"),
    LORD_HOWE: ("2026-04-05", "2026-10-04"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "America/St_Johns": ("2026-03-08", "2026-11-01"),
    "Africa/Casablanca": ("2026-02-15", "2026-03-22"),
    "Asia/Kathmandu": ("2026-03-29", "2026-10-25"),
    "UTC": ("2026-03-29", "2026-10-25"),
}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", CRONS)
def test_it_ticks_as_a_look_at_each_minute_says(cron: str, zone: str) -> None:
    for day in CHANGES[zone]:
        begin = seconds(day, zone) - 6 * 3600
        end = begin + 36 * 3600
        expected = brute(cron, zone, begin, end)
        timing = Timing(cron=cron, zone=zone)
        assert upcoming(timing, begin, len(expected)) == expected
        assert (after(timing, expected[-1]) or 0) > end


@pytest.mark.parametrize("cron", CRONS)
def test_in_an_hour_that_comes_for_the_second_time_nothing_of_the_first_is_found_again(cron: str) -> None:
    begin = seconds("2026-10-25T02:00", BERLIN) + 3600
    expected = brute(cron, BERLIN, begin - 7200, begin + 36 * 3600)
    timing = Timing(cron=cron, zone=BERLIN)
    for at in range(begin, begin + 3600, 300):
        assert after(timing, at) == next(tick for tick in expected if tick > at)


@given(
    at=st.integers(1_700_000_000, 1_900_000_000),
    zone=st.sampled_from(ZONES),
    cron=st.sampled_from(CRONS),
    since_s=st.integers(0, 90_000),
)
def test_the_latest_tick_is_the_one_before_the_next(at: int, zone: str, cron: str, since_s: int) -> None:
    timing = Timing(cron=cron, zone=zone)
    found = latest(timing, at, since=at - since_s)
    following = after(timing, at)
    if found is None:
        assert after(timing, at - since_s) == following
    else:
        assert at - since_s < found <= at
        assert after(timing, found) == following


def test_an_interval_counts_from_its_start_or_from_1970_and_not_by_clocks() -> None:
    assert upcoming(Timing(every_s=900), 1, 2) == [900, 1800]
    assert upcoming(Timing(every_s=900, start_s=100), 0, 3) == [100, 1000, 1900]
    assert upcoming(Timing(every_s=900), 900, 1) == [1800]
    six = seconds("2026-03-29", BERLIN)
    ticks = upcoming(Timing(every_s=6 * 3600, start_s=six, zone=BERLIN), six, 1)
    assert shown(ticks, BERLIN) == ["2026-03-29 07:00+0200"]


def test_start_and_end_are_ticks_themselves_and_nothing_comes_before_or_after() -> None:
    timing = Timing(cron="0 * * * *", start_s=7200, end_s=4 * 3600)
    assert upcoming(timing, 0, 9) == [7200, 10800, 14400]
    assert after(timing, 14400) is None
    assert latest(timing, 99_999, since=0) == 14400


def test_the_tick_before_is_found_before_the_start_too() -> None:
    monday = seconds("2026-11-30T07:00", BERLIN)
    timing = Timing(cron="0 7 * * MON", zone=BERLIN, start_s=monday, end_s=monday)
    assert shown([previous(timing, monday)], BERLIN) == ["2026-11-23 07:00+0100"]
    assert previous(Timing(every_s=60, start_s=600), 600) == 540


# -- what is due ------------------------------------------------------------------------------------------------------

HOURLY: dict[str, Any] = {"cron": "0 * * * *"}


def hours(*counts: int) -> tuple[int, ...]:
    return tuple(count * 3600 for count in counts)


@pytest.mark.parametrize(
    ("options", "now", "ticks", "upto", "next_s"),
    [
        ({}, 3 * 3600 - 1, (), None, 3 * 3600),
        ({}, 3 * 3600, hours(3), 3 * 3600, 4 * 3600),
        ({}, 9.5 * 3600, hours(9), 9 * 3600, 10 * 3600),
        ({"catch_up": "all"}, 5.5 * 3600, hours(3, 4, 5), 5 * 3600, 6 * 3600),
        ({"catch_up": "all", "catch_up_limit": 2}, 5.5 * 3600, hours(4, 5), 5 * 3600, 6 * 3600),
        ({"catch_up": "skip"}, 5 * 3600 + LATE_S, hours(5), 5 * 3600, 6 * 3600),
        ({"catch_up": "skip"}, 5 * 3600 + LATE_S + 1, (), 5 * 3600, 6 * 3600),
        ({"end_s": 4 * 3600}, 9 * 3600, hours(4), 4 * 3600, None),
        ({"end_s": 2 * 3600}, 9 * 3600, (), None, None),
    ],
)
def test_what_is_due_after_the_second_hour(
    options: dict[str, Any], now: float, ticks: tuple[int, ...], upto: int | None, next_s: float | None
) -> None:
    assert due("n", Timing(**HOURLY, **options), last=7200, now=now) == (ticks, upto, next_s)


def test_a_year_without_a_beat_costs_few_steps() -> None:
    timing = Timing(cron="* * * * *", zone=BERLIN, catch_up="all", catch_up_limit=3)
    after.cache_clear()
    now = seconds("2026-11-30T12:00:30")
    found = due("n", timing, last=now - 366 * 86_400, now=now)
    assert shown(found.ticks) == ["2026-11-30 11:58+0000", "2026-11-30 11:59+0000", "2026-11-30 12:00+0000"]
    assert after.cache_info().misses < 50


@given(st.text(min_size=1, max_size=9), st.integers(0, 10**6), st.floats(0.001, 86_400))
def test_jitter_is_the_same_for_all_and_ends_before_the_next_tick(
    name: str, hour: int, jitter_s: float
) -> None:
    timing = Timing(**HOURLY, jitter_s=jitter_s)
    tick = hour * 3600
    begin = starts_at(name, timing, tick)
    assert begin == starts_at(name, Timing(**HOURLY, jitter_s=jitter_s), tick)
    assert tick <= begin < tick + min(jitter_s, 3600)


@given(st.floats(0, 3 * 3600), st.sampled_from(["latest", "all"]))
def test_with_jitter_a_tick_is_due_when_its_run_starts(later_s: float, catch_up: Any) -> None:
    timing = Timing(**HOURLY, jitter_s=3600, catch_up=catch_up)
    now = 7200 + later_s
    wanted = [tick for tick in hours(2, 3, 4, 5) if starts_at("n", timing, tick) <= now]
    found = due("n", timing, last=3600, now=now)
    assert found.ticks == tuple(wanted if catch_up == "all" else wanted[-1:])
    assert found.next_s is not None
    assert found.next_s > now


def test_jitter_spreads() -> None:
    timing = Timing(**HOURLY, jitter_s=3600)
    assert len({starts_at(f"n{number}", timing, 3600) // 360 for number in range(100)}) == 10
