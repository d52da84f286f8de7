"""When runs of a workflow start by themselves, as its file says it: the shape of `schedules:`, and what can be told
about its times before any of them comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mosaic_queues.errors import InputError
from mosaic_queues.topology import level_of
from mosaic_tasks.definition.parts import Duration, Part
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.definition.templates import render
from mosaic_tasks.definition.terms import MOST_USD, check_tenant

NAME = r"^[a-z][a-z0-9-]*$"
MOST_CAUGHT_UP = 1_000
_MOST_CRON_CHARS = 1_000
_YEARS = range(1970, 2900)
"""Of start and end: what calendars and clocks can reckon with on all machines."""
_FIELDS = "five fields, minute hour day month weekday, such as '0 7 * * MON'"
_SOMETIME = datetime(2024, 1, 1)
SOME_TICK: Mapping[str, str] = {
    "time": "2024-01-08T07:00:00+00:00",
    "previous": "2024-01-01T07:00:00+00:00",
    "date": "2024-01-08",
}
"""Stands for any tick where inputs are checked before there is one."""


def _cron(text: str) -> str:
    """Lets a cron expression through that comes true at some time.

    Raises:
        ValueError: it does not.
    """
    if len(text) > _MOST_CRON_CHARS or len(text.split()) != 5:
        raise ValueError(f"{text[:80]!r} is no cron expression; write {_FIELDS}")
    try:
        next(CronSim(text, _SOMETIME))
    except StopIteration:
        raise ValueError(_never(text)) from None
    except CronSimError as error:
        if _is_right_in_some_month(text):
            raise ValueError(_never(text)) from None
        raise ValueError(f"{text!r} is no cron expression ({error}); write {_FIELDS}") from None
    return text


def _never(text: str) -> str:
    return f"{text!r} never comes: no such day is in such a month; correct day, month or weekday"


def _is_right_in_some_month(text: str) -> bool:
    """Whether each field for itself is right, so that it is their combination that never comes."""
    minute, hour, day, month, weekday = text.split()
    try:
        for fields in ((minute, hour, day, "*", weekday), ("0", "0", "1", month, "*")):
            CronSim(" ".join(fields), _SOMETIME)
    except CronSimError:
        return False
    return True


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"{name!r} is no time zone; write an IANA name such as 'Europe/Berlin'{_meant_zone(name)}"
        ) from None
    return name


def _meant_zone(name: str) -> str:
    """Its city may be written alone."""
    zones = available_timezones()
    city = name.strip().replace(" ", "_").casefold()
    meant = min((zone for zone in zones if zone.casefold().rpartition("/")[2] == city), default=None)
    return f"; did you mean {meant!r}?" if meant else did_you_mean(name, zones)


def _moment(value: Any) -> Any:
    text = value.isoformat() if hasattr(value, "isoformat") else value
    if not isinstance(text, str):
        raise ValueError(f"{value!r} is no time; write one such as '2026-12-01' or '2026-12-01T07:00'")
    try:
        is_time = datetime.fromisoformat(text).year in _YEARS
    except ValueError:
        is_time = False
    if not is_time:
        raise ValueError(f"{text!r} is no time; write one such as '2026-12-01' or '2026-12-01T07:00'")
    return text


def _passing(check: Callable[[Any], object]) -> AfterValidator:
    """Lets values through that pass a check which raises an `InputError`."""

    def checked(value: Any) -> Any:
        try:
            check(value)
        except InputError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(checked)


Moment = Annotated[str, BeforeValidator(_moment)]
CatchUp = Literal["latest", "all", "skip"]


class ScheduleSpec(Part):
    """When runs start, and with what inputs: exactly one of `cron` and `every`."""

    cron: Annotated[str, AfterValidator(_cron)] | None = Field(
        default=None, description="minute hour day month weekday, such as `0 7 * * MON`"
    )
    every: Duration | None = Field(
        default=None, ge=1, description="whole seconds between two ticks, or a text like 15m, 6h"
    )
    zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC", description="IANA time zone of cron, start and end, such as Europe/Berlin"
    )
    inputs: dict[str, Any] = Field(
        default_factory=dict,
        description="by name; texts are Jinja templates that see tick.time, tick.previous and tick.date",
    )
    catch_up: CatchUp = Field(
        default="latest",
        description="of ticks that nobody ran: the latest alone, all, or none (skip: later than a minute)",
    )
    catch_up_limit: int = Field(
        default=100, ge=1, le=MOST_CAUGHT_UP, description="how many `all` are at most: the latest"
    )
    jitter: Duration = Field(
        default=0.0, le=86_400, description="each run starts later than its tick by up to this"
    )
    start: Moment | None = Field(default=None, description="no tick before this time")
    end: Moment | None = Field(default=None, description="no tick after this time")
    priority: Annotated[int | str, _passing(level_of)] = Field(
        default=0, description="of its runs: 0 is the most urgent, or a name of the topology"
    )
    tenant: Annotated[str, _passing(check_tenant)] = Field(
        default="", description="on whose account its runs are"
    )
    budget: float | None = Field(
        default=None, ge=0, le=MOST_USD, allow_inf_nan=False, description="US dollars that a run may cost"
    )
    webhook: str | None = Field(
        default=None, repr=False, description="where a worker tells each run's end, by a signed POST"
    )

    @model_validator(mode="after")
    def _one_time(self) -> ScheduleSpec:
        if (self.cron is None) == (self.every is None):
            told = "it has both" if self.cron is not None else "it has neither"
            raise ValueError(f"a schedule has exactly one of cron and every; {told}")
        if self.every is not None and self.every != int(self.every):
            raise ValueError(f"every {self.every:g} s: write whole seconds")
        start, end = (moment_s(text, self.zone) for text in (self.start, self.end))
        if start is not None and end is not None and end < start:
            raise ValueError(f"it ends ({self.end}) before it starts ({self.start})")
        return self


def moment_s(text: str | None, zone: str) -> int | None:
    """A time of a schedule in Unix seconds; one without offset is that of the zone's clock."""
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))).timestamp())


def inputs_at(inputs: Any, tick: Mapping[str, str]) -> Any:
    """The inputs of the run of a tick: their texts rendered, at any depth.

    Args:
        tick: what `tick` has there, as `SOME_TICK`.

    Raises:
        BindingError: a template cannot be used, or reads what there is not.
    """
    if isinstance(inputs, str):
        return render(inputs, {"tick": tick}) if "{" in inputs else inputs
    if isinstance(inputs, Mapping):
        return {key: inputs_at(value, tick) for key, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return [inputs_at(value, tick) for value in inputs]
    return inputs


def shown_tick(at_s: int, previous_s: int, zone: str) -> dict[str, str]:
    """A tick as templates see it: times of the zone's clock with their offset, and its day.

    Args:
        at_s: Unix seconds, as `previous_s`.
    """
    time, previous = (
        datetime.fromtimestamp(each, UTC).astimezone(ZoneInfo(zone)) for each in (at_s, previous_s)
    )
    return {"time": time.isoformat(), "previous": previous.isoformat(), "date": time.date().isoformat()}


__all__ = [
    "NAME",
    "SOME_TICK",
    "CatchUp",
    "ScheduleSpec",
    "inputs_at",
    "moment_s",
    "shown_tick",
]
