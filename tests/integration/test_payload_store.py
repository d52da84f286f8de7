"""The payload store on a real server: what lies where, how long, and what happens when it is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from mosaic_queues.connection import connect
from mosaic_queues.errors import PayloadCorrupt, PayloadTooLarge
from mosaic_queues.ledger import Ledger
from mosaic_queues.objects import LocalObjects, expire_objects, stored_bytes_key, stored_key
from mosaic_queues.payloads import PayloadStore
from mosaic_queues.server import EmbeddedServer

pytestmark = pytest.mark.integration

NAMESPACE = "test-payloads"
BLOBS = f"{NAMESPACE}:{{run}}:blobs"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path_factory.mktemp("payloads")).start()
    yield server
    server.stop(wait_s=15)


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with connect(server.redis_url) as client:
        yield client
        client.flushdb()


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "objects")


def store_of(client: redis.Redis, objects: LocalObjects, **limits: int) -> PayloadStore:
    return PayloadStore(
        client,
        namespace=NAMESPACE,
        inline_bytes=100,
        redis_bytes=10_000,
        keep_s=100.0,
        objects=objects,
        **limits,
    )


@pytest.fixture
def store(client: redis.Redis, objects: LocalObjects) -> PayloadStore:
    return store_of(client, objects, max_payload_bytes=200_000_000, max_run_object_bytes=150_000_000)


def stored_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]


def test_a_small_value_touches_neither_server_nor_object_store(
    store: PayloadStore, client: redis.Redis, tmp_path: Path
) -> None:
    assert store.unpack("run", store.pack("run", [1, "a"])) == [1, "a"]
    assert client.keys() == []
    assert stored_files(tmp_path) == []


def test_a_larger_value_lies_in_the_run_s_hash(store: PayloadStore, client: redis.Redis) -> None:
    value = os.urandom(5_000)
    envelope = store.pack("run", value)
    assert envelope[:1] == b"\x02"
    assert len(envelope) < 40
    assert store.unpack("run", envelope) == value
    assert client.hlen(BLOBS) == 1


def open_run(client: redis.Redis) -> Ledger:
    ledger = Ledger(client, namespace=NAMESPACE)
    ledger.open_run(
        "run", plan="p", name="n", inputs=b"\x00\xc0", roots=[], retention_s=10.0, max_run_s=90_000.0
    )
    return ledger


def test_a_value_of_a_run_that_is_never_opened_goes_soon(store: PayloadStore, client: redis.Redis) -> None:
    store.pack("run", os.urandom(5_000))
    assert 0 < client.ttl(BLOBS) <= 3_600


@pytest.mark.parametrize("is_first", [True, False], ids=["before opening", "after opening"])
def test_a_value_lives_as_long_as_its_open_run(
    store: PayloadStore, client: redis.Redis, is_first: bool
) -> None:
    if is_first:
        store.pack("run", os.urandom(5_000))
    open_run(client)
    store.pack("run", os.urandom(5_000))
    assert abs(client.ttl(BLOBS) - client.ttl(f"{NAMESPACE}:{{run}}:run")) <= 1
    assert client.ttl(BLOBS) > 90_000


def test_the_values_of_a_run_that_is_over_go_with_it(store: PayloadStore, client: redis.Redis) -> None:
    store.pack("run", os.urandom(5_000))
    ledger = open_run(client)
    ledger.end_run("run", "cancelled", "")
    store.pack("run", os.urandom(5_000))
    assert 0 < client.ttl(BLOBS) <= 10


def test_the_first_value_after_the_end_goes_with_the_run(store: PayloadStore, client: redis.Redis) -> None:
    open_run(client).end_run("run", "cancelled", "")
    store.pack("run", os.urandom(5_000))
    assert 0 < client.ttl(BLOBS) <= 10


def test_the_same_value_is_stored_once(store: PayloadStore, client: redis.Redis) -> None:
    value = os.urandom(5_000)
    assert store.pack("run", value) == store.pack("run", value)
    assert client.hlen(BLOBS) == 1


def test_a_blob_is_compressed_when_that_saves(store: PayloadStore, client: redis.Redis) -> None:
    value = os.urandom(3_000).hex()
    envelope = store.pack("run", value)
    assert client.hvals(BLOBS)[0][:4] == b"\x28\xb5\x2f\xfd"
    assert store.unpack("run", envelope) == value


def test_many_blobs_take_one_round_trip(store: PayloadStore, client: redis.Redis) -> None:
    values: list[Any] = [os.urandom(1_000) for _ in range(20)] + ["small", None, os.urandom(20_000)]
    envelopes = [store.pack("run", value) for value in values] + [PayloadStore.skipped("no")]
    before = client.info("stats")["total_commands_processed"]
    assert store.unpack_many("run", envelopes) == [*values, None]
    after = client.info("stats")["total_commands_processed"]
    assert after - before == 2  # HMGET and the INFO that asks


def test_a_changed_blob_is_corrupt(store: PayloadStore, client: redis.Redis) -> None:
    envelope = store.pack("run", os.urandom(5_000))
    client.hset(BLOBS, client.hkeys(BLOBS)[0], b"changed")
    with pytest.raises(PayloadCorrupt, match=r"run 'run'.*7 bytes were read, 5003 were written"):
        store.unpack("run", envelope)


def test_a_blob_that_is_gone_is_told_so(store: PayloadStore, client: redis.Redis) -> None:
    envelope = store.pack("run", os.urandom(5_000))
    client.delete(BLOBS)
    with pytest.raises(PayloadCorrupt, match="gone from the server"):
        store.unpack("run", envelope)


def test_another_run_s_envelope_does_not_open(store: PayloadStore) -> None:
    with pytest.raises(PayloadCorrupt):
        store.unpack("other", store.pack("run", os.urandom(5_000)))


def test_a_value_of_100_megabytes_travels_through_the_object_store(
    store: PayloadStore, client: redis.Redis, tmp_path: Path
) -> None:
    value = {"data": os.urandom(10_000_000) * 10}
    envelope = store.pack("run", value)
    assert envelope[:1] == b"\x03"
    assert len(envelope) < 40
    assert store.unpack("run", envelope) == value
    sizes = stored_bytes_key(NAMESPACE)
    assert set(client.keys()) == {stored_key(NAMESPACE).encode(), sizes.encode()}
    assert 90 < client.ttl(sizes) <= 100
    assert len(stored_files(tmp_path)) == 1


def test_the_objects_of_a_run_have_a_limit_together(
    client: redis.Redis, objects: LocalObjects, tmp_path: Path
) -> None:
    store = store_of(client, objects, max_payload_bytes=100_000, max_run_object_bytes=50_000)
    store.pack("run", os.urandom(30_000))
    with pytest.raises(PayloadTooLarge, match=r"objects take 600\d\d bytes, .*MOSAIC_MAX_RUN_OBJECT_BYTES"):
        store.pack("run", os.urandom(30_000))
    store.pack("run", os.urandom(15_000))
    store.pack("other", os.urandom(30_000))
    assert len(stored_files(tmp_path)) == 3


def test_a_changed_object_is_corrupt(store: PayloadStore, tmp_path: Path) -> None:
    envelope = store.pack("run", os.urandom(20_000))
    (path,) = stored_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(PayloadCorrupt, match="checksum"):
        store.unpack("run", envelope)


def test_objects_go_when_their_run_s_time_has_passed(
    store: PayloadStore, client: redis.Redis, objects: LocalObjects, tmp_path: Path
) -> None:
    store.pack("old", os.urandom(20_000))
    store.pack("new", os.urandom(20_000))
    store.keep_objects_until(["old", "none"], time.time() - 1)
    assert expire_objects(client, time.time(), namespace=NAMESPACE, objects=objects) == 1
    assert [path.parent.name for path in stored_files(tmp_path)] == ["new"]
    assert expire_objects(client, time.time() + 101, namespace=NAMESPACE, objects=objects) == 1
    assert stored_files(tmp_path) == []
    assert client.keys() == []


def test_a_crash_while_expiring_leaves_the_work_to_do_again(
    store: PayloadStore, client: redis.Redis, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pack("run", os.urandom(20_000))
    with monkeypatch.context() as patch:
        patch.setattr(client, "zrem", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            expire_objects(client, time.time() + 101, namespace=NAMESPACE, objects=objects)
    assert expire_objects(client, time.time() + 101, namespace=NAMESPACE, objects=objects) == 1
    assert client.keys() == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_reads_and_writes_what_its_parent_stored(store: PayloadStore) -> None:
    values = [os.urandom(5_000), os.urandom(20_000)]
    envelopes = [store.pack("run", value) for value in values]
    pid = os.fork()
    if pid == 0:
        same = store.unpack_many("run", envelopes) == values
        same = same and [store.pack("run", value) for value in values] == envelopes
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.unpack_many("run", envelopes) == values
