"""An ordinary Celery app with coroutine tasks, which tell what they did and wait to be told to go on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, Task, current_task
from celery.exceptions import Ignore, Reject
from celery.signals import task_postrun, task_prerun, task_received
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

GATE = "test:gate"
"""A task that waits takes one element of this list."""
KEEP_S = 60
QUICK_RESTORE = {"visibility_timeout": 2, "unacked_restore_interval": 0.2, "unacked_restore_throttle": 1}


def pool_app(url: str, backend: str | None, *, folder: str | None = None) -> Celery:
    """The app on a broker; its results go to a backend, if any.

    Args:
        folder: of the broker `filesystem://`.
    """
    app = Celery("pool_app", broker=url, backend=backend, set_as_current=False)
    app.conf.update(
        task_default_queue="pool",
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        result_expires=600,
        worker_soft_shutdown_timeout=float(os.environ.get("POOL_SOFT_S", "0")),
        broker_transport_options={
            **(QUICK_RESTORE if os.environ.get("POOL_QUICK_RESTORE") else {}),
            "global_keyprefix": os.environ.get("POOL_PREFIX", ""),
            **(
                {"data_folder_in": folder, "data_folder_out": folder, "control_folder": folder}
                if folder
                else {}
            ),
        },
    )
    _add_plain_tasks(app)
    _add_tasks_with_endings(app)
    _add_resisting_tasks(app)
    return app


@contextmanager
def client_of(url: str, backend: str | None, *, folder: str | None = None) -> Iterator[Celery]:
    """The app in a process that sends; its connections are gone afterwards."""
    app = pool_app(url, backend, folder=folder)
    yield app
    if backend is not None:
        app.backend.result_consumer.stop()
        app.backend.result_consumer._pubsub = None
        app.backend.client.connection_pool.disconnect()
    app.close()


def tell(app: Celery, what: str, value: Any) -> None:
    """Adds to what happened."""
    with Redis.from_url(os.environ["MOSAIC_REDIS_URL"]) as client, client.pipeline() as pipe:
        pipe.rpush(f"test:{what}", str(value)).expire(f"test:{what}", KEEP_S).execute()


async def pass_gate() -> None:
    """Waits until somebody opens the gate for one."""
    async with AsyncRedis.from_url(os.environ["MOSAIC_REDIS_URL"], socket_timeout=None) as client:
        await client.blpop([GATE], timeout=KEEP_S)  # type: ignore[misc, unused-ignore]


def _add_plain_tasks(app: Celery) -> None:
    @app.task(shared=False, name="add")
    async def add(x: int, y: int = 0) -> int:
        await asyncio.sleep(0)
        return x + y

    @app.task(shared=False, name="quiet", ignore_result=True)
    async def quiet(x: int) -> int:
        return x

    @app.task(shared=False, name="told", ignore_result=True)
    async def told(x: int) -> None:
        await asyncio.to_thread(tell, app, "told", x)

    @app.task(shared=False, name="wait")
    async def wait(x: int = 0) -> int:
        await asyncio.to_thread(tell, app, "waiting", x)
        await pass_gate()
        return x

    @app.task(shared=False, name="plain", bind=True)
    def plain(self: Task, x: int) -> tuple[int, bool, str]:
        on_loop = threading.current_thread().name.startswith("mosaic-pool-loop")
        return x, on_loop, self.request.id

    @app.task(shared=False, name="where", bind=True)
    async def where(self: Task) -> str:
        return str(self.request.hostname)

    @app.task(shared=False, name="total")
    async def total(values: list[int]) -> int:
        return sum(values)

    @app.task(shared=False, name="who", bind=True)
    async def who(self: Task, steps: int) -> list[str]:
        seen = []
        for _ in range(steps):
            seen += [self.request.id, current_task.request.id]
            await asyncio.sleep(0)
        return sorted(set(seen))


def _add_tasks_with_endings(app: Celery) -> None:
    class Hooked(Task):
        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            tell(app, "hooks", f"before_start {self.request.id == task_id}")

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            tell(app, "hooks", f"on_success {retval}")

        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            tell(app, "hooks", f"on_failure {type(exc).__name__}")

        def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            tell(app, "hooks", f"on_retry {type(exc).__name__}")

        def after_return(self, status: str, retval: Any, task_id: str, *_rest: Any) -> None:
            tell(app, "hooks", f"after_return {status}")

    @app.task(shared=False, name="hooked", base=Hooked, bind=True, max_retries=3)
    async def hooked(self: Task, how: str) -> str:
        await asyncio.sleep(0)
        if how == "fail":
            raise ValueError(how)
        if how == "retry" and self.request.retries == 0:
            raise self.retry(exc=KeyError("first"), countdown=0)
        return how

    @app.task(
        shared=False, name="auto", autoretry_for=(KeyError,), retry_backoff=False, default_retry_delay=0
    )
    async def auto() -> int:
        if current_task.request.retries < 2:
            raise KeyError("again")
        return current_task.request.retries

    @app.task(shared=False, name="end")
    async def end(how: str) -> None:
        raise {
            "ignore": Ignore(),
            "reject": Reject("no", requeue=False),
            "fail": ValueError("failed"),
            "exit": SystemExit(3),
            "cancel": asyncio.CancelledError(),
        }[how]

    @app.task(shared=False, name="tell_error")
    def tell_error(request: Any, error: Any, _traceback: Any) -> None:
        tell(app, "errors", type(error).__name__)

    @app.task(shared=False, name="generate")
    async def generate() -> AsyncIterator[int]:
        yield 1

    @app.task(shared=False, name="replaced", bind=True)
    async def replaced(self: Task) -> Any:
        return self.replace(app.signature("add", (40, 2)))

    @app.task(shared=False, name="tracked", track_started=True)
    async def tracked() -> str:
        await asyncio.to_thread(tell, app, "waiting", "tracked")
        await pass_gate()
        return "done"


def _add_resisting_tasks(app: Celery) -> None:
    @app.task(shared=False, name="limited", soft_time_limit=0.2)
    async def limited(how: str) -> str:
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as both:
                both.create_task(pass_gate())
                await pass_gate()
        except asyncio.CancelledError:
            tell(app, "seen", "cancelled")
            if how == "return":
                return "cleaned up"
            raise
        return "never"

    @app.task(shared=False, name="hard", time_limit=0.2)
    async def hard(resists: bool) -> None:
        while True:
            try:
                await pass_gate()
            except asyncio.CancelledError:
                tell(app, "seen", "cancelled")
                if not resists:
                    raise


def _die(what: str) -> bool:
    """Whether this process is to die, once, when `POOL_DIE` names this and enough of it happened."""
    name, _, count = os.environ.get("POOL_DIE", "").partition(":")
    if name != what:
        return False
    with Redis.from_url(os.environ["MOSAIC_REDIS_URL"]) as client:
        reached = client.incr(f"test:die:{what}") == int(count)
        client.expire(f"test:die:{what}", KEEP_S)
    return bool(reached)


@task_received.connect(weak=False)
def _received(**_signal: Any) -> None:
    if _die("received"):
        os.kill(os.getpid(), signal.SIGKILL)


@task_prerun.connect(weak=False)
def _prerun(task: Task, task_id: str, **_signal: Any) -> None:
    if task.name == "hooked":
        tell(app, "hooks", f"prerun {current_task.request.id == task_id}")


@task_postrun.connect(weak=False)
def _postrun(task: Task, state: str | None, **_signal: Any) -> None:
    if task.name == "hooked":
        tell(app, "hooks", f"postrun {state}")


app = pool_app(
    os.environ.get("POOL_BROKER", "memory://"),
    os.environ.get("POOL_BACKEND"),
    folder=os.environ.get("POOL_FOLDER"),
)
