"""What calls read and come to, without a server."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from made_observers import observer

from mosaic_queues.transitions import Claim
from mosaic_tasks import Workflow
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.execution import inputs
from mosaic_tasks.execution.calls import SMALL, Execution, is_small
from mosaic_tasks.execution.outcomes import Outcome, Value, Work
from mosaic_tasks.execution.prepared import PreparedPlan

TOOLS = "tests.integration"
LARGE = "x" * (SMALL + 1)


class Payloads:
    """Packs values, and notes in which threads."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.refuses = 0

    def pack(self, _run: str, value: Any) -> bytes:
        self.threads.append(threading.get_ident())
        if self.refuses:
            self.refuses -= 1
            raise ConnectionError("away")
        return msgspec.msgpack.encode(value)

    def unpack_many(self, _run: str, envelopes: Any) -> list[Any]:
        return [msgspec.msgpack.decode(envelope) for envelope in envelopes]

    def is_skipped(self, _envelope: bytes) -> None:
        return None


def number_of(plan: PreparedPlan, name: str) -> int:
    return next(number for number, node in enumerate(plan.plan.nodes) if node.name == name)


def execution_of(nodes: dict[str, Any], output: str, payloads: Payloads, **outputs: Any) -> Execution:
    """A run whose nodes have these outputs."""
    plan = PreparedPlan(
        "hash", compile_workflow(Workflow.from_data({"name": "w", "nodes": nodes, "output": output}))
    )
    known = {str(number_of(plan, name)): payloads.pack("run", value) for name, value in outputs.items()}
    process: Any = SimpleNamespace(
        payloads=payloads,
        settings=SimpleNamespace(max_losses=3),
        ledger=SimpleNamespace(outputs=lambda _run, calls: [known.get(call) for call in calls]),
        value=lambda *_a: None,
        remember_value=lambda *_a: None,
        observer=observer(),
    )
    return Execution(process, "run", plan)


def answered(execution: Execution, work: Work) -> Outcome:
    return asyncio.run(execution.answered(work))()


def echoing(value: Any, payloads: Payloads) -> tuple[Execution, Work]:
    """A coroutine that gives the value back."""
    nodes = {
        "given": {"tool": f"{TOOLS}.run_tools:echo", "with": {"value": 1}},
        "same": {"tool": f"{TOOLS}.host_tools:nothing", "with": {"x": "${given}"}},
    }
    execution = execution_of(nodes, "same", payloads, given=value)
    work = execution.prepare(Claim(str(number_of(execution.plan, "same")), 1, 0, 0), holder="me")
    assert isinstance(work, Work)
    payloads.threads.clear()
    return execution, work


def test_a_small_result_is_packed_by_whoever_takes_the_outcome() -> None:
    payloads = Payloads()
    assert isinstance(answered(*echoing("word", payloads)), Value)
    assert payloads.threads == [threading.get_ident()]


def test_a_large_result_is_packed_in_a_thread_of_its_own() -> None:
    payloads = Payloads()
    outcome = answered(*echoing(LARGE, payloads))
    assert isinstance(outcome, Value)
    assert msgspec.msgpack.decode(outcome.envelope) == LARGE
    (thread,) = payloads.threads
    assert thread != threading.get_ident()


def test_a_large_result_that_cannot_be_stored_is_told_by_whoever_takes_the_outcome() -> None:
    payloads = Payloads()
    execution, work = echoing(LARGE, payloads)
    payloads.refuses = 1
    assert isinstance(answered(execution, work), Value)
    assert payloads.threads[-1] == threading.get_ident()
    assert len(payloads.threads) == 2


@pytest.mark.parametrize(
    ("value", "small"),
    [
        (None, True),
        ("x" * 9, True),
        ("x" * 10, False),
        (b"x" * 10, False),
        ([1] * 3, True),
        ([1] * 10, False),
        ([["xxxx"], "xxx"], False),
        ({"a": {"b": 1}}, True),
        ({"a": {"b": "xxxxxx"}}, False),
    ],
)
def test_small_is_what_has_few_parts_and_characters(value: Any, small: bool) -> None:
    assert is_small(value, most=9) is small


def test_a_mailbox_keeps_what_was_loaded_for_it_while_others_load_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inputs, "VALUES_KEPT", 0)
    nodes = {
        "mark": {"tool": f"{TOOLS}.run_tools:echo", "with": {"value": ";"}},
        "other": {"tool": f"{TOOLS}.run_tools:echo", "with": {"value": 1}},
        "numbers": {"tool": f"{TOOLS}.stream_tools:numbers", "with": {"n": 3}},
        "spelled": {
            "tool": f"{TOOLS}.stream_tools:spelled",
            "with": {"values": "${numbers}", "mark": "${mark}"},
            "edges": {"numbers": "stream"},
        },
        "both": {"tool": f"{TOOLS}.run_tools:echo", "with": {"value": ["${other}", "${spelled}"]}},
    }
    execution = execution_of(nodes, "both", Payloads(), mark=";", other=1)
    _, other, numbers, spelled, _ = (number_of(execution.plan, name) for name in nodes)
    box = execution.prepare(Claim(f"{spelled}.m", 1, 0, 0), holder="me")
    assert isinstance(box, Work)
    execution.inputs.load([other])
    arguments, _ = execution.inputs.given(box.node, None, {**box.early, numbers: [7]})
    assert arguments == {"values": [7], "mark": ";"}


def test_producers_that_wait_for_readers_keep_nobody_from_the_threads_of_the_loop() -> None:
    goes_on, waiting = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        waiting.release()
        assert goes_on.wait(30)

    async def items() -> Any:
        yield "item"

    publication: Any = SimpleNamespace(items=lambda _: None, is_ahead=True, wait_for_readers=wait)
    tool = SimpleNamespace(function=items, typed=lambda arguments: arguments)
    work: Any = SimpleNamespace(node=SimpleNamespace(tool=tool), arguments={})
    execution = execution_of(
        {"a": {"tool": f"{TOOLS}.cli_tools:letters", "with": {"count": 1}}}, "a", Payloads()
    )

    async def scenario() -> list[Any]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        producers = [asyncio.create_task(execution._await_tool(work, publication)) for _ in range(6)]
        try:
            for _ in producers:
                async with asyncio.timeout(30):
                    await asyncio.to_thread(waiting.acquire)  # needs a thread while they wait
        finally:
            goes_on.set()
        return await asyncio.gather(*producers)

    assert asyncio.run(scenario()) == [["item"]] * 6
