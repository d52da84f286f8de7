"""The pure parts of the chord join: places in a chord, the shape of results, URLs, what concerns the sweeper."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, _state, chain, chord, group
from celery.result import AsyncResult, GroupResult

from mosaic_queues.broker import task_ids
from mosaic_queues.chords.backend import LedgerBackend
from mosaic_queues.chords.joins import HeaderPart, Slot
from mosaic_queues.chords.messages import place_of
from mosaic_queues.chords.recovery import Watch
from mosaic_queues.chords.results import in_place, in_shape, shape_of


@pytest.fixture
def app() -> Celery:
    return Celery("places", broker="memory://", backend="cache+memory://", set_as_current=False)


def headers(task_id: str, **more: Any) -> dict[str, Any]:
    return {"id": task_id, "group": "g", "group_index": 2, "retries": 0, **more}


def test_header_fills_the_slot_of_its_id_and_index() -> None:
    place = place_of(headers("a"), {"chord": {"task": "body"}, "chain": None})
    assert place == ("g", "a:2", (0, 0, 0))


def test_task_outside_of_chords_has_no_place() -> None:
    assert place_of(headers("a"), {"chord": None, "chain": None}) is None
    assert place_of(headers("a"), {"chord": None, "chain": [{"options": {"task_id": "b"}}]}) is None


def test_later_messages_of_a_slot_have_a_higher_order(app: Celery) -> None:
    last = app.signature("last", task_id="z", group_id="g", group_index=2, chord={"task": "body"})
    middle = app.signature("middle", task_id="y")
    steps = [
        place_of(headers("x"), {"chain": [last, middle]}),
        place_of(headers("y"), {"chain": [last]}),
        place_of(headers("y", retries=1), {"chain": [last]}),
        place_of(headers("z"), {"chord": {"task": "body"}}),
        place_of(headers("z", replaced_task_nesting=1), {"chord": {"task": "body"}}),
    ]
    assert {step and step.slot for step in steps} == {"z:2"}
    orders = [step.order for step in steps if step]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(steps)


def test_chain_that_ends_in_a_canvas_has_the_slot_of_its_last_task(app: Celery) -> None:
    options = {"task_id": "z", "group_id": "g", "group_index": 0, "chord": {"task": "body"}}
    last = app.signature("last", **options)
    ends = [chord([app.signature("h")], last), group([last, app.signature("other")]), chain(last)]
    places = [place_of(headers("x"), {"chain": [dict(end)]}) for end in ends]
    assert [place and place.slot for place in places] == ["z:0", "z:0", "z:0"]


def test_results_of_a_flat_header_have_no_shape(app: Celery) -> None:
    assert shape_of([AsyncResult("a", app=app), AsyncResult("b", app=app)]) == b""


def test_results_of_a_nested_header_keep_their_shape(app: Celery) -> None:
    inner = GroupResult("i", [AsyncResult("b", app=app), AsyncResult("c", app=app)], app=app)
    shape = shape_of([AsyncResult("a", app=app), inner])
    assert shape == b'["a",["b","c"]]'
    assert in_shape(shape, {"a": 1, "b": 2, "c": 3}) == [1, [2, 3]]


def test_quorum_results_stand_at_their_index() -> None:
    parts = [HeaderPart(1, "b", True, b""), HeaderPart(1, "b2", True, b""), HeaderPart(None, "x", True, b"")]
    assert in_place(parts, ["b", "grown", "unplaced"], 3) == [None, "b", None, "grown", "unplaced"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host:7000/3", {"host": "host", "port": 7000, "db": 3}),
        ("valkey://host/3", {"host": "host", "db": 3}),
        ("redis+socket:///tmp/x.sock?virtual_host=2", {"path": "/tmp/x.sock", "db": 2}),
        ("socket:///tmp/x.sock?virtual_host=2", {"path": "/tmp/x.sock", "db": 2}),
        ("unix:///tmp/x.sock?virtual_host=2", {"path": "/tmp/x.sock", "db": 2}),
    ],
)
def test_backend_is_chosen_by_its_url(url: str, expected: dict[str, Any]) -> None:
    app = Celery("urls", broker="memory://", backend=f"mosaic+{url}", set_as_current=False)
    assert isinstance(app.backend, LedgerBackend)
    assert expected.items() <= app.backend.connparams.items()


def slot(**values: Any) -> Slot:
    plain = Slot((0, 0, 0), "c", "q", 1_000, "holder", "tag", 0, False, "t")
    return plain._replace(**values)


def test_sweeper_minds_claims_of_the_dead_and_messages_past_the_grace() -> None:
    watch = Watch(now_ms=2_000, alive={"holder"}, grace_ms=1_000)
    assert not watch.concerns(slot())
    assert watch.concerns(slot(holder="dead"))
    assert watch.concerns(slot(status="w"))
    assert not watch.concerns(slot(status="w", at_ms=1_001))


def test_task_id_is_read_from_a_raw_message_and_not_from_its_arguments() -> None:
    raw = b'{"headers": {"argsrepr": "\\"correlation_id\\": \\"x\\""}, "properties": {"correlation_id": "t"}}'
    assert task_ids(raw) == ["t"]


def test_publishing_a_chord_reads_no_configuration_of_another_app(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Celery("other", set_as_current=False)
    monkeypatch.setattr(_state._tls, "current_app", other)
    chord([app.signature("add", (1, 1))], app.signature("collect"), app=app).apply_async()
    assert (app.configured, other.configured) == (True, False)
