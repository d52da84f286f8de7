"""Values and envelopes, without a server: what comes back as what, and what is refused how."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import math
import threading
import uuid
from collections import Counter, OrderedDict, deque, namedtuple
from pathlib import PurePosixPath
from typing import Any, cast

import msgspec
import pydantic
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import NotSerializable, PayloadCorrupt, PayloadTooLarge
from mosaic_queues.payloads import PayloadStore
from mosaic_queues.values import MAX_DEPTH, encode


def make_store(**changes: Any) -> PayloadStore:
    """A store that must not need its server."""
    options = {
        "namespace": "t",
        "inline_bytes": 4_096,
        "redis_bytes": 8_192,
        "max_payload_bytes": 100_000,
        "max_run_object_bytes": 100_000,
        "keep_s": 60.0,
    }
    return PayloadStore(cast("redis.Redis", None), **{**options, **changes})


def roundtrip(value: Any) -> Any:
    store = make_store(inline_bytes=100_000)
    return store.unpack("run", store.pack("run", value))


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
keys = st.text(st.characters(exclude_categories=["Cs"])) | st.integers(-(2**63), 2**64 - 1)
plain_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=30,
)


@given(plain_values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert roundtrip(value) == value


@given(st.text())
def test_any_text_is_stored_whatever_its_encoding_was(text: str) -> None:
    assert len(roundtrip(text)) == len(text)
    assert list(roundtrip({text: [text]}).values()) == [[roundtrip(text)]]


@given(st.binary(max_size=200))
def test_random_bytes_are_no_envelope_or_a_value_but_never_a_crash(envelope: bytes) -> None:
    if envelope[:1] in (b"\x02", b"\x03"):
        return
    with contextlib.suppress(PayloadCorrupt):
        make_store().unpack("run", envelope)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass(slots=True)
class Point:
    x: int
    when: datetime.date


class Model(pydantic.BaseModel):
    point: Point
    tags: set[str]


class Record(msgspec.Struct):
    name: str
    where: PurePosixPath


Pair = namedtuple("Pair", "left right")
UTC = datetime.UTC


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        (Pair(1, "b"), [1, "b"]),
        (deque([1, 2]), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({1, "a", None}, [1, "a", None]),
        (Point(1, datetime.date(2024, 2, 29)), {"x": 1, "when": "2024-02-29"}),
        (
            Model(point=Point(1, datetime.date(2024, 2, 29)), tags={"b", "a"}),
            {"point": {"x": 1, "when": "2024-02-29"}, "tags": ["a", "b"]},
        ),
        (Record("n", PurePosixPath("/a/b")), {"name": "n", "where": "/a/b"}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (datetime.datetime(2024, 1, 2, 3, 4, tzinfo=UTC), "2024-01-02T03:04:00+00:00"),
        (datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),
        (datetime.time(3, 4), "03:04:00"),
        (datetime.timedelta(minutes=1.5), "PT90S"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        ([Level.HIGH], [3]),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ({datetime.date(2024, 1, 2): 1, Colour.RED: 2, Level.HIGH: 3}, {"2024-01-02": 1, "red": 2, 3: 3}),
    ],
)
def test_rich_values_come_back_as_plain_ones(value: Any, expected: Any) -> None:
    assert roundtrip(value) == expected


def test_nan_and_infinities_survive() -> None:
    nan, plus, minus = roundtrip([math.nan, math.inf, -math.inf])
    assert math.isnan(nan)
    assert (plus, minus) == (math.inf, -math.inf)


def test_the_order_of_a_dict_survives() -> None:
    assert list(roundtrip({"b": 1, "a": {2}})) == ["b", "a"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"items": [0, 1, 2, {"lock": threading.Lock()}]},
            r"result\.items\[3\]\.lock holds .*'_thread\.lock'.*dataclass",
        ),
        ({"a b": object()}, r"result\['a b'\] holds a value of type 'object'"),
        ((n for n in "ab"), r"result holds a value of type 'generator'"),
        (Point, r"result holds a value of type 'type'"),
        ({"a": {(1, 2): 3}}, r"result\.a holds a dict with the key \(1, 2\) of type 'tuple'.*list of pairs"),
        ({True: 1}, r"the key True of type 'bool'"),
        ({None: 1}, r"the key None"),
        ([2**64], r"result\[0\] holds an int of 65 bits.*str"),
        ({"n": -(2**63) - 1}, r"result\.n holds an int of 64 bits"),
        ({2**70: 1}, r"an int of 71 bits"),
        ({"a": 1, PurePosixPath("a"): 2}, r"two keys that both become 'a'"),
    ],
)
def test_what_has_no_form_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(NotSerializable, match=message):
        encode(value)


def test_a_cycle_is_refused() -> None:
    cycle: dict[str, Any] = {"list": [1]}
    cycle["list"].append(cycle)
    with pytest.raises(NotSerializable, match=r"result\.list\[1\] holds a 'dict' that contains itself"):
        encode(cycle)


def test_one_object_in_two_places_is_no_cycle() -> None:
    shared = {1}
    assert roundtrip([shared, shared]) == [[1], [1]]


@pytest.mark.parametrize("leaf", [1, {1}], ids=["plain", "rich"])
def test_nesting_is_bounded_by_an_error_and_not_by_the_stack(leaf: Any) -> None:
    value = leaf
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert roundtrip(value)
    for _ in range(10_000):
        value = [value]
    with pytest.raises(NotSerializable, match="100 levels"):
        encode(value)


def test_a_small_value_is_msgpack_behind_one_byte() -> None:
    assert make_store().pack("run", {"a": 1}) == b"\x00" + msgspec.msgpack.encode({"a": 1})


def test_a_long_text_is_compressed_when_that_saves() -> None:
    store = make_store()
    envelope = store.pack("run", "weekly report " * 1_000)
    assert envelope[:1] == b"\x01"
    assert len(envelope) < 200
    assert store.unpack("run", envelope) == "weekly report " * 1_000


def test_a_value_above_the_cap_is_refused_with_both_sizes() -> None:
    with pytest.raises(PayloadTooLarge, match=r"takes 100006 bytes, the cap is 100000"):
        make_store().pack("run", "x" * 100_001)


def test_a_compressed_value_that_claims_to_be_huge_is_refused_before_it_is_expanded() -> None:
    envelope = make_store(max_payload_bytes=10_000_000).pack("run", "x" * 9_000_000)
    assert envelope[:1] == b"\x01"
    with pytest.raises(PayloadCorrupt, match=r"claims 9000005 bytes, the cap is 100000"):
        make_store().unpack("run", envelope)


@pytest.mark.parametrize(
    "envelope", [b"", b"\x07x", b"\x00", b"\x00\xc1", b"\x01xyz", b"\x02", b"\x02\x91\x01", b"\x03"]
)
def test_a_broken_envelope_is_corrupt(envelope: bytes) -> None:
    with pytest.raises(PayloadCorrupt):
        make_store().unpack("run", envelope)


def test_a_skipped_node_has_a_reason_and_no_value() -> None:
    envelope = PayloadStore.skipped("when: 'false' \u2013 no tickets")
    assert PayloadStore.is_skipped(envelope) == "when: 'false' \u2013 no tickets"
    assert PayloadStore.is_skipped(make_store().pack("run", "x")) is None
    assert make_store().unpack("run", envelope) is None


def test_an_envelope_tells_what_its_value_takes_of_the_server() -> None:
    reference = msgspec.msgpack.encode([b"0" * 16, 5_000, 9_000, 1])
    in_server, outside = b"\x02" + reference, b"\x03" + reference
    sizes = [PayloadStore.stored_bytes(envelope) for envelope in (b"\x00\xc0", in_server, outside)]
    assert sizes == [2, len(in_server) + 5_000, len(outside)]
