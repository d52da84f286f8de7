"""An answer as it is sent, of a run that is made up: who is told what, and when the run is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from starlette.types import Message

from mosaic_queues.events import Event
from mosaic_tasks import Run
from mosaic_tasks.gateway.completions.answering import Answering, Patience
from mosaic_tasks.gateway.completions.models import Model
from mosaic_tasks.gateway.completions.replies import Envelope
from mosaic_tasks.gateway.readers import Readers
from mosaic_tasks.inspection.parts import StreamEvent

LONG_S = 60.0
FOR_EVER: list[Any] = []


class Reading:
    """Gives some batches, and then waits for ever where the last one is `FOR_EVER`."""

    def __init__(self, batches: Sequence[list[Any]]) -> None:
        self._batches = list(batches)

    async def several(self) -> list[Any]:
        if self._batches[:1] == [FOR_EVER]:
            await asyncio.Event().wait()
        return self._batches.pop(0) if self._batches else []

    def __aiter__(self) -> Reading:
        return self

    async def __anext__(self) -> Any:
        for each in await self.several():
            return each
        raise StopAsyncIteration

    async def __aenter__(self) -> Reading:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass


class MadeRun:
    """Says some texts one by one, and then is done."""

    id = "run"

    def __init__(
        self,
        *said: list[Any] | str,
        error: Exception | None = None,
        unserved: Sequence[str] = (),
        statuses: Sequence[str] = ("done",),
    ) -> None:
        pieces, place = [], 0
        for each in said:
            pieces.append([StreamEvent("1-1", "a", "text", place, each)] if isinstance(each, str) else each)
            place += len(each)
        self._pieces, self._error, self._unserved = pieces, error, unserved
        self._statuses = list(statuses)
        self._text = "".join(each for each in said if isinstance(each, str))
        self.is_cancelled, self.looks = False, 0

    def astream(self) -> Reading:
        return Reading(self._pieces)

    def aevents(self) -> Reading:
        return Reading([[Event("1-1/0", 1, "usage", ("0",), tokens=(1, 2), finish="stop")]])

    def record(self) -> Any:
        if self._error is not None:
            raise self._error
        return SimpleNamespace(status=self._statuses.pop(0), error="")

    def output(self) -> str:
        return self._text

    def plan(self) -> Any:
        return SimpleNamespace(output=0)

    def unserved_queues(self) -> list[str]:
        self.looks += 1
        return list(self._unserved)

    def cancel(self, _reason: str) -> bool:
        self.is_cancelled = True
        return True


class Client:
    """What a client was sent.

    Args:
        takes: so many messages; then it is asleep.
        leaves: when this is set.
    """

    def __init__(self, *, takes: int = 1_000) -> None:
        self.messages: list[Message] = []
        self.has_left = asyncio.Event()
        self._takes = takes

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)
        if len(self.messages) == self._takes:
            await asyncio.Event().wait()
        self.messages.append(message)

    async def receive(self) -> Message:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def body(self) -> str:
        return b"".join(message.get("body", b"") for message in self.messages).decode()


class SlowBeginning(Client):
    """Takes the head once somebody else had something to say, and some time to say it."""

    def __init__(self, run: MadeRun) -> None:
        super().__init__()
        self._run = run

    async def send(self, message: Message) -> None:
        while message["type"] == "http.response.start" and self._run.looks < 1:
            await asyncio.sleep(0.001)
        for _ in range(10):
            await asyncio.sleep(0.001)
        await super().send(message)


def answering(
    run: MadeRun, readers: Readers, *, is_kept: bool = False, streams: bool = True, **patience: float
) -> Answering:
    waits = Patience(**{"silence_s": LONG_S, "send_s": LONG_S, **patience})
    model = Model(cast(Any, None), "question", False, True, {})
    envelope = Envelope("run", "model", 1)
    return Answering(
        cast(Run, run), model, envelope, readers, streams=streams, is_kept=is_kept, patience=waits
    )


def answer(
    run: MadeRun, client: Client, readers: Readers | None = None, **options: Any
) -> asyncio.Task[None]:
    response = answering(run, Readers() if readers is None else readers, **options)
    return asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))


@pytest.mark.parametrize("streams", [True, False])
def test_an_answer_is_told_to_its_end_and_its_run_is_left_alone(streams: bool) -> None:
    async def main() -> None:
        run, client, readers = MadeRun("Hel", "lo"), Client(), Readers()
        await answer(run, client, readers, streams=streams)
        assert client.status == 200
        assert ("data: [DONE]" in client.body) is streams
        assert ('"content":"Hello"' in client.body) is not streams
        assert not run.is_cancelled
        assert len(readers) == 0

    asyncio.run(main())


@pytest.mark.parametrize("streams", [True, False])
def test_a_run_that_runs_again_as_it_ends_is_waited_for(streams: bool) -> None:
    async def main() -> None:
        run, client = MadeRun("Hello", statuses=["running", "running", "done"]), Client()
        await answer(run, client, streams=streams)
        assert '"content":"Hello"' in client.body
        assert "answer_changed" not in client.body

    asyncio.run(main())


@pytest.mark.parametrize("is_kept", [True, False])
def test_who_falls_asleep_is_dropped(is_kept: bool) -> None:
    async def main() -> None:
        run, client = MadeRun("Hel", "lo"), Client(takes=2)
        await answer(run, client, is_kept=is_kept, send_s=0.01)
        assert len(client.messages) == 2
        assert run.is_cancelled is not is_kept

    asyncio.run(main())


@pytest.mark.parametrize("is_kept", [True, False])
def test_who_leaves_ends_the_run_unless_it_is_kept(is_kept: bool) -> None:
    async def main() -> None:
        run, client = MadeRun("Hel", FOR_EVER), Client()
        told = answer(run, client, is_kept=is_kept)
        client.has_left.set()
        await told
        assert run.is_cancelled is not is_kept

    asyncio.run(main())


def test_a_gateway_that_stops_says_so_before_and_after_the_first_word() -> None:
    async def main() -> None:
        for said in (["Hel", FOR_EVER], [FOR_EVER]):
            run, client, readers = MadeRun(*said), Client(), Readers()
            told = answer(run, client, readers)
            while len(readers) == 0 or len(client.messages) < 2 * (len(said) - 1):
                await asyncio.sleep(0)
            readers.stop()
            await told
            assert "the gateway stops" in client.body
            assert client.status == (200 if len(said) > 1 else 503)
            assert run.is_cancelled

    asyncio.run(main())


def test_silence_is_filled_with_comments_and_ends_where_nobody_serves() -> None:
    async def main() -> None:
        served, client = MadeRun(FOR_EVER), Client()
        told = answer(served, client, silence_s=0.001)
        while client.body.count(": here") < 3:
            await asyncio.sleep(0.001)
        client.has_left.set()
        await told
        assert client.body.startswith('data: {"id":"run"')
        unserved, other = MadeRun(FOR_EVER, unserved=["mosaic.cpu"]), Client()
        await answer(unserved, other, silence_s=0.001)
        assert "no worker serves" in other.body
        assert "mosaic.cpu" not in other.body

    asyncio.run(main())


def test_a_server_that_is_away_is_told_without_its_words() -> None:
    async def main() -> None:
        for streams in (True, False):
            run, client = MadeRun("Hel", error=RedisConnectionError("redis://secret@10.0.0.1")), Client()
            await answer(run, client, streams=streams)
            assert client.status == (200 if streams else 503)
            assert "secret" not in client.body
            assert '"code":"service_unavailable"' in client.body

    asyncio.run(main())


def test_comments_and_words_at_the_same_time_keep_behind_the_head() -> None:
    async def main() -> None:
        run = MadeRun("Hel", "lo")
        client = SlowBeginning(run)
        await answer(run, client, silence_s=0.001)
        kinds = [message["type"] for message in client.messages]
        assert kinds == ["http.response.start", *["http.response.body"] * (len(kinds) - 1)]
        assert [message.get("more_body") for message in client.messages[1:]].count(False) == 1
        assert client.body.startswith('data: {"id":"run"')

    asyncio.run(main())
