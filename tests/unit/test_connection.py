"""URLs of the server: both spellings, and no password in a message."""

from __future__ import annotations

import pytest

from mosaic_queues.connection import ServerFacts, redact, urls_of
from mosaic_queues.errors import ConfigurationError


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


def test_a_server_with_everything_wrong_is_told_so_in_sentences() -> None:
    facts = ServerFacts(
        version=(5, 0, 14),
        flavour="redis",
        flavour_version="5.0.14",
        mode="standalone",
        maxmemory_policy="allkeys-lru",
        maxmemory_bytes=1,
        used_memory_bytes=1,
        aof_enabled=False,
        clock_skew_ms=-90_000.0,
        round_trip_ms=1.0,
    )
    problems = "\n".join(facts.problems())
    assert len(facts.problems()) == 4
    for expected in ("5.0.14", "'allkeys-lru'", "append-only", "-90000 ms"):
        assert expected in problems


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:abc/0", "redis://127.0.0.1:99999/0", "redis://[::1", "redis://localhost/notadb"],
)
def test_a_broken_url_is_told_as_such(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is no URL of a Redis server"):
        urls_of(url)
