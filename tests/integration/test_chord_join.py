"""The transitions of a join, on a real server."""

from __future__ import annotations

import pytest
from redis import Redis

from mosaic_queues.chords.joins import Chords, HeaderPart, Order, Record, Slot, decode_slot, new_token

pytestmark = pytest.mark.integration


@pytest.fixture
def chords(redis_client: Redis) -> Chords:
    return Chords(redis_client, namespace="mosaic")


def open_join(chords: Chords, quorum: int = 0) -> None:
    chords.open("g", body=b"body", shape=b"", quorum=quorum, expire_s=60, look_ms=0)


def finish(chords: Chords, name: str, index: int, payload: bytes = b"1", ok: bool = True) -> int:
    part = HeaderPart(index, name, ok, payload)
    return chords.advance("g", token=f"by {name}", part=(f"{name}:{index}", part))


def record(name: str, order: Order = (0, 0, 0)) -> Record:
    return Record(f"{name}:0", order, "q", name, b"message \xff " + name.encode())


def claimed(name: str, order: Order = (0, 0, 0)) -> Slot:
    return Slot(order, "c", "q", 0, "holder", "tag", 0, True, name)


def test_join_is_complete_once_and_in_header_order(chords: Chords) -> None:
    open_join(chords)
    assert finish(chords, "b", 1) == 0
    assert chords.advance("g", token="sealer", size=2) == 0
    assert finish(chords, "a", 0) == 1
    assert finish(chords, "a", 0) == 0
    assert [part.task_id for part in chords.parts("g")] == ["a", "b"]
    join = chords.read("g")
    assert join is not None
    assert (join.state, join.lease, join.body) == ("ready", "by a", b"body")


def test_header_counts_once_and_its_first_result_wins(chords: Chords) -> None:
    open_join(chords)
    chords.advance("g", token="sealer", size=2)
    assert [finish(chords, "a", 0, payload) for payload in (b"first \xff", b"second")] == [0, 0]
    assert [part.payload for part in chords.parts("g")] == [b"first \xff"]


def test_join_is_not_complete_before_it_is_sealed(chords: Chords) -> None:
    open_join(chords)
    assert finish(chords, "a", 0) == 0
    assert chords.advance("g", token="sealer", size=1) == 1


def test_join_grows_until_it_is_complete(chords: Chords) -> None:
    open_join(chords)
    chords.advance("g", token="sealer", size=1)
    chords.advance("g", token="grower", grow=1)
    assert [finish(chords, "a", 0), finish(chords, "b", 0)] == [0, 1]


def test_quorum_completes_the_join_or_fails_it_when_out_of_reach(chords: Chords) -> None:
    open_join(chords, quorum=2)
    chords.advance("g", token="sealer", size=3)
    assert [finish(chords, "a", 0), finish(chords, "b", 1, ok=False)] == [0, 0]
    assert finish(chords, "c", 2, ok=False) == 1


def test_unknown_join_is_told(chords: Chords) -> None:
    assert finish(chords, "a", 0) == -1
    assert not chords.claim("g", "a:0", claimed("a"))


def test_later_message_takes_the_place_of_an_earlier_one_only(chords: Chords) -> None:
    open_join(chords)
    for order in ((0, -1, 0), (0, 0, 1), (0, 0, 0)):
        chords.advance("g", token="t", records=[record("a", order)])
    assert decode_slot(chords.slots("g")["a:0"]).order == (0, 0, 1)
    assert chords.claim("g", "a:0", claimed("a", (0, 0, 1)))
    assert not chords.claim("g", "a:0", claimed("a", (0, 0, 0)))
    assert chords.message("g", "a:0") == b"message \xff a"


def test_message_noted_after_its_claim_keeps_the_claim(chords: Chords) -> None:
    open_join(chords)
    chords.claim("g", "a:0", claimed("a"))
    chords.advance("g", token="t", records=[record("a")])
    assert decode_slot(chords.slots("g")["a:0"]).status == "c"
    assert chords.message("g", "a:0") == b"message \xff a"


def test_message_of_a_finished_header_is_not_watched(chords: Chords) -> None:
    open_join(chords)
    finish(chords, "a", 0)
    chords.advance("g", token="t", records=[record("a")])
    assert chords.slots("g") == {}


def test_slot_that_changed_meanwhile_is_left_alone(chords: Chords) -> None:
    open_join(chords)
    chords.advance("g", token="t", records=[record("a")])
    seen = chords.slots("g")["a:0"]
    chords.claim("g", "a:0", claimed("a"))
    assert not chords.change("g", "a:0", seen, None)
    assert chords.change("g", "a:0", chords.slots("g")["a:0"], None)
    assert chords.slots("g") == {}


def test_body_is_dispatched_by_the_holder_of_the_lease_only(chords: Chords) -> None:
    open_join(chords)
    chords.advance("g", token="first", size=0)
    second = new_token()
    assert chords.lease("g", seen="first", token=second)
    assert not chords.lease("g", seen="first", token=new_token())
    assert chords.sent("g", token="first", records=[]) == 0
    assert chords.sent("g", token=second, records=[record("body")]) == 1


def test_join_is_gone_when_its_bodies_were_received(chords: Chords, redis_client: Redis) -> None:
    open_join(chords)
    chords.advance("g", token="t", size=0)
    chords.body_received("g", "early:0")
    assert chords.sent("g", token="t", records=[record("early"), record("late")]) == 1
    assert list(chords.slots("g")) == ["late:0"]
    chords.body_received("g", "late:0")
    assert redis_client.keys("mosaic:chord*") == []


def test_join_expires(chords: Chords, redis_client: Redis) -> None:
    open_join(chords)
    chords.advance("g", token="t", records=[record("a")], part=("b:1", HeaderPart(1, "b", True, b"1")))
    assert all(0 < redis_client.ttl(key) <= 60 for key in redis_client.keys("mosaic:chord:*"))
    assert redis_client.ttl(chords.index) > 60
