"""Capacity reports of engines: alive while they are published, and what follows from them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from mosaic_queues.keys import Keys
from mosaic_routing.inventory import (
    EngineLoad,
    EngineReport,
    conflict,
    engines,
    prometheus,
    publish,
    withdraw,
)
from tests.services import key_events

KEYS = Keys("mosaic")


def report(holder: str = "one/1/a", model: str = "tiny", **more: Any) -> EngineReport:
    facts: dict[str, Any] = {
        "queues": (f"mosaic.gpu.{model}", f"mosaic.cpu.{model}"),
        "fingerprint": "f1",
        "gpu_class": "cpu",
        "at_ms": 1_700_000_000_000,
    }
    return EngineReport(holder=holder, model=model, **facts | more)


def test_a_load_fits_into_a_report() -> None:
    load = EngineLoad(running=3, waiting=1, slots=5, kv_use=0.5, ttft_s=0.1, prefix_hits=0.9, preempted=2)
    made = report(**msgspec.structs.asdict(load))
    assert (made.running, made.slots, made.prefix_hits, made.preempted) == (3, 5, 0.9, 2)


def test_what_is_simulated_is_told_so() -> None:
    simulated = report(engine="simulated")
    assert (report().title, simulated.title) == ("tiny", "simulated:tiny")
    assert 'model="simulated:tiny"' in prometheus([simulated])


@pytest.mark.integration
def test_engines_are_read_as_they_were_published_last(redis_client: Redis) -> None:
    publish(redis_client, report("two/2/b"), keys=KEYS)
    publish(redis_client, report("one/1/a", "other"), keys=KEYS)
    publish(redis_client, report("one/1/a", running=1), keys=KEYS)
    publish(redis_client, report("one/1/a", running=2), keys=KEYS)
    assert engines(redis_client, keys=KEYS) == [
        report("one/1/a", "other"),
        report("one/1/a", running=2),
        report("two/2/b"),
    ]
    assert engines(redis_client, keys=Keys("elsewhere")) == []


@pytest.mark.integration
def test_without_keys_they_are_in_the_namespace_of_the_settings(
    redis_client: Redis, mosaic_process: Any
) -> None:
    publish(redis_client, report())
    assert engines(redis_client) == engines(redis_client, keys=Keys(mosaic_process.namespace)) == [report()]
    withdraw(redis_client, report())
    assert engines(redis_client) == []


@pytest.mark.integration
@pytest.mark.parametrize("raw", [b'{"holder": "new/1/a", "state": "asleep"}', b"\xff"])
def test_a_report_of_another_version_hides_no_other(redis_client: Redis, raw: bytes) -> None:
    publish(redis_client, report("new/1/a"), keys=KEYS)
    publish(redis_client, report("one/1/a"), keys=KEYS)
    redis_client.set("mosaic:engine:new/1/a:tiny", raw, px=60_000)
    assert engines(redis_client, keys=KEYS) == [report("one/1/a")]


@pytest.mark.integration
def test_an_engine_that_is_silent_is_gone(redis_client: Redis) -> None:
    with key_events(redis_client, "x") as events:
        publish(redis_client, report(), keys=KEYS, expiry_s=0.05)
        assert next(events) == ("expired", "mosaic:engine:one/1/a:tiny")
    assert engines(redis_client, keys=KEYS) == []


@pytest.mark.integration
def test_names_of_engines_that_are_gone_leave_the_index_and_the_index_leaves_too(redis_client: Redis) -> None:
    redis_client.zadd("mosaic:engines", {"mosaic:engine:old/1/a:tiny": 1_700_000_000_000})
    publish(redis_client, report("new/1/a"), keys=KEYS)
    assert redis_client.zrange("mosaic:engines", 0, -1) == [b"mosaic:engine:new/1/a:tiny"]
    assert 0 < redis_client.pttl("mosaic:engines") <= 65_000


@pytest.mark.integration
def test_clocks_of_machines_that_are_minutes_apart_make_nobody_forgotten(redis_client: Redis) -> None:
    at_ms = 1_700_000_000_000
    apart = [
        report("behind/1/a", at_ms=at_ms - 600_000),
        report("right/1/a"),
        report("ahead/1/a", at_ms=at_ms + 600_000),
    ]
    for each in apart:
        publish(redis_client, each, keys=KEYS)
    assert {each.holder for each in engines(redis_client, keys=KEYS)} == {
        "behind/1/a",
        "right/1/a",
        "ahead/1/a",
    }


@pytest.mark.integration
def test_an_engine_that_ends_is_withdrawn_at_once(redis_client: Redis) -> None:
    publish(redis_client, report("one/1/a"), keys=KEYS)
    publish(redis_client, report("two/2/b"), keys=KEYS)
    withdraw(redis_client, report("one/1/a"), keys=KEYS)
    assert engines(redis_client, keys=KEYS) == [report("two/2/b")]


def test_another_model_on_the_same_queue_is_a_conflict() -> None:
    here = [report("one/1/a"), report("two/2/b", "other", fingerprint="f2")]
    assert conflict(here, "mosaic.gpu.tiny", "f1") is None
    assert conflict(here, "mosaic.gpu.nobody", "f9") is None
    assert conflict(here, "mosaic.gpu.tiny", "f2") == "one/1/a"
    assert conflict(here, "mosaic.cpu.other", "f1") == "two/2/b"


def test_prometheus_reads_every_figure() -> None:
    load = {
        "running": 3,
        "waiting": 1,
        "slots": 5,
        "kv_use": 0.25,
        "prompt_tokens_s": 100.5,
        "generated_tokens_s": 20.25,
        "ttft_s": 0.125,
        "inter_token_s": 0.0625,
        "prefix_hits": 0.75,
        "preempted": 2,
    }
    reports = [report(**load), report('a\\b"c\n', "other")]
    families = list(text_string_to_metric_families(prometheus(reports)))
    samples = {sample.name: sample for family in families for sample in reversed(family.samples)}
    assert {name: sample.value for name, sample in samples.items()} == {
        "mosaic_engine_running": 3,
        "mosaic_engine_waiting": 1,
        "mosaic_engine_free_slots": 5,
        "mosaic_engine_kv_use_ratio": 0.25,
        "mosaic_engine_prompt_tokens_per_second": 100.5,
        "mosaic_engine_generated_tokens_per_second": 20.25,
        "mosaic_engine_first_token_seconds": 0.125,
        "mosaic_engine_inter_token_seconds": 0.0625,
        "mosaic_engine_prefix_hit_ratio": 0.75,
        "mosaic_engine_preemptions_total": 2,
        "mosaic_engine_reported_timestamp_seconds": 1_700_000_000,
    }
    assert samples["mosaic_engine_running"].labels == {"model": "tiny", "class": "cpu", "worker": "one/1/a"}
    assert families[0].samples[1].labels["worker"] == 'a\\b"c\n'
    assert all(family.documentation for family in families)
