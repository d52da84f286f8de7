"""A Celery app as people have it: stock result backend, and small tasks that canvases are made of."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from celery import Celery, Task, chain, chord, chunks, group

from mosaic_queues.connection import server_urls
from mosaic_tasks import install

QUEUE, OTHER = "canvas", "canvas.other"

app = Celery("canvases", set_as_current=False)


class _Lazily:
    """The server of the test, when it is first asked for: canvases are imported without one."""

    task_default_queue = QUEUE
    task_routes: ClassVar = {"tests.integration.canvas_app.routed": {"queue": OTHER}}
    worker_prefetch_multiplier = 1
    result_expires = 300
    broker_connection_retry_on_startup = True

    def __getattr__(self, name: str) -> Any:
        if name in ("broker_url", "result_backend"):
            return server_urls().broker_url
        raise AttributeError(name)


app.config_from_object(_Lazily())
install(app)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def scaled(x: int, *, by: int = 2) -> int:
    return x * by


@app.task
def total(numbers: list[Any]) -> int:
    """Of numbers, in lists of lists."""
    return sum(total.run(part) if isinstance(part, list) else part for part in numbers)


@app.task
def folded(numbers: list[Any], start: int = 0) -> int:
    """Depends on the order of what it gets."""
    for number in numbers:
        start = (start * 31 + (folded.run(number) if isinstance(number, list) else number)) % 1_000_003
    return start


@app.task
def product(*numbers: int) -> int:
    return math.prod(numbers)


@app.task
def answer() -> int:
    return 42


@app.task(bind=True)
def named(self: Task, x: int) -> str:
    return f"{self.name.rpartition('.')[2]} {x}"


@app.task
def routed(x: int) -> int:
    return x


@app.task(
    bind=True, autoretry_for=(OSError,), max_retries=4, retry_backoff=2, soft_time_limit=20, time_limit=30
)
def fragile(self: Task, path: str) -> str:
    self.update_state(state="READING")
    with open(path) as file:
        return file.read() or str(self.request.id)


class Noting(Task):  # type: ignore[misc, unused-ignore]
    def on_success(self, *_told: Any) -> None:
        """Somebody counts on it."""


@app.task(base=Noting, rate_limit="10/m", ignore_result=True)
def noted(x: int, text: str = "") -> int:
    return x


@app.task(bind=True)
def replaced(self: Task, x: int) -> Any:
    raise self.replace(add.s(x, 1))


one = add.s(1, 2)
partial = add.s(4)
steps = chain(add.s(1, 2), add.s(3), scaled.s(by=10))
together = group(add.s(1, 1), scaled.s(3), answer.si())
alike = group(add.s(number, number * number) for number in range(6))
joined = chord([add.s(number, number) for number in range(3)], folded.s(start=7))
upgraded = chain(answer.s(), group(add.s(1), add.s(2)), folded.s(), group(scaled.s(), scaled.s(by=3)))
of_one = chain(group(add.s(1, 2)), add.s(3))
nested = chain(
    add.s(1, 2),
    chord([chain(add.s(3), scaled.s()), group(add.s(4), add.s(5))], chain(total.s(), add.s(1))),
    scaled.s(),
)
immutable = chain(add.s(1, 2), answer.si(), chord([add.si(1, 1), add.si(2, 2)], answer.si()))
mapped = answer.s() | scaled.map([1, 2, 3]) | total.s()
starred = add.starmap([(1, 2), (3, 4)])
parts = add.chunks([(number, number) for number in range(5)], 2)
by_position = chain(product.s(2, 3), product.s(4))
bound = chain(add.s(1, 2), named.s())
elsewhere = chain(routed.s(1), add.s(2).set(queue=OTHER), add.s(3))
head_group = group(add.s(1), add.s(2)) | total.s()
with_link = add.s(1, 2)
with_link.link(scaled.s(by=5))
lossy = chain(
    add.s(1, 2).set(countdown=10, expires=60, priority=3, retry=False).on_error(noted.s()),
    noted.s(text="${not} a reference"),
    fragile.si("/nowhere"),
    replaced.si(1),
)
unknown = app.signature("elsewhere.task", args=(1,))
too_many = add.s(1, 2, 3)
unwritable = noted.s(1, text=object())


def made() -> Any:
    """A canvas that is made when it is asked for."""
    return chain(add.s(1, 2), add.s(3))


def needy(count: int) -> Any:
    return chunks(add.s(), [], count)


nothing = "a text"
