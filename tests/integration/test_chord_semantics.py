"""Plain canvases of an ordinary app mean the same on Celery's Redis backend and on ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError

from tests.integration.chord_app import client_of, happened
from tests.services import ServerForTests, Workers

pytestmark = [
    pytest.mark.integration,
    # Celery stores results so; here too, where headers are done before the chord is sealed.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

WAIT_S = 15.0
Canvas = Callable[[Celery], Any]
CASES: dict[str, tuple[Canvas, Any]] = {}
"""By name: what is sent, and its result; an exception stands for one of its type."""


def case(expected: Any) -> Callable[[Canvas], Canvas]:
    def register(canvas: Canvas) -> Canvas:
        CASES[canvas.__name__.replace("_", " ").strip()] = canvas, expected
        return canvas

    return register


def add(app: Celery, *args: int) -> Any:
    return app.signature("add", args)


def collect(app: Celery) -> Any:
    return app.signature("collect")


@case([2, 4, 6])
def flat_header(app: Celery) -> Any:
    return chord([add(app, 1, 1), add(app, 2, 2), add(app, 3, 3)], collect(app))


@case([2 * i for i in range(150)])
def many_headers_in_order(app: Celery) -> Any:
    return chord([add(app, i, i) for i in range(150)], collect(app))


@case([0, 2, 4, 6])
def header_of_a_generator(app: Celery) -> Any:
    return chord((add(app, i, i) for i in range(4)), collect(app))


@case([])
def empty_header(app: Celery) -> Any:
    return chord([], collect(app))


@case([12, 4])
def chain_in_a_header(app: Celery) -> Any:
    return chord([chain(add(app, 1, 1), add(app, 10)), add(app, 2, 2)], collect(app))


@case([3, 4])
def group_in_a_chain(app: Celery) -> Any:
    return chain(add(app, 1, 1), group(add(app, 1), add(app, 2)), collect(app))


@case(7)
def chord_in_a_chain(app: Celery) -> Any:
    return chain(chord([add(app, 1, 1), add(app, 2, 2)], app.signature("total")), add(app, 1))


@case([6, 1])
def chord_in_a_header(app: Celery) -> Any:
    inner = chord([add(app, 1, 1), add(app, 2, 2)], app.signature("total"))
    return chord([inner, add(app, 1, 0)], collect(app))


@case(12)
def chord_as_a_body(app: Celery) -> Any:
    body = chord([app.signature("total"), app.signature("total")], app.signature("total"))
    return chord([add(app, 1, 1), add(app, 2, 2)], body)


@case([6, 6])
def group_as_a_body(app: Celery) -> Any:
    return chord([add(app, 1, 1), add(app, 2, 2)], group(app.signature("total"), app.signature("total")))


@case(9)
def chain_as_a_body(app: Celery) -> Any:
    return chord([add(app, 1, 1), add(app, 2, 2)], app.signature("total") | add(app, 1) | add(app, 2))


@case([4, 2, 3])  # in the order in which Celery flattens them
def nested_groups(app: Celery) -> Any:
    return chord([group(add(app, 1, 1), group(add(app, 2, 2))), add(app, 3, 0)], collect(app))


@case([[3, 4], 3])
def group_at_the_end_of_a_chain_in_a_header(app: Celery) -> Any:
    return chord([chain(add(app, 1, 1), group(add(app, 1), add(app, 2))), add(app, 3, 0)], collect(app))


@case([42, 42])
def header_replaced_by_a_task_and_a_chain(app: Celery) -> Any:
    return chord([app.signature("replaced", (kind,)) for kind in ("task", "chain")], collect(app))


@case([[42, 43], 42])
def header_replaced_by_a_group_and_a_chord(app: Celery) -> Any:
    return chord([app.signature("replaced", (kind,)) for kind in ("group", "chord")], collect(app))


@case([7, 8])
def header_that_retries(app: Celery) -> Any:
    return chord([app.signature("retried", (7,)), app.signature("retried", (8,))], collect(app))


@case(103)
def header_that_grows_the_chord(app: Celery) -> Any:
    return chord([app.signature("growing"), add(app, 1, 1)], app.signature("total"))


@case([5, 6])
def headers_without_stored_results(app: Celery) -> Any:
    return chord([app.signature("quiet", (5,)), app.signature("quiet", (6,))], collect(app))


@case([4, 5, 6])
def body_that_replaces_itself_by_chords(app: Celery) -> Any:
    return chord([add(app, i, 0) for i in (1, 2, 3)], app.signature("layer", kwargs={"left": 3}))


@case(7)
def body_that_ignores_the_results(app: Celery) -> Any:
    return chord([add(app, 1, 1)], app.signature("add", (3, 4), immutable=True))


@case(ChordError)
def failing_header(app: Celery) -> Any:
    body = collect(app).on_error(app.signature("on_error"))
    return chord([add(app, 1, 1), app.signature("boom"), app.signature("boom")], body)


@case(ChordError)
def failing_first_step_of_a_chain(app: Celery) -> Any:
    return chord([add(app, 1, 1), chain(app.signature("boom"), add(app, 1))], collect(app))


def outcome(app: Celery, canvas: Canvas) -> Any:
    """The result, or the type of the body's error."""
    result = canvas(app).apply_async().get(timeout=WAIT_S, propagate=False)
    return type(result) if isinstance(result, Exception) else result


@pytest.fixture(scope="module")
def outcomes(
    redis_server: ServerForTests, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """All cases on both backends: backend, case, result; and what is left when their workers have ended."""
    found: dict[str, dict[str, Any]] = {}
    for name, prefix in {"stock": "", "ours": "mosaic+"}.items():
        with Workers(redis_server.urls, Path(tmp_path_factory.mktemp(name))) as workers:
            broker = redis_server.urls.broker_url
            environment = {"CHORD_BROKER": broker, "CHORD_BACKEND": prefix + broker, "CHORD_LABEL": name}
            workers.start("tests.integration.chord_app", [f"chords-{name}"], env=environment).wait_ready()
            with client_of(broker, prefix + broker, name) as app:
                found[name] = {case: outcome(app, canvas) for case, (canvas, _) in CASES.items()}
                found[name]["errbacks"] = redis_server.client.lrange(happened(app, "errors"), 0, -1)
        found[name]["keys"] = redis_server.client.keys("mosaic:chord*")
        redis_server.client.flushdb()
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["stock", "ours"])
def test_canvas_has_the_same_result(outcomes: dict[str, dict[str, Any]], backend: str, name: str) -> None:
    assert outcomes[backend][name] == CASES[name][1]


@pytest.mark.parametrize("backend", ["stock", "ours"])
def test_errback_is_called_once_for_two_failed_headers(
    outcomes: dict[str, dict[str, Any]], backend: str
) -> None:
    assert outcomes[backend]["errbacks"] == [b"ChordError"]


def test_finished_chords_leave_no_key_of_ours(outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes["ours"]["keys"] == []
