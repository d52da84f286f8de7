"""The schedules on the server: what each says, which of its ticks are done, and whom they started.

What runs is kept with the schedule: the plan of its workflow as it was when it was added. So whoever sends it needs
neither the workflow's file nor its tools, and a deployment changes what a schedule runs by adding it again.

All keys stand without expiry: the set `<ns>:schedules` of the names, and for each the hash `<ns>:schedule:<name>`
and the list `<ns>:schedule:<name>:runs` of the runs that it started last.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from importlib import resources
from typing import Any, Literal, NamedTuple, cast

import msgspec
from redis import Redis
from redis.client import Pipeline
from redis.commands.core import Script
from redis.exceptions import RedisError

from mosaic_queues.connection import server_ms
from mosaic_queues.errors import InputError
from mosaic_queues.keys import Keys
from mosaic_tasks.definition.plan import Plan
from mosaic_tasks.definition.references import did_you_mean
from mosaic_tasks.scheduling.ticks import Timing

KEPT_RUNS = 50
Put = Literal["added", "changed", "same"]
Noted = Literal["noted", "known", "gone", "lost"]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule says beside its times.

    Attributes:
        workflow: its name.
        plan: content hash of its plan, terms included.
        inputs: of its runs, as templates.
        webhook: the URL that is told their ends; not shown.
    """

    workflow: str
    plan: str
    inputs: dict[str, Any] = {}
    webhook: str | None = None

    def __repr__(self) -> str:
        return f"<Said {self.workflow} {self.plan}>"


class Started(msgspec.Struct, frozen=True):
    """A run that a schedule started.

    Attributes:
        tick: Unix seconds; None: somebody started it by hand.
        at: when that was noted, Unix seconds.
    """

    run: str
    at: int
    tick: int | None = None


class Schedule(NamedTuple):
    """A schedule as it stands on the server.

    Attributes:
        last: the last tick that was decided about, or the moment from which on ticks count; Unix seconds.
        ran: the last tick that has a run; 0: none has.
        problem: why its tick that is due has no run yet; an empty text: nothing is wrong.
    """

    name: str
    said: Said
    timing: Timing
    last: int
    ran: int
    paused: bool
    problem: str


class Unreadable(NamedTuple):
    """A schedule of which the server holds what nobody can read."""

    name: str
    problem: str


_FIELDS = ("said", "timing", "last", "ran", "paused", "problem")


class Schedules:
    """The schedules of a namespace."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client, self._namespace = client, keys.namespace
        self._names = f"{keys.namespace}:schedules"

    @cached_property
    def _put(self) -> Script:
        return script(self._client, "put")

    @cached_property
    def _note(self) -> Script:
        return script(self._client, "note")

    def put(self, name: str, *, said: Said, timing: Timing, plan: bytes, tenant: str = "") -> Put:
        """Adds a schedule, or changes what it says.

        Raises:
            InputError: there is one of this name of another workflow, or of another tenant.
        """
        words = [msgspec.json.encode(said, order="deterministic"), plan, msgspec.json.encode(timing)]
        keys = [self._names, self._key(name)]
        told = cast(bytes, self._put(keys=keys, args=[name, *words, f"{tenant}:{said.workflow}"])).decode()
        if told == "other":
            raise InputError(
                f"there is a schedule {name!r} of another workflow than {said.workflow!r}, or of another tenant; "
                f"give this one another name, or remove that one: mosaic schedule remove {name}"
            )
        return cast(Put, told)

    def all(self) -> list[Schedule | Unreadable]:
        """All of them, by name; two trips."""
        found = cast("set[bytes]", self._client.smembers(self._names))
        names = sorted(name.decode() for name in found)
        with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hmget(self._key(name), _FIELDS)
            raws = pipe.execute(raise_on_error=False)
        is_gone = [None] * len(_FIELDS)  # removed since its name was read
        return [_read(name, raw) for name, raw in zip(names, raws, strict=True) if raw != is_gone]

    def get(self, name: str) -> Schedule:
        """The one of this name.

        Raises:
            InputError: there is none, or what it says cannot be read.
        """
        raw = cast("list[bytes | None]", self._client.hmget(self._key(name), _FIELDS))
        if raw[0] is None:
            raise self._unknown(name)
        found = _read(name, raw)
        if isinstance(found, Unreadable):
            raise InputError(f"schedule {name!r}: {found.problem}")
        return found

    def plan(self, name: str) -> Plan:
        """The plan of its runs.

        Raises:
            InputError: there is no such schedule.
            msgspec.MsgspecError: the plan was written by a version that this one cannot read.
        """
        raw = cast("bytes | None", self._client.hget(self._key(name), "plan"))
        if raw is None:
            raise self._unknown(name)
        return Plan.decode(raw)

    def runs(self, name: str, *, most: int = KEPT_RUNS) -> list[Started]:
        """The runs that it started last, the newest first."""
        raws = cast("list[bytes]", self._client.lrange(self._runs(name), 0, most - 1))
        return [msgspec.json.decode(raw, type=Started) for raw in raws]

    def last_runs(self, names: Iterable[str]) -> list[Started | None]:
        """For each schedule the run that it started last; one trip."""
        with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.lindex(self._runs(name), 0)
            return [raw and msgspec.json.decode(raw, type=Started) for raw in pipe.execute()]

    def note(
        self,
        name: str,
        *,
        lock: str,
        token: str,
        last: int | None = None,
        started: tuple[int, str] | None = None,
        problem: str = "",
    ) -> Noted:
        """Notes what became of ticks, for the beat that holds the lock.

        Args:
            lock: key of the lock, on the same server.
            last: all ticks up to this one are decided about.
            started: a tick, and the id of its run.
        """
        tick, run = started or ("", "")
        words = (token, "" if last is None else last, tick, run, problem, KEPT_RUNS)
        keys = [lock, self._key(name), self._runs(name)]
        return cast(Noted, cast(bytes, self._note(keys=keys, args=list(words))).decode())

    def note_by_hand(self, name: str, run_id: str) -> None:
        """Notes a run that somebody started from a schedule."""
        started = Started(run_id, server_ms(self._client) // 1000)

        def change(pipe: Pipeline) -> None:
            if pipe.exists(
                self._key(name)
            ):  # a schedule that was removed leaves no runs to another of its name
                pipe.multi()
                pipe.lpush(self._runs(name), msgspec.json.encode(started))
                pipe.ltrim(self._runs(name), 0, KEPT_RUNS - 1)

        self._client.transaction(change, self._key(name))

    def pause(self, name: str) -> bool:
        """Has it start nothing until it goes on; False: it does already.

        Raises:
            InputError: there is no such schedule.
        """

        def change(pipe: Pipeline) -> None:
            self._check(name)
            pipe.multi()
            pipe.hset(self._key(name), "paused", "1")

        (is_new,) = cast("list[int]", self._client.transaction(change, self._key(name)))
        return bool(is_new)

    def resume(self, name: str) -> bool:
        """Has it go on, with the ticks from now on; False: it was not paused.

        Raises:
            InputError: there is no such schedule.
        """
        now_s = server_ms(self._client) // 1000

        def change(pipe: Pipeline) -> None:
            self._check(name)
            if not pipe.hexists(self._key(name), "paused"):
                return
            is_ahead = int(pipe.hget(self._key(name), "ran") or 0) > now_s  # the clock was set back since
            pipe.multi()
            pipe.hset(self._key(name), "last", str(now_s))
            pipe.hdel(self._key(name), "paused", "problem", *(["ran"] if is_ahead else []))

        return bool(self._client.transaction(change, self._key(name)))

    def remove(self, name: str) -> None:
        """Forgets it. Its runs go on.

        Raises:
            InputError: there is no such schedule.
        """
        self._check(name)
        with self._client.pipeline() as pipe:
            pipe.srem(self._names, name)
            pipe.delete(self._key(name), self._runs(name))
            pipe.execute()

    def _check(self, name: str) -> None:
        if not self._client.exists(self._key(name)):
            raise self._unknown(name)

    def _unknown(self, name: str) -> InputError:
        names = sorted(each.decode() for each in cast("set[bytes]", self._client.smembers(self._names)))
        told = did_you_mean(name, names) or "; mosaic schedule list shows those that there are"
        return InputError(f"there is no schedule {name!r}{told}")

    def _key(self, name: str) -> str:
        return f"{self._namespace}:schedule:{name}"

    def _runs(self, name: str) -> str:
        return f"{self._key(name)}:runs"


def _read(name: str, raw: list[bytes | None] | RedisError) -> Schedule | Unreadable:
    try:
        if isinstance(raw, RedisError):
            raise ValueError(str(raw))
        said, timing, last, ran, paused, problem = raw
        return Schedule(
            name,
            msgspec.json.decode(said or b"", type=Said),
            msgspec.json.decode(timing or b"", type=Timing),
            int(last or 0),
            int(ran or 0),
            paused is not None,
            (problem or b"").decode(),
        )
    except (ValueError, msgspec.MsgspecError) as error:
        return Unreadable(
            name, f"what it says cannot be read ({error}); add it again: mosaic schedule add FILE"
        )


def script(client: Redis, name: str) -> Script:
    """A script of this room."""
    text = resources.files("mosaic_tasks.scheduling").joinpath(f"{name}.lua").read_text("utf-8")
    return client.register_script(text)


__all__ = ["Put", "Said", "Schedule", "Schedules", "Started", "Unreadable", "script"]
