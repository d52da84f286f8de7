"""URLs of the server in both spellings, and errors that say what is wrong without the password."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)

from mosaic_queues.connection import connect, connect_async, redact, server_errors, urls_of
from mosaic_queues.errors import (
    ConfigurationError,
    ServerError,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
)


@pytest.mark.parametrize(
    ("url", "redis_url", "broker_url"),
    [
        ("redis://h:1/2", "redis://h:1/2", "redis://h:1/2"),
        ("redis://u:p%40@h/0", "redis://u:p%40@h/0", "redis://u:p%40@h/0"),
        ("rediss://h:1/0", "rediss://h:1/0?ssl_cert_reqs=required", "rediss://h:1/0?ssl_cert_reqs=required"),
        ("rediss://h:1/0?ssl_cert_reqs=none",) + ("rediss://h:1/0?ssl_cert_reqs=none",) * 2,
        ("unix:///a/b.sock", "unix:///a/b.sock?db=0", "redis+socket:///a/b.sock?virtual_host=0"),
        ("unix://u:p@/a/b?db=3", "unix://u:p@/a/b?db=3", "redis+socket://u:p@/a/b?virtual_host=3"),
        ("redis+socket:///a/b?virtual_host=3", "unix:///a/b?db=3", "redis+socket:///a/b?virtual_host=3"),
    ],
)
def test_a_url_is_spelled_for_redis_py_and_for_kombu(url: str, redis_url: str, broker_url: str) -> None:
    urls = urls_of(url)
    assert (urls.redis_url, urls.broker_url) == (redis_url, broker_url)


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://h", "redis://", "unix://", "redis:///"])
def test_what_is_no_server_url_is_refused_with_examples(url: str) -> None:
    with pytest.raises(ConfigurationError, match="set MOSAIC_REDIS_URL to redis://"):
        urls_of(url)


@pytest.mark.parametrize("url", ["redis://u:se/cret@h", "redis://u:se?cret@h", "redis://u:se#cret@h"])
def test_a_password_that_must_be_encoded_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="percent-encoded") as caught:
        urls_of(url)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
        ("rediss://user:secret@h/0?ssl_password=secret&db=1", "rediss://user:***@h/0?ssl_password=***&db=1"),
        ("redis://user:se@cret@h", "redis://user:***@h"),
        ("unix:///a/b.sock?password=secret", "unix:///a/b.sock?password=***"),
        ("redis://user@h/0", "redis://user@h/0"),
    ],
)
def test_a_password_is_hidden_and_nothing_else(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            redis.ConnectionError("refused, p@ss"),
            ServerUnavailable,
            "does not answer (refused, ***); start it",
        ),
        (redis.TimeoutError("slow"), ServerUnavailable, "does not answer"),
        (redis.AuthenticationError("WRONGPASS"), ServerUnavailable, "refuses the user or password"),
        (OutOfMemoryError("used memory > 'maxmemory'"), ServerFull, "raise maxmemory"),
        (redis.ResponseError("@user_script: -OOM command not allowed when used"), ServerFull, "is full"),
        (
            NoPermissionError("no right to 'info'"),
            ServerRefused,
            "forbids what is needed (no right to 'info')",
        ),
        (redis.ResponseError("ACL failure in script: 'hset'"), ServerRefused, "ACL SETUSER"),
        (
            ReadOnlyError("You can't write against a read only replica."),
            ServerUnavailable,
            "name the primary",
        ),
        (
            MasterDownError("Link with MASTER is down"),
            ServerUnavailable,
            "a replica that has lost its primary",
        ),
        (ClusterDownError("Hash slot not served"), ServerUnavailable, "its cluster lacks nodes"),
        (TryAgainError("Multiple keys request during rehashing"), ServerUnavailable, "move to another node"),
        (
            BusyLoadingError("Redis is loading the dataset"),
            ServerUnavailable,
            "still reads its data from disk",
        ),
        (redis.ResponseError("BUSY Redis is busy running a script."), ServerUnavailable, "SCRIPT KILL"),
        (redis.ResponseError("UNKILLABLE Sorry the script"), ServerUnavailable, "has written already; wait"),
        (
            redis.ResponseError("MISCONF Errors writing to the AOF file"),
            ServerUnavailable,
            "its log says why",
        ),
        (redis.ResponseError("NOREPLICAS Not enough good replicas"), ServerUnavailable, "bring them back"),
        (
            redis.ResponseError("ERR @user_script:9: -READONLY You can't write"),
            ServerUnavailable,
            "it is a replica",
        ),
    ],
)
def test_what_a_user_can_mend_is_told_by_its_condition(
    error: Exception, kind: type[ServerError], words: str
) -> None:
    with pytest.raises(kind) as caught, server_errors("redis://u:p%40ss@h:1/0"):
        raise error
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert "'redis://u:***@h:1/0'" in str(caught.value)


@pytest.mark.parametrize("said", ["WRONGTYPE", "BUSYGROUP Consumer Group name already exists"])
def test_other_errors_pass_unchanged(said: str) -> None:
    error = redis.ResponseError(said)
    with pytest.raises(redis.ResponseError) as caught, server_errors("redis://h"):
        raise error
    assert caught.value is error
    with pytest.raises(OSError, match="disk"), server_errors("redis://h"):
        raise OSError("disk")


@pytest.mark.parametrize("client", [connect, connect_async])
def test_an_unknown_option_is_told_before_the_server_is_asked(client: Callable[[str], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"'redis://:\*\*\*@h.*' has an option that .* 'speed'"):
        client("redis://:secret@h/0?speed=1")


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:abc/0", "redis://127.0.0.1:99999/0", "redis://[::1", "redis://localhost/notadb"],
)
def test_a_broken_url_is_told_as_such(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is no URL of a Redis server"):
        urls_of(url)
