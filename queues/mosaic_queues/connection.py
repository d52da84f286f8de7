"""Connections to the server: which one, how to survive its restarts, and what it can do."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from mosaic_queues.errors import ConfigurationError, ServerUnavailable
from mosaic_queues.server import ensure_server
from mosaic_queues.settings import settings

MINIMUM_VERSION = (6, 2)

_SOCKET_SCHEME = "redis+socket"
_SCHEMES = ("redis", "rediss", "unix", _SOCKET_SCHEME)
_SOCKET_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_HEALTH_CHECK_S = 15.0
_RETRIES = 14  # with the backoff below some ten seconds in all
_FIRST_RETRIES = 4
_BACKOFF_S = 0.05
_BACKOFF_MAX_S = 2.0
_MAX_CLOCK_SKEW_MS = 1_000.0
_SECRET_OPTIONS = frozenset({"password", "ssl_password"})
_HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class ServerUrls:
    """One server in the two spellings that its clients need.

    Attributes:
        redis_url: for redis-py.
        broker_url: for Celery and kombu, as broker and as result backend.
    """

    redis_url: str
    broker_url: str


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself.

    Attributes:
        version: of the Redis protocol that it speaks, such as (7, 2, 4).
        flavour: the program.
        flavour_version: the program's own version.
        maxmemory_bytes: its memory limit, 0 for none.
        clock_skew_ms: its clock minus ours.
        round_trip_ms: time of one small command.
    """

    version: tuple[int, ...]
    flavour: Literal["redis", "valkey"]
    flavour_version: str
    mode: str
    maxmemory_policy: str
    maxmemory_bytes: int
    used_memory_bytes: int
    aof_enabled: bool
    clock_skew_ms: float
    round_trip_ms: float

    def problems(self) -> list[str]:
        """What is wrong with this server for us, a readable sentence each; empty when nothing is."""
        found = {
            f"the server speaks Redis {'.'.join(map(str, self.version))}, but 6.2 or later is needed; "
            "upgrade it": self.version < MINIMUM_VERSION,
            f"maxmemory-policy is {self.maxmemory_policy!r}, so the server may drop queues and runs when its "
            "memory is full; set it to 'noeviction'": self.maxmemory_policy != "noeviction",
            "the append-only file is off, so a restart of the server loses what it held; "
            "set appendonly to 'yes'": not self.aof_enabled,
            f"the server's clock differs from this machine's by {self.clock_skew_ms:.0f} ms; "
            "synchronise both (NTP)": abs(self.clock_skew_ms) > _MAX_CLOCK_SKEW_MS,
        }
        return [sentence for sentence, applies in found.items() if applies]


def server_urls() -> ServerUrls:
    """The server of this process: `MOSAIC_REDIS_URL`, else the embedded server, started when it does not run.

    Raises:
        ConfigurationError: the URL is none of a Redis server.
        ServerStartError: the embedded server cannot be started.
    """
    configured = settings().redis_url
    if configured:
        return urls_of(configured)
    embedded = ensure_server()
    return ServerUrls(redis_url=embedded.redis_url, broker_url=embedded.url)


def urls_of(url: str) -> ServerUrls:
    """Spell a server's URL for redis-py and for kombu.

    Args:
        url: `redis://`, `rediss://` (TLS), `unix://PATH?db=N` or `redis+socket://PATH?virtual_host=N`.

    Raises:
        ConfigurationError: it is none of these.
    """
    no_url = ConfigurationError(
        f"{redact(url)!r} is no URL of a Redis server; "
        "set MOSAIC_REDIS_URL to redis://[user:password@]host:port/0, rediss://... or unix:///path?db=0"
    )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise no_url from error
    options = dict(parse_qsl(parts.query))
    if parts.scheme in ("redis", "rediss") and "@" in parts.path + parts.query + parts.fragment:
        raise ConfigurationError(
            f"the password in {redact(url)!r} has characters that end it early; write them percent-encoded: "
            "'/' as %2F, '?' as %3F, '#' as %23, '@' as %40"
        )
    try:
        has_place = bool(parts.port or parts.hostname or parts.path.strip("/"))
    except ValueError as error:
        raise no_url from error
    is_tcp = parts.scheme in ("redis", "rediss")
    if (
        parts.scheme not in _SCHEMES
        or not has_place
        or (is_tcp and not re.fullmatch(r"/?[0-9]*", parts.path))
    ):
        raise no_url
    if parts.scheme in ("unix", _SOCKET_SCHEME):
        database = options.pop("db", None) or options.pop("virtual_host", None) or "0"
        return ServerUrls(
            redis_url=_respell(url, "unix", {"db": database, **options}),
            broker_url=_respell(url, _SOCKET_SCHEME, {"virtual_host": database, **options}),
        )
    if parts.scheme == "rediss":
        options.setdefault("ssl_cert_reqs", "required")  # Celery's backend insists on it
    spelled = _respell(url, parts.scheme, options)
    return ServerUrls(redis_url=spelled, broker_url=spelled)


def _respell(url: str, scheme: str, options: dict[str, str]) -> str:
    parts = urlsplit(url)
    rest = urlunsplit(("", "", parts.path, urlencode(options, safe="/"), ""))
    return f"{scheme}://{parts.netloc}{rest}"


def redact(url: str) -> str:
    """The URL without its password, for messages and logs."""
    scheme, separator, rest = url.partition("://")
    userinfo, at, tail = rest.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    location, query_mark, query = tail.partition("?")
    hidden = "&".join(_redact_option(option) for option in query.split("&"))
    return f"{scheme}{separator}{user}{colon}{_HIDDEN if colon else ''}{at}{location}{query_mark}{hidden}"


def _redact_option(option: str) -> str:
    name, _, _ = option.partition("=")
    return f"{name}={_HIDDEN}" if name.lower() in _SECRET_OPTIONS else option


@contextlib.contextmanager
def server_errors(url: str) -> Iterator[None]:
    """Turn redis-py's connection errors into `ServerUnavailable`, which names the server and what to do."""
    try:
        yield
    except TypeError as error:
        raise ConfigurationError(
            f"{redact(url)!r} has an option that the client does not know: {error}"
        ) from error
    except redis.AuthenticationError as error:
        raise ServerUnavailable(
            f"the server at {redact(url)!r} refuses the user or password ({error}); correct MOSAIC_REDIS_URL"
        ) from error
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise ServerUnavailable(
            f"the server at {redact(url)!r} does not answer ({_without_secrets(error, url)}); start it, "
            "correct MOSAIC_REDIS_URL, or unset it to use the embedded server"
        ) from error


def _without_secrets(error: Exception, url: str) -> str:
    password = urlsplit(url).password
    return str(error).replace(password, _HIDDEN) if password else str(error)


def connect(url: str | None = None) -> redis.Redis:
    """A client that answers bytes, may be shared by threads and forked processes, and outlives a restart.

    A command that meets a broken connection is sent again, for some ten seconds. It may so be applied twice:
    send only commands for which that is harmless. A blocking command must block for less than a minute.

    Args:
        url: of the server; that of `server_urls()` when None.

    Raises:
        ServerUnavailable: nobody answers there, or it refuses us.
    """
    address = server_urls().redis_url if url is None else urls_of(url).redis_url
    with server_errors(address):
        _check(address)
    return redis.Redis.from_url(address, retry=Retry(_backoff(), _RETRIES), **_options())


def _check(address: str) -> None:
    """Meet the server once, with less patience than later."""
    with redis.Redis.from_url(address, retry=Retry(NoBackoff(), 0), **_options()) as client:
        Retry(_backoff(), _FIRST_RETRIES).call_with_retry(client.ping, lambda _: None, _may_pass)


def _may_pass(error: Exception) -> bool:
    return not isinstance(error, redis.AuthenticationError)


def connect_async(url: str | None = None) -> redis.asyncio.Redis:
    """The asyncio twin of `connect`. It does not contact the server yet: wrap its use in `server_errors`."""
    address = server_urls().redis_url if url is None else urls_of(url).redis_url
    retry = AsyncRetry(_backoff(), _RETRIES)
    return redis.asyncio.Redis.from_url(address, retry=retry, **_options())


def _backoff() -> ExponentialWithJitterBackoff:
    return ExponentialWithJitterBackoff(cap=_BACKOFF_MAX_S, base=_BACKOFF_S)


def _options() -> dict[str, Any]:
    return {
        "decode_responses": False,
        "health_check_interval": _HEALTH_CHECK_S,
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        "socket_timeout": _SOCKET_TIMEOUT_S,
    }


def server_facts(client: redis.Redis) -> ServerFacts:
    """Ask a server what it is and how it is set up; `INFO` and `TIME` are all it takes.

    Raises:
        redis.RedisError: the server does not answer, or the user may not ask.
    """
    info: dict[str, Any] = client.info("everything")
    round_trip_ms, skew_ms = _clock(client)
    valkey = info.get("valkey_version")
    return ServerFacts(
        version=tuple(int(part) for part in re.findall(r"\d+", str(info["redis_version"]))[:3]),
        flavour="valkey" if valkey else "redis",
        flavour_version=str(valkey or info["redis_version"]),
        mode=str(info.get("redis_mode", "standalone")),
        maxmemory_policy=str(info.get("maxmemory_policy", "unknown")),
        maxmemory_bytes=int(info.get("maxmemory", 0)),
        used_memory_bytes=int(info.get("used_memory", 0)),
        aof_enabled=bool(info.get("aof_enabled", 0)),
        clock_skew_ms=skew_ms,
        round_trip_ms=round_trip_ms,
    )


def _clock(client: redis.Redis) -> tuple[float, float]:
    """Round trip, and server's clock minus ours at the middle of it, both in ms; the best of three."""
    return min(_read_clock(client) for _ in range(3))


def _read_clock(client: redis.Redis) -> tuple[float, float]:
    sent = time.time()
    seconds, microseconds = client.time()
    received = time.time()
    skew_s = seconds + microseconds / 1e6 - (sent + received) / 2.0
    return (received - sent) * 1e3, skew_s * 1e3
