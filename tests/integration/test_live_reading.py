"""What a node puts out is read while it runs: on a real server, with real workers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from json_worker import COMMAND
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from typer.testing import CliRunner

from mosaic_queues import following
from mosaic_queues.connection import connect, urls_of
from mosaic_queues.errors import InputError, WaitTimeout
from mosaic_queues.following import Following
from mosaic_queues.keys import Keys
from mosaic_queues.server import EmbeddedServer
from mosaic_queues.settings import settings
from mosaic_tasks import Run, StreamEvent, Workflow, submit
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.execution.process import close_all
from mosaic_tasks.inspection.reading import AsyncReading
from tests.integration import stream_tools as tools
from tests.services import Workers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
TOOLS = "tests.integration.stream_tools"
READ_S = 30


@pytest.fixture
def worker(workers: Workers) -> Workers:
    workers.start("mosaic_tasks.app", ["mosaic.cpu"], pool="threads", concurrency=6).wait_ready()
    return workers


def run(nodes: dict[str, Any], output: str) -> Run:
    return submit(Workflow.from_data({"name": "live", "nodes": nodes, "output": output}))


def tool(name: str, **options: Any) -> dict[str, Any]:
    arguments = options.pop("with_", {})
    return {"tool": f"{TOOLS}:{name}", "with": arguments, **options}


def gated(n: int = 4, gate_at: int = 2, **options: Any) -> dict[str, Any]:
    return {"numbers": tool("gated_numbers", with_={"n": n, "gate_at": gate_at}, **options)}


def numbers(n: int = 5) -> dict[str, Any]:
    return {"numbers": tool("numbers", with_={"n": n})}


def content(events: Iterable[StreamEvent]) -> list[Any]:
    """The items that the events make."""
    items: dict[int, Any] = {}
    for event in events:
        if event.kind == "retract":
            items = {place: item for place, item in items.items() if place < event.offset}
        elif event.kind == "items":
            items |= dict(enumerate(event.value, event.offset))
    return [items[place] for place in sorted(items)]


def heard_until(events: Iterator[StreamEvent], items: list[Any]) -> list[StreamEvent]:
    """The events up to where they make these items."""
    seen = [next(events)]
    while content(seen) != items:
        seen.append(next(events))
    return seen


def in_thread(what: Callable[[], Any]) -> Callable[[], Any]:
    """Runs something beside the test; the answer is had by calling what this returns."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(what()))
    thread.start()

    def answer() -> Any:
        thread.join(READ_S)
        return answers[0]

    return answer


def test_items_come_while_their_node_runs(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(), "numbers")
    with started.stream() as events:
        seen = heard_until(events, [0, 1])
        assert started.record().status == "running"
        tools.open_gate(redis_client, "more")
        seen += events
    assert content(seen) == [0, 1, 2, 3]
    assert (seen[-1].kind, seen[-1].offset, seen[-1].node) == ("end", 4, "numbers")


def test_text_comes_in_order(worker: Workers) -> None:
    nodes = {**numbers(50), "spelled": tool("spelled", with_={"values": "${numbers}"})}
    nodes["spelled"]["edges"] = {"numbers": "stream"}
    started = run(nodes, "spelled")
    events = list(started.stream())
    texts = [event for event in events if event.kind == "text"]
    assert "".join(event.value for event in texts) == started.result(READ_S)
    offsets = [event.offset for event in texts]
    assert offsets == sorted(offsets)
    assert events[-1].offset == len(started.result(READ_S))


def listed(*items: Any) -> dict[str, Any]:
    return {"list": tool("told", with_={"x": list(items)})}


def doubled(source: str, **options: Any) -> dict[str, Any]:
    return {"x": tool("double", for_each=f"${{{source}}}", with_={"x": "${item}"}, **options)}


SUMMED = {"y": tool("total", with_={"values": "${x}"}, edges={"x": "stream"})}
FORMS: dict[str, dict[str, Any]] = {
    "generator": {"x": numbers()["numbers"]},
    "empty generator": {"x": numbers(0)["numbers"]},
    "fan-out that grows": numbers() | doubled("numbers"),
    "fan-out": listed(*range(5)) | doubled("list"),
    "fan-out that is read": numbers() | doubled("numbers") | SUMMED,
    "empty fan-out": listed() | doubled("list"),
    "skipped fan-out": listed(1) | doubled("list", when="false"),
    "value": {"x": tool("told", with_={"x": {"a": 1}})},
    "list": {"x": tool("told", with_={"x": [1, 2]})},
    "text": {"x": tool("told", with_={"x": "text"})},
    "skipped": {"x": tool("numbers", with_={"n": 3}, when="false")},
}
"""Each has a node `x`; the last is the output."""


def run_of(form: str) -> Run:
    return run(FORMS[form], list(FORMS[form])[-1])


def test_who_goes_on_behind_any_event_gets_the_rest_exactly(worker: Workers) -> None:
    for form in FORMS:
        started = run_of(form)
        live = list(started.stream("x"))
        started.wait(READ_S)
        assert list(started.stream("x")) == live, f"{form}: a late reader gets the same"
        for place, event in enumerate(live, 1):
            assert list(started.stream("x", after=event.id)) == live[place:], form
        assert len({event.id for event in live}) == len(live), form
        assert [event.kind for event in live].count("end") == 1 == int(live[-1].kind == "end"), form


MADE: dict[str, list[tuple[str, Any]]] = {
    "value": [("value", {"a": 1}), ("end", None)],
    "list": [("items", [1, 2]), ("end", None)],
    "text": [("text", "text"), ("end", None)],
    "skipped": [("end", None)],
    "empty generator": [("end", None)],
    "skipped fan-out": [("end", None)],
    "empty fan-out": [("end", None)],
}


def test_the_events_of_each_form_make_its_output(worker: Workers) -> None:
    found = {form: list(run_of(form).stream("x")) for form in FORMS}
    assert content(found["generator"]) == [0, 1, 2, 3, 4]
    for form in ("fan-out", "fan-out that grows", "fan-out that is read"):
        assert content(found[form]) == [0, 2, 4, 6, 8]
    assert {form: [(event.kind, event.value) for event in found[form]] for form in MADE} == MADE


def test_items_of_a_fan_out_come_as_they_are_done(worker: Workers, redis_client: Redis) -> None:
    nodes = gated()
    nodes["doubled"] = tool("double", for_each="${numbers}", with_={"x": "${item}"})
    started = run(nodes, "doubled")
    with started.stream() as events:
        first = [next(events), next(events)]
        tools.open_gate(redis_client, "more")
        rest = list(events)
    assert content(first) == [0, 2]
    assert content(first + rest) == [0, 2, 4, 6]
    assert rest[-1].offset == 4


def test_a_plain_node_is_awaited(worker: Workers, redis_client: Redis) -> None:
    nodes = {**gated(), "both": tool("both", with_={"a": 1, "b": "${numbers}"})}
    reading = run(nodes, "both").stream()
    answer = in_thread(lambda: list(reading))
    tools.open_gate(redis_client, "more")
    assert [event.kind for event in answer()] == ["items", "end"]


def test_a_node_that_closed_without_a_stream_is_over_before_its_run(
    worker: Workers, redis_client: Redis
) -> None:
    nodes = {**gated(), "x": tool("numbers", with_={"n": 3}, when="false", after=["first"])}
    nodes["first"] = tool("told", with_={"x": 1})
    nodes["both"] = tool("both", with_={"a": "${numbers}", "b": "${x}"})
    started = run(nodes, "both")
    skipped = next(event for event in started.events(follow=True) if event.kind == "skipped")
    assert started.plan().nodes[int(skipped.calls[0])].name == "x"
    assert [event.kind for event in started.stream("x")] == ["end"]
    assert started.record().status == "running"
    tools.open_gate(redis_client, "more")
    started.wait(READ_S)


def test_a_run_that_fails_ends_its_readers(worker: Workers, redis_client: Redis) -> None:
    nodes = {
        **gated(),
        "bad": tool("third_batch_fails_once", with_={"values": "${numbers}"}, batch={"max_items": 1}),
        "last": tool("both", with_={"a": "${bad}", "b": 1}),
    }
    nodes["bad"]["edges"] = {"numbers": "stream"}
    started = run(nodes, "last")
    readers = [in_thread(lambda node=node: list(started.stream(node))) for node in ("bad", "last")]
    tools.open_gate(redis_client, "more")
    bad, last = (reader() for reader in readers)
    assert (content(bad), last) == ([0, 1], [])
    assert started.record().status == "failed"
    assert list(started.stream("last")) == []


def test_a_run_that_is_cancelled_ends_its_readers(worker: Workers, redis_client: Redis) -> None:
    nodes = gated()
    nodes["doubled"] = tool("double", for_each="${numbers}", with_={"x": "${item}"})
    nodes["both"] = tool("both", with_={"a": "${doubled}", "b": 1})
    started = run(nodes, "both")
    readings = [started.stream(node) for node in ("numbers", "doubled", "both")]
    seen = [next(readings[0]), next(readings[1])]
    answers = [in_thread(lambda reading=reading: list(reading)) for reading in readings]
    started.cancel()
    assert [event.kind for answer in answers for event in answer() if event.kind == "end"] == []
    assert [event.kind for event in seen] == ["items", "items"]
    tools.open_gate(redis_client, "more")


def test_what_is_there_now_is_read_without_waiting(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(), "numbers")
    with started.stream() as live:
        first = next(live)
    now = list(started.stream(follow=False))
    assert now[0] == first
    assert now[-1].kind == "items"
    tools.open_gate(redis_client, "more")
    started.wait(READ_S)


def test_a_reader_in_a_thread_can_be_stopped(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(), "numbers")
    reading, met = started.stream(), threading.Event()

    def read() -> list[StreamEvent]:
        seen = []
        for event in reading:
            seen.append(event)
            met.set()
        return seen

    answer = in_thread(read)
    assert met.wait(READ_S)
    reading.close()
    assert content(answer())[:1] == [0]
    tools.open_gate(redis_client, "more")
    started.wait(READ_S)


def test_closing_the_process_ends_its_readers(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(), "numbers")
    reading = started.stream()
    next(reading)

    def read() -> bool:
        with pytest.raises(RedisConnectionError, match="this process closed"):
            list(reading)
        return True

    answer = in_thread(read)
    await_blocked(redis_client)
    close_all()
    assert answer()
    assert not hub_threads()
    tools.open_gate(redis_client, "more")


def hub_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mosaic-hub"]


def test_what_cannot_be_read_is_told(worker: Workers) -> None:
    started = run(numbers(), "numbers")
    with pytest.raises(InputError, match=r"no node 'nubmers'; did you mean 'numbers'\?"):
        started.stream("nubmers")
    with pytest.raises(InputError, match="'yesterday' is no id"):
        started.stream(after="yesterday")
    started.wait(READ_S)


def test_what_is_taken_back_is_seen(worker: Workers, redis_client: Redis) -> None:
    nodes = {"x": tool("changes_its_mind", retry={"attempts": 2, "delay": 0.01})}
    started = run(nodes, "x")
    with started.stream() as reading:
        events = heard_until(reading, [0, 10])
        tools.open_gate(redis_client, "heard")
        events += reading
    assert [event.offset for event in events if event.kind == "retract"] == [1]
    assert content(events) == started.result(READ_S) == [0, 20, 30]


MIND = {
    "x": tool("changes_its_mind", retry={"attempts": 2, "delay": 0.01}),
    "text": tool("spelled", with_={"values": "${x}"}, edges={"x": "stream"}),
}
"""It says `0,10,` until the gate `heard` opens, and then `0,20,30,(3)`."""


def heard_first(events: Iterator[StreamEvent]) -> list[StreamEvent]:
    """The events up to what is taken back later."""
    seen = [next(events)]
    while "".join(event.value for event in seen) != "0,10,":
        seen.append(next(events))
    return seen


def test_who_comes_late_is_told_what_stands_and_who_goes_on_what_is_taken_back(
    worker: Workers, redis_client: Redis
) -> None:
    started = run(MIND, "text")
    with started.stream() as live:
        seen = heard_first(live)
        tools.open_gate(redis_client, "heard")
        assert [event.offset for event in live if event.kind == "retract"] == [2]
    started.wait(READ_S)
    late = list(started.stream())
    assert [event.kind for event in late if event.kind != "text"] == ["end"]
    assert "".join(event.value for event in late[:-1]) == started.result() == "0,20,30,(3)"
    for place, event in enumerate(late, 1):
        assert list(started.stream(after=event.id)) == late[place:]
    rest = list(started.stream(after=seen[-1].id))
    assert (rest[0].kind, rest[0].offset) == ("retract", 2)
    assert "".join(event.value for event in rest[1:-1]) == "20,30,(3)"


# -- patience -------------------------------------------------------------------------------------------------------


def test_a_reader_that_has_waited_long_enough_is_told(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(), "numbers")
    with started.stream() as live:
        seen = heard_until(live, [0, 1])
    with pytest.raises(WaitTimeout, match=rf"node 'numbers' of run {started.id} .* 0.05 s; the run goes on"):
        list(started.stream("numbers", timeout_s=0.05))

    async def read() -> list[StreamEvent]:
        return [event async for event in started.astream(timeout_s=0.05)]

    with pytest.raises(WaitTimeout, match=r"the output node .* 0.05 s"):
        asyncio.run(read())
    assert not hub_threads()
    tools.open_gate(redis_client, "more")
    assert content([*seen, *started.stream(after=seen[-1].id)]) == [0, 1, 2, 3]


def test_a_node_that_goes_on_talking_does_not_keep_its_reader(worker: Workers) -> None:
    started = run({"x": tool("endless")}, "x")
    with pytest.raises(WaitTimeout):
        list(started.stream(timeout_s=0.2))
    started.cancel()


def test_what_is_there_is_given_however_short_the_time(worker: Workers) -> None:
    for form in FORMS:
        started = run_of(form)
        started.wait(READ_S)
        assert list(started.stream("x", timeout_s=0)) == list(started.stream("x")), form


def test_patience_is_not_asked_for_what_comes_in_time(worker: Workers) -> None:
    assert content(run(numbers(), "numbers").stream(timeout_s=READ_S)) == [0, 1, 2, 3, 4]

    async def read() -> list[StreamEvent]:
        return [event async for event in run(numbers(), "numbers").astream(timeout_s=READ_S)]

    assert content(asyncio.run(read())) == [0, 1, 2, 3, 4]


def test_a_node_that_ran_again_is_read_to_its_last_end(worker: Workers) -> None:
    nodes = {**numbers(3), "x": tool("double", for_each="${numbers}", with_={"x": "${item}"})}
    started = run(nodes, "x")
    before = {node: list(started.stream(node)) for node in ("numbers", "x")}
    started.wait(READ_S)
    started.rerun("numbers")
    for node, seen in before.items():
        rest = list(started.stream(node, after=seen[-1].id))
        assert rest[0].kind == "retract"
        assert content(seen + rest) == content(seen)
        again = list(started.stream(node))
        assert [event.kind for event in again].count("end") == 1
        assert content(again) == content(seen)
    started.wait(READ_S)


# -- many readers ---------------------------------------------------------------------------------------------------


def test_many_async_readers_share_one_connection(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(40, 20), "numbers")

    async def read_all() -> list[list[StreamEvent]]:
        readings = [started.astream() for _ in range(200)]
        firsts = [await anext(reading) for reading in readings]
        waiting = [asyncio.ensure_future(collect(reading)) for reading in readings]
        await asyncio.to_thread(await_blocked, redis_client)
        assert sum(thread.name == "mosaic-hub" for thread in threading.enumerate()) == 1
        # The hub, and the worker's own, which hears what does not count any more.
        assert blocked(redis_client) <= 2
        await asyncio.to_thread(tools.open_gate, redis_client, "more")
        rest = await asyncio.gather(*waiting)
        return [[first, *more] for first, more in zip(firsts, rest, strict=True)]

    async def collect(reading: Any) -> list[StreamEvent]:
        return [event async for event in reading]

    found = asyncio.run(read_all())
    assert all(events == found[0] for events in found)
    assert content(found[0]) == list(range(40))


def blocked(client: Redis) -> int:
    """Connections that block on streams; those of workers block on lists."""
    return sum(each["cmd"] == "xread" and "b" in each["flags"] for each in client.client_list())


def await_blocked(client: Redis) -> None:
    while not blocked(client):
        threading.Event().wait(0.001)


def test_an_async_reader_that_is_cancelled_loses_nothing(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(), "numbers")

    async def read() -> list[StreamEvent]:
        async with started.astream() as events:
            seen: list[StreamEvent] = []
            for _ in range(20):
                task = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0)
                task.cancel()
                seen += [
                    each for each in await asyncio.gather(task, return_exceptions=True) if is_event(each)
                ]
            await asyncio.to_thread(tools.open_gate, redis_client, "more")
            return seen + [event async for event in events]

    seen = asyncio.run(read())
    assert content(seen) == [0, 1, 2, 3]
    assert len(set(map(id_of, seen))) == len(seen)


def test_an_async_reader_asks_the_server_once_and_then_hears(
    worker: Workers, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, trips = run(gated(), "numbers"), list[None]()
    step = AsyncReading._step_there

    async def counted(self: AsyncReading[Any]) -> None:
        trips.append(None)
        await step(self)

    async def read() -> list[StreamEvent]:
        async with started.astream(timeout_s=READ_S) as events:
            seen = [await anext(events)]
            await asyncio.to_thread(tools.open_gate, redis_client, "more")
            return seen + [event async for event in events]

    monkeypatch.setattr(AsyncReading, "_step_there", counted)
    assert content(asyncio.run(read())) == [0, 1, 2, 3]
    assert len(trips) == 1


def id_of(event: StreamEvent) -> str:
    return event.id


def is_event(what: Any) -> bool:
    return isinstance(what, StreamEvent)


# -- the hub, on the server alone -------------------------------------------------------------------------------------


@pytest.fixture
def stream(redis_client: Redis) -> Iterator[str]:
    name = f"test:{uuid.uuid4().hex}"
    yield name
    redis_client.delete(name)


class Reader:
    """Reads a stream in its own time."""

    def __init__(self, client: Redis, stream: str) -> None:
        self.bell, self.seen = threading.Event(), list[bytes]()
        self.following = Following(client, Keys("mosaic"), {stream: "0-0"}, ring=self.bell.set)

    def take(self) -> int:
        self.bell.clear()
        entries = [entry for found in self.following.take().values() for entry in found]
        self.seen += [fields[b"n"] for _, fields in entries]
        return len(entries)

    def read_to(self, size: int) -> None:
        while len(self.seen) < size:
            if not self.take():
                assert self.bell.wait(READ_S)


def add(client: Redis, stream: str, *numbers: int) -> None:
    with client.pipeline(transaction=False) as pipe:
        for number in numbers:
            pipe.xadd(stream, {"n": number})
        pipe.execute()


def expected(size: int) -> list[bytes]:
    return [str(number).encode() for number in range(size)]


def test_readers_of_different_speed_lose_nothing(redis_client: Redis, redis_url: str, stream: str) -> None:
    size = 3 * following.TAIL
    with connect(redis_url) as client:
        slow, fast, late = (Reader(client, stream) for _ in range(3))
        add(redis_client, stream, 0)
        slow.read_to(1)
        assert slow.take() == 0, "it follows now"
        for number in range(1, size):
            add(redis_client, stream, number)
            if number % 100 == 0:
                fast.read_to(number + 1)
        for reader in (late, slow, fast):
            reader.read_to(size)
        for reader in (late, slow, fast):
            reader.following.leave()
        assert slow.seen == fast.seen == late.seen == expected(size)


def test_more_streams_are_followed_at_once(
    redis_client: Redis, redis_url: str, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "BLOCK_S", 1.5 * READ_S)  # nobody is saved by the hub's own next look
    with connect(redis_url) as client:
        one, other = Reader(client, stream), Reader(client, f"{stream}:other")
        assert one.take() == other.take() == 0, "both follow now"
        add(redis_client, f"{stream}:other", 0)
        other.read_to(1)
        add(redis_client, stream, 0)
        one.read_to(1)
        one.following.leave()
        add(redis_client, f"{stream}:other", 1)
        other.read_to(2)
        other.following.leave()
        assert not hub_threads()
    redis_client.delete(f"{stream}:other")


def test_readers_go_on_after_the_server_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer(tmp_path / "own") as server, connect(server.redis_url) as client:
        monkeypatch.setenv("MOSAIC_REDIS_URL", server.redis_url)
        settings.cache_clear()
        close_all()
        with Workers(urls_of(server.redis_url), tmp_path) as workers:
            workers.start("mosaic_tasks.app", ["mosaic.cpu"]).wait_ready()
            started = run(gated(retry={"attempts": 3, "delay": 0.01}), "numbers")
            with started.stream() as events:
                seen = [next(events)]
                answer = in_thread(lambda: list(events))
                await_blocked(client)
                psutil.Process(client.info("server")["process_id"]).kill()
                tools.open_gate(client, "more", times=2)
                rest = answer()
            assert content(seen + rest) == [0, 1, 2, 3]
            assert rest[-1].kind == "end"
            started.wait(READ_S)
        close_all()
        server.stop(wait_s=15)


# -- the command ------------------------------------------------------------------------------------------------------


def mosaic(*arguments: str) -> Any:
    return CliRunner().invoke(application, list(arguments), catch_exceptions=False)


def test_the_command_prints_what_comes(worker: Workers) -> None:
    nodes = {**numbers(3), "spelled": tool("spelled", with_={"values": "${numbers}"})}
    nodes["spelled"]["edges"] = {"numbers": "stream"}
    started = run(nodes, "spelled")
    answer = mosaic("stream", started.id)
    assert (answer.exit_code, answer.stdout) == (0, "0,1,2,(3)\n")
    assert mosaic("stream", started.id, "numbers").stdout == "0\n1\n2\n"
    lines = [json.loads(line) for line in mosaic("stream", started.id, "--json").stdout.splitlines()]
    rest = mosaic("stream", started.id, "--json", "--after", lines[0]["id"]).stdout.splitlines()
    assert [json.loads(line) for line in rest] == lines[1:]


def test_the_command_tells_what_is_taken_back_on_stderr(worker: Workers, redis_client: Redis) -> None:
    started = run(MIND, "text")
    with subprocess.Popen(
        [*COMMAND, "stream", started.id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stdout.read(len("0,10,")) == "0,10,"
        tools.open_gate(redis_client, "heard")
        printed, told = command.communicate(timeout=READ_S)
    assert (command.returncode, printed) == (0, "\n20,30,(3)\n")
    assert told == "mosaic: text takes back what it said from 2 on\n"


def test_the_command_prints_of_a_run_that_is_over_its_text_alone(
    worker: Workers, redis_client: Redis
) -> None:
    started = run(MIND, "text")
    with started.stream() as events:
        heard_first(events)
        tools.open_gate(redis_client, "heard")
        started.wait(READ_S)
    answer = mosaic("stream", started.id)
    assert (answer.stdout, answer.stderr) == (f"{started.result()}\n", "")
    assert mosaic("stream", started.id, "x").stdout == "0\n20\n30\n"
    lines = [json.loads(line) for line in mosaic("stream", started.id, "--json").stdout.splitlines()]
    assert {line["kind"] for line in lines} == {"text", "end"}


def test_the_command_waits_no_longer_than_it_is_told(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(), "numbers")
    with started.stream() as events:
        heard_until(events, [0, 1])
        answer = mosaic("stream", started.id, "--timeout", "0")
        assert (answer.exit_code, answer.stdout) == (ExitCode.TIMEOUT, "0\n1\n")
        assert "the run goes on" in answer.stderr
        tools.open_gate(redis_client, "more")
    assert started.wait(READ_S).status == "done"


def test_the_command_tells_an_error_as_one_line_of_json(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(), "numbers")
    with started.stream() as events:
        heard_until(events, [0, 1])
        for arguments, kind in (
            ((started.id, "--timeout", "0"), "WaitTimeout"),
            (("unknown",), "UnknownRun"),
            ((started.id, "nubmers"), "InputError"),
        ):
            *_, last = mosaic("stream", *arguments, "--json").stdout.splitlines()
            assert json.loads(last)["error"]["type"] == kind
        tools.open_gate(redis_client, "more")
    started.wait(READ_S)


def test_the_command_says_at_once_that_nobody_serves_the_run(redis_client: Redis) -> None:
    started = run(numbers(3), "numbers")
    answer = in_thread(lambda: mosaic("stream", started.id))
    await_blocked(redis_client)
    started.cancel()
    assert f"no worker serves the queue 'mosaic.cpu', so run {started.id} waits" in answer().stderr


def test_the_command_ends_as_the_run_does(worker: Workers, redis_client: Redis) -> None:
    started = run(gated(), "numbers")
    assert mosaic("stream", started.id, "nubmers").exit_code == ExitCode.USAGE
    started.cancel("enough")
    answer = mosaic("stream", started.id)
    assert (answer.exit_code, "enough" in answer.stderr) == (ExitCode.CANCELLED, True)
    tools.open_gate(redis_client, "more")
    failed = mosaic("stream", run({"x": tool("fails")}, "x").id)
    assert (failed.exit_code, "no such luck" in failed.stderr) == (ExitCode.FAILED, True)
    assert mosaic("stream", "unknown").exit_code == ExitCode.UNKNOWN_RUN
