"""Connections to the server: which one, how to survive its restarts, and what it can do."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
from redis.retry import Retry

from mosaic_queues.errors import (
    ConfigurationError,
    ServerError,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
)
from mosaic_queues.server import ensure_server
from mosaic_queues.settings import settings

_SOCKET_SCHEME = "redis+socket"
_SCHEMES = ("redis", "rediss", "unix", _SOCKET_SCHEME)
_SOCKET_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_HEALTH_CHECK_S = 15.0
_RETRIES = 14  # with the backoff below some ten seconds in all
_FIRST_RETRIES = 4
_BACKOFF_S = 0.05
_BACKOFF_MAX_S = 2.0
_SECRET_OPTIONS = frozenset({"password", "ssl_password"})
_HIDDEN = "***"
# A script's command that was refused comes as a plain error with one of these words in it.
_FULL = "OOM command not allowed"
_STATES = {
    "BUSY": "it runs a long script; wait, or end that by SCRIPT KILL",
    "CLUSTERDOWN": "its cluster lacks nodes; bring them back",
    "LOADING": "it still reads its data from disk; wait",
    "MASTERDOWN": "it is a replica that has lost its primary; name the primary in MOSAIC_REDIS_URL, or bring it back",
    "MISCONF": "it cannot write its data to disk; its log says why",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write asks for; bring them back",
    "READONLY": "it is a replica; name the primary in MOSAIC_REDIS_URL",
    "TRYAGAIN": "its keys move to another node; wait",
    "UNBLOCKED": "it became a replica; name the primary in MOSAIC_REDIS_URL",
    "UNKILLABLE": "it runs a script that has written already; wait",
}
"""The words by which a server tells of a state that passes, what that is and what to do. Whatever else it answers, it
answers again."""
_STATE = re.compile(rf"\b({'|'.join(_STATES)})\b")
_STATE_OF: dict[type[Exception], str] = {  # these come without the word
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    ReadOnlyError: "READONLY",
    TryAgainError: "TRYAGAIN",
}
_FORBIDDEN = ("ACL failure in script", "NOPERM", "The user executing the script can't")


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
    """What a server says about itself; `mosaic doctor` judges it.

    Attributes:
        version: of the Redis protocol that it speaks, such as (7, 2, 4).
        flavour: the program.
        flavour_version: the program's own version.
        maxmemory_bytes: its memory limit, 0 for none.
    """

    version: tuple[int, ...]
    flavour: Literal["redis", "valkey"]
    flavour_version: str
    mode: str
    maxmemory_policy: str
    maxmemory_bytes: int
    used_memory_bytes: int
    aof_enabled: bool


class Clock(NamedTuple):
    """A server's clock against ours.

    Attributes:
        round_trip_ms: time of one small command.
        skew_ms: its clock minus ours.
    """

    round_trip_ms: float
    skew_ms: float


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
def server_errors(url: str | None = None) -> Iterator[None]:
    """Turn redis-py's errors that a user can do something about into a `ServerError` that says what.

    Args:
        url: of the server, for messages; that of `server_urls()` when None.

    Raises:
        ServerUnavailable: the server does not answer, refuses the user or password, or is in a state that passes.
        ServerFull: its memory limit is reached.
        ServerRefused: its user lacks a right.
    """
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as error:
        told = told_error(error, url or server_urls().redis_url)
        if told is None:
            raise
        raise told from error


def told_error(error: Exception, url: str | None = None) -> ServerError | None:
    """What an error of redis-py means for a user; None when it is not about the state of the server.

    Args:
        url: of the server, to name it.
    """
    where, said = ("the server", str(error)) if url is None else _named(error, url)
    if isinstance(error, redis.AuthenticationError):
        return ServerUnavailable(f"{where} refuses the user or password ({said}); correct MOSAIC_REDIS_URL")
    if (state := _state(error)) is not None:
        return ServerUnavailable(f"{where} does not serve now ({said}): {_STATES[state]}")
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return ServerUnavailable(
            f"{where} does not answer ({said}); start it, correct MOSAIC_REDIS_URL, or unset it to use the "
            "embedded server"
        )
    if isinstance(error, OutOfMemoryError) or _FULL in said:
        return ServerFull(
            f"{where} is full: its maxmemory is reached; raise maxmemory, or wait: runs that are over are dropped "
            "after MOSAIC_RETENTION_S; mosaic doctor tells the limit and what is used"
        )
    if isinstance(error, NoPermissionError) or any(words in said for words in _FORBIDDEN):
        return ServerRefused(
            f"{where} forbids what is needed ({said}); give its user the right (ACL SETUSER), or name another "
            "user in MOSAIC_REDIS_URL"
        )
    return None


def _state(error: Exception) -> str | None:
    """The word for the state of the server that an error tells of; None: of none."""
    if (known := _STATE_OF.get(type(error))) is not None:
        return known
    found = _STATE.search(str(error)) if isinstance(error, redis.ResponseError) else None
    return found[0] if found else None


def _named(error: Exception, url: str) -> tuple[str, str]:
    """The server and what it said, without its password."""
    password, said = urlsplit(url).password, str(error)
    if password:
        said = said.replace(password, _HIDDEN).replace(unquote(password), _HIDDEN)
    return f"the server at {redact(url)!r}", said


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
    client = redis.Redis.from_url(address, retry=Retry(_backoff(), _RETRIES), **_options())
    _check_options(client.connection_pool, address)
    with server_errors(address):
        _check(address)
    return client


def _check_options(pool: Any, address: str) -> None:
    """Refuse options in the URL that the client does not know, which it would tell at the first connection."""
    try:
        pool.make_connection()
    except TypeError as error:
        raise ConfigurationError(
            f"{redact(address)!r} has an option that the client does not know: {error}"
        ) from error


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
    client = redis.asyncio.Redis.from_url(address, retry=retry, **_options())
    _check_options(client.connection_pool, address)
    return client


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
    """Ask a server what it is and how it is set up, by `INFO`.

    Raises:
        redis.RedisError: the server does not answer, or the user may not ask.
    """
    info: dict[str, Any] = client.info("everything")
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
    )


def server_ms(client: redis.Redis) -> int:
    """The server's time in Unix milliseconds.

    Raises:
        redis.RedisError: the server does not answer.
    """
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000


def server_clock(client: redis.Redis) -> Clock:
    """Compare a server's clock with ours, by `TIME`: the best of three.

    Raises:
        redis.RedisError: the server does not answer, or the user may not ask.
    """
    return min(_read_clock(client) for _ in range(3))


def _read_clock(client: redis.Redis) -> Clock:
    """Round trip, and the skew at the middle of it."""
    sent = time.time()
    seconds, microseconds = client.time()
    received = time.time()
    skew_s = seconds + microseconds / 1e6 - (sent + received) / 2.0
    return Clock(round_trip_ms=(received - sent) * 1e3, skew_ms=skew_s * 1e3)
