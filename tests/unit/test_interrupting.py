"""Interrupting a thread from another."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from mosaic_queues.errors import CallTimeout, ClaimLost
from mosaic_tasks.execution.interrupting import Interrupted, Interruptible
from mosaic_tasks.execution.running import GRACE_S, LOST_GRACE_S, Running


def interrupted_by(work: Callable[[], None], reason: Exception) -> Interruptible:
    """Runs `work` here, and interrupts it from another thread once it runs."""
    context, inside = Interruptible(), threading.Event()
    other = threading.Thread(target=lambda: inside.wait(5) and context.interrupt(reason))
    other.start()
    try:
        with pytest.raises(Interrupted):
            run_in(context, lambda: (inside.set(), work()))
    finally:
        other.join()
    return context


def run_in(context: Interruptible, work: Callable[[], object]) -> None:
    with context:
        work()


def spin() -> None:
    """Python code that would run for long."""
    for _ in range(1_000_000_000):
        pass


def block() -> None:
    """A call that would block for long."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=60)


def test_a_blocking_call_in_the_main_thread_ends() -> None:
    reason = TimeoutError("too long")
    assert interrupted_by(block, reason).reason is reason


def test_python_code_in_another_thread_ends() -> None:
    found: list[Exception | None] = []
    thread = threading.Thread(target=lambda: found.append(interrupted_by(spin, ValueError()).reason))
    thread.start()
    thread.join()
    assert isinstance(found[0], ValueError)


def test_what_is_over_cannot_be_interrupted() -> None:
    with Interruptible() as context:
        pass
    assert not context.interrupt(ValueError())


def test_an_interruption_happens_once() -> None:
    context = Interruptible()

    def work() -> None:
        assert context.interrupt(ValueError("first"))
        assert not context.interrupt(ValueError("second"))
        spin()

    with pytest.raises(Interrupted):
        run_in(context, work)
    assert str(context.reason) == "first"


def test_nothing_is_left_over_for_the_code_after_the_context() -> None:
    for _ in range(50):
        context, inside = Interruptible(), threading.Event()
        other = threading.Thread(target=lambda i=inside, c=context: i.wait(5) and c.interrupt(ValueError()))
        other.start()
        try:
            with context:
                inside.set()
        except Interrupted:
            assert context.reason is not None
        other.join()
    assert sum(range(1000)) == 499500


@pytest.mark.parametrize("in_main", [True, False])
def test_what_was_swallowed_is_raised_again(in_main: bool) -> None:
    context, inside, swallowed, raised = (
        Interruptible(),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def work() -> None:
        try:
            with context:
                inside.set()
                try:
                    spin()
                except Interrupted:  # as a `__del__` does
                    swallowed.set()
                spin()
        except Interrupted:
            raised.set()

    def interrupt() -> None:
        inside.wait(5)
        context.interrupt(TimeoutError("too long"))
        swallowed.wait(5)
        context.repeat()

    other = threading.Thread(target=interrupt if in_main else work)
    other.start()
    work() if in_main else interrupt()
    other.join()
    assert raised.is_set()


def test_nothing_is_repeated_that_was_not_interrupted() -> None:
    context = Interruptible()
    with context:
        context.repeat()
        assert context.reason is None


@pytest.mark.parametrize(
    ("reason", "patience_s"), [(CallTimeout("too long"), GRACE_S), (ClaimLost("cancelled"), LOST_GRACE_S)]
)
def test_what_runs_for_nothing_may_end_by_itself_for_longer(reason: Exception, patience_s: float) -> None:
    running = Running([], together=False, batch_since=lambda _: None)
    running.interrupt(reason, now=100.0)
    assert not running.resists(100.0 + patience_s)
    assert running.resists(100.1 + patience_s)
