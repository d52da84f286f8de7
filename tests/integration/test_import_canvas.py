"""What Celery makes of a canvas, and what the imported workflow makes of it, are the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import Signature
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mosaic_queues.settings import Settings
from mosaic_tasks import Workflow, submit
from mosaic_tasks.adopting.importing import import_canvas, translated
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
HERE = "tests.integration.canvas_app"
SAME = [
    "one", "steps", "together", "alike", "joined", "upgraded", "of_one", "nested", "immutable", "mapped", "starred",
    "parts", "by_position", "bound", "elsewhere", "made",
]  # fmt: skip


@pytest.fixture
def canvases(mosaic_process: Settings, broker_url: str, workers: Workers) -> Any:
    """The app, with a worker."""
    from tests.integration import canvas_app

    canvas_app.app.conf.update(broker_url=broker_url, result_backend=broker_url)
    canvas_app.app._after_fork()
    workers.start(HERE, [canvas_app.QUEUE, canvas_app.OTHER], pool="threads", concurrency=8).wait_ready()
    yield canvas_app
    canvas_app.app.close()


def by_celery(canvas: Signature) -> Any:
    return canvas.apply_async().get(timeout=10)


def by_workflow(canvas: Signature, app: Any) -> Any:
    workflow, _ = translated(canvas, name="imported")
    return submit(Workflow.from_yaml(workflow.to_yaml()), app=app).result(timeout_s=10)


def test_they_come_to_the_same(canvases: Any) -> None:
    found = {name: import_canvas(f"{HERE}:{name}") for name in SAME}
    ours = {name: submit(Workflow.from_yaml(each.text), app=canvases.app) for name, each in found.items()}
    for name in SAME:
        canvas = getattr(canvases, name)
        canvas = canvas if isinstance(canvas, Signature) else canvas()
        assert ours[name].result(timeout_s=10) == by_celery(canvas), found[name].text


def test_what_a_partial_canvas_lacks_is_an_input(canvases: Any) -> None:
    partial = submit(import_canvas(f"{HERE}:partial").workflow, {"x": 5}, app=canvases.app)
    both = submit(import_canvas(f"{HERE}:head_group").workflow, {"x": 5}, app=canvases.app)
    assert partial.result(timeout_s=10) == canvases.partial.apply_async((5,)).get(timeout=10)
    assert both.result(timeout_s=10) == canvases.head_group.apply_async((5,)).get(timeout=10)


def test_a_callback_gets_the_result(canvases: Any) -> None:
    run = submit(import_canvas(f"{HERE}:with_link").workflow, app=canvases.app)
    assert run.result(timeout_s=10) == 3
    assert run.node("scaled").state == "done"
    assert [event.value for event in run.stream("scaled") if event.kind == "value"] == [15]


NUMBERS = st.integers(0, 9)


def plain(app: Any, *, reads: bool) -> st.SearchStrategy[Signature]:
    """A task that takes the number before it, or none."""
    given_before = [
        st.builds(lambda y: app.add.s(y), NUMBERS),
        st.builds(lambda by: app.scaled.s(by=by), NUMBERS),
        st.builds(lambda y: app.product.s(y), NUMBERS),
        st.builds(lambda x, y: app.add.si(x, y), NUMBERS, NUMBERS),
    ]
    alone = [
        st.builds(lambda x, y: app.add.s(x, y), NUMBERS, NUMBERS),
        st.builds(lambda x, y: app.add.si(x, y), NUMBERS, NUMBERS),
        st.builds(lambda x, by: app.scaled.s(x, by=by), NUMBERS, NUMBERS),
        st.just(app.answer.si()),
    ]
    return st.one_of(given_before if reads else alone)


def numbers(app: Any, *, reads: bool, depth: int) -> st.SearchStrategy[Signature]:
    """A canvas whose result is a number."""
    if depth == 0:
        return plain(app, reads=reads)
    below = {"depth": depth - 1}
    many = st.lists(numbers(app, reads=reads, **below), min_size=2, max_size=5)
    body = st.one_of(st.builds(lambda start: app.folded.s(start=start), NUMBERS), st.just(app.answer.si()))
    after = numbers(app, reads=True, **below)
    return st.one_of(
        plain(app, reads=reads),
        st.builds(lambda first, then: chain(first, then), numbers(app, reads=reads, **below), after),
        st.builds(lambda header, last: chord(header, last), many, body),
        st.builds(lambda header, last, then: chain(group(header), last, then), many, body, after),
    )


def test_random_canvases_come_to_the_same(canvases: Any) -> None:
    whole = st.one_of(
        numbers(canvases, reads=False, depth=3),
        st.builds(group, st.lists(numbers(canvases, reads=False, depth=2), min_size=2, max_size=5)),
    )

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(whole)
    def same(canvas: Signature) -> None:
        ours = by_workflow(canvas, canvases.app)  # first: Celery changes what it applies
        assert ours == by_celery(canvas), canvas

    same()


def test_the_command_writes_a_file_that_runs(canvases: Any, tmp_path: Path) -> None:
    file = tmp_path / "steps.yaml"
    words = ["import-canvas", f"{HERE}:steps", "--output", str(file)]
    command = [sys.executable, "-m", "mosaic_tasks.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert submit(file, app=canvases.app).result(timeout_s=10) == 60
