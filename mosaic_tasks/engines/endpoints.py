"""Several servers behind one model: which there are, which one is asked next, and when.

`MOSAIC_ENDPOINTS` names a file in YAML or JSON that lists them by the name of the model:

    llama:
      - {url: "http://10.0.0.7:8000/v1", kind: vllm, model: meta-llama/Llama-3.1-8B-Instruct, concurrency: 64}
      - {url: "https://api.example.com/v1", key_env: EXAMPLE_KEY, model: llama-3.1-8b, weight: 0.5}

The least used endpoint relative to its weight is asked. One that failed, or whose rate limit is used up, rests until
its time and is passed over; when all rest, calls wait.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import os
import random
import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from mosaic_queues.errors import ConfigurationError

VARIABLE = "MOSAIC_ENDPOINTS"
KEY_VARIABLE = "OPENAI_API_KEY"

Kind = Literal["openai", "vllm", "tgi", "ollama", "llamacpp"]

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_KEY_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_SECRET = frozenset({"url", "key_env"})
"""Fields whose wrong values are not shown: they may hold a key."""


class Timeouts(BaseModel):
    """Seconds to wait for a connection, and for the next byte on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect_s: _Positive = 5.0
    read_s: _Positive = 120.0


class Endpoint(BaseModel):
    """A server, and what a model is called there.

    Attributes:
        url: up to and with `/v1`.
        key_env: name of the environment variable that holds the key; empty: it needs none.
        model: the model's name there; default: the name that the file lists it under.
        concurrency: most requests at once; None: no limit.
        weight: how much of the work it takes, relative to the others.
        kind: what runs there; servers differ in what they understand.
        timeouts: for connection and bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(repr=False)
    key_env: str = ""
    model: str = ""
    concurrency: Annotated[int, Field(ge=1)] | None = None
    weight: _Positive = 1.0
    kind: Kind = "openai"
    timeouts: Timeouts = Timeouts()

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        if not server_of(url):
            raise ValueError("this is no http URL; write it like http://HOST:8000/v1")
        return url

    @field_validator("key_env")
    @classmethod
    def _no_key(cls, key_env: str) -> str:
        if key_env and not _KEY_NAME.fullmatch(key_env):
            raise ValueError(
                "this is no name of an environment variable (capitals, digits, '_'); "
                "put the key into a variable and its name here, never the key itself"
            )
        return key_env

    @property
    def server(self) -> str:
        """Host and port."""
        return server_of(self.url)


Catalogue = dict[str, tuple[Endpoint, ...]]
"""The endpoints of each model."""

_FILE = TypeAdapter(dict[str, Annotated[list[Endpoint], Field(min_length=1)]])


def server_of(url: str) -> str:
    """Host and port of an http URL, or nothing where it is none; what stands before an `@` is secret."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return ""
    return parts.netloc.rpartition("@")[2] if usable else ""


def is_loopback(url: str) -> bool:
    """Whether `url` is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def load_endpoints(path: str | None = None) -> Catalogue:
    """The endpoints in the file at `path`, or in that of `MOSAIC_ENDPOINTS`; none where neither is given.

    Raises:
        ConfigurationError: names file, model, endpoint and field.
    """
    file = path or os.environ.get(VARIABLE)
    if not file:
        return {}
    try:
        listed = _FILE.validate_python(_content(file))
    except ValidationError as error:
        raise ConfigurationError("\n".join(_told(problem, file) for problem in error.errors())) from None
    return {
        name: tuple(one.model_copy(update={"model": one.model or name}) for one in endpoints)
        for name, endpoints in listed.items()
    }


def _content(file: str) -> Any:
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
        return json.loads(text) if file.endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise ConfigurationError(
            f"{VARIABLE} names {file!r}, which cannot be read: {error.strerror}"
        ) from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"{VARIABLE} names {file!r}, which is neither YAML nor JSON: {error}"
        ) from None


def _told(problem: Any, file: str) -> str:
    """One thing that is wrong with a file of endpoints, and where."""
    match problem["loc"]:
        case (model, int(place), *fields) if fields:
            where = f", model {model!r}, endpoint {place + 1}, field {'.'.join(map(str, fields))!r}"
        case (model, int(place)):
            where = f", model {model!r}, endpoint {place + 1}"
        case (model, *_):
            where = f", model {model!r}"
        case _:
            where = ""
    return f"endpoints file {file!r}{where}: {_wrong(problem)}"


def _wrong(problem: Any) -> str:
    field = problem["loc"][-1] if problem["loc"] else ""
    value = problem["input"]
    said = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        known = (Timeouts if "timeouts" in problem["loc"] else Endpoint).model_fields
        near = get_close_matches(str(field), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        return f"there is no such field; {hint}"
    if len(problem["loc"]) < 3:
        return f"{said}; write it like 'MODEL: [{{url: ..., key_env: ...}}]'"
    if field in _SECRET or not isinstance(value, str | int | float):
        return said
    return f"{said}, not {value!r}"


class EndpointStanding(msgspec.Struct, eq=False):
    """How an endpoint does at the moment; times are those of the loop's clock.

    Attributes:
        in_use: requests that are there.
        taken: requests that went there so far.
        rests_until: nothing is sent before.
        reason: why it rests.
        failures: in a row, those of requests that were under way together counted once.
        failed_at: when the last of them was noticed.
        refuses: its key or its model was refused, and nothing has come from it since.
    """

    endpoint: Endpoint
    in_use: int = 0
    taken: int = 0
    rests_until: float = -math.inf
    reason: str = ""
    failures: int = 0
    failed_at: float = -math.inf
    refuses: bool = False

    @property
    def rank(self) -> tuple[bool, float, float]:
        """The lowest is asked: last one that refuses, else by what is used of the weight, now and so far."""
        return self.refuses, self.in_use / self.endpoint.weight, self.taken / self.endpoint.weight

    @property
    def has_room(self) -> bool:
        """Whether another request fits."""
        return self.endpoint.concurrency is None or self.in_use < self.endpoint.concurrency


S = TypeVar("S", bound=EndpointStanding)


def choose(standings: Sequence[S], *, now: float) -> S | None:
    """The endpoint to ask now: the least used relative to its weight among those that do not rest and have room."""
    free = (one for one in standings if one.rests_until <= now and one.has_room)
    return min(free, key=lambda one: one.rank, default=None)


def rest_over(standings: Sequence[EndpointStanding], *, now: float) -> float:
    """When the first endpoint has rested; `now` where one does not rest, and is merely full."""
    return max(now, min((one.rests_until for one in standings), default=math.inf))


def rest(standing: EndpointStanding, *, now: float, until: float, reason: str) -> None:
    """Has an endpoint rest until then, if it does not rest for longer already."""
    if until > max(now, standing.rests_until):
        standing.rests_until, standing.reason = until, reason


def note_failure(
    standing: EndpointStanding, *, now: float, began: float, reason: str, pause_s: Callable[[int], float]
) -> None:
    """Has an endpoint rest after a failed request, by the number of its failures in a row.

    A request that began before the last failure was noticed tells nothing new.
    """
    if began >= standing.failed_at:
        standing.failures += 1
        standing.failed_at = now
    rest(standing, now=now, until=now + pause_s(standing.failures), reason=reason)


def note_success(standing: EndpointStanding, *, began: float) -> None:
    """A request that began after the last failure got an answer."""
    if began >= standing.failed_at:
        standing.failures, standing.refuses = 0, False


class AllRest(Exception):
    """All endpoints rest for longer than the call can wait.

    Attributes:
        wait_s: until the first of them has rested.
        reason: why that one rests.
    """

    def __init__(self, wait_s: float, reason: str) -> None:
        self.wait_s = wait_s
        self.reason = reason
        super().__init__(f"{reason}; it rests for {wait_s:.3g} s")


class _Waiter(msgspec.Struct, eq=False):
    """Who waits for a place; given None, it looks again."""

    among: Sequence[Any]
    given: asyncio.Future[Any]


class EndpointGroup(Generic[S]):
    """The endpoints of one model, on one event loop. A place that is given back goes to who has waited longest."""

    def __init__(self, standings: Sequence[S]) -> None:
        self.standings = tuple(standings)
        self._waiters: deque[_Waiter] = deque()

    async def take(
        self, *, among: Collection[S] | None = None, deadline: float, longest_s: float, spread_s: float = 0.0
    ) -> S:
        """A place at an endpoint, to be given back by `free`.

        Args:
            among: those of the group that will do; default: all.
            deadline: on the loop's clock.
            longest_s: how long to wait for an endpoint to have rested.
            spread_s: those that waited for a rest to end come back within so long after it, by chance.

        Raises:
            AllRest: for longer than the call can wait.
            TimeoutError: no endpoint had room before the deadline.
        """
        able = self.standings if among is None else tuple(one for one in self.standings if one in among)
        while True:
            now = _now()
            if found := choose(able, now=now):
                return _taken(found)
            over = rest_over(able, now=now)
            if over >= deadline or over > now + longest_s:
                first = min(able, key=lambda one: one.rests_until)
                raise AllRest(over - now, first.reason)
            look_at = over + random.uniform(0, spread_s) if over > now else self._next_rest(able, now)  # noqa: S311
            if given := await self._wait(able, min(look_at, deadline)):
                return given
            if _now() >= deadline:
                raise TimeoutError

    def free(self, standing: S) -> None:
        """Gives a place back; the first that waits for one gets it. Where the endpoint rests, the others look again."""
        standing.in_use -= 1
        now = _now()
        waiting = deque(waiter for waiter in self._waiters if not waiter.given.done())
        for waiter in waiting:
            if found := choose(waiter.among, now=now):
                waiter.given.set_result(_taken(found))
                waiting.remove(waiter)
                break
        if standing.rests_until > now:  # which they do not know if it began after they came
            for waiter in waiting:
                waiter.given.set_result(None)

    def _next_rest(self, able: Sequence[S], now: float) -> float:
        """When an endpoint that rests, beside those that are full, has rested."""
        return min((one.rests_until for one in able if one.rests_until > now), default=math.inf)

    async def _wait(self, able: Sequence[S], until: float) -> S | None:
        """The place that `free` gave, or None when it is time to look again."""
        waiter = _Waiter(able, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        timeout_s = None if until == math.inf else max(0.0, until - _now())
        try:
            await asyncio.wait([waiter.given], timeout=timeout_s)
        except asyncio.CancelledError:
            if waiter.given.done() and (given := waiter.given.result()):
                self.free(given)
            raise
        finally:
            self._waiters.remove(waiter)
        return waiter.given.result() if waiter.given.done() else None


def _taken(standing: S) -> S:
    standing.in_use += 1
    standing.taken += 1
    return standing


def _now() -> float:
    return asyncio.get_running_loop().time()
