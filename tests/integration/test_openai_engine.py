"""The openai engine against a real HTTP server on this machine that speaks its API, well and badly."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import msgspec
import openai_server as http
import pytest

from mosaic_queues.errors import (
    CallTimeout,
    ConfigurationError,
    ContentRefused,
    ContextTooLong,
    EngineError,
    EngineOverloaded,
    EngineRefused,
)
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.engines.endpoints import Timeouts
from mosaic_tasks.engines.openai import OpenAIEngine, RetryPolicy
from mosaic_tasks.engines.prices import PriceTable, load_prices
from mosaic_tasks.engines.protocol import (
    Completion,
    EngineRequest,
    Finished,
    Message,
    TextDelta,
    Usage,
    complete,
)
from mosaic_tasks.engines.registry import close_engines
from mosaic_tasks.execution.agents import AgentAnswer, run_agent

pytestmark = pytest.mark.integration

KEY = "sk-test-0123456789abcdef"
FAST = RetryPolicy(attempts=3, base_s=0.01, max_s=0.02)
SCHEMA = {
    "type": "object",
    "required": ["count"],
    "additionalProperties": False,
    "properties": {"count": {"type": "integer"}},
}


def request(**options: Any) -> EngineRequest:
    return EngineRequest((Message("user", "hello there"),), **{"model": "m-1", **options})


@asynccontextmanager
async def engine_at(url: str, **options: Any) -> AsyncIterator[OpenAIEngine]:
    engine = OpenAIEngine(base_url=url, **{"api_key": KEY, "retry": FAST, **options})
    try:
        yield engine
    finally:
        await engine.aclose()


def ask(
    *script: http.Reply, options: dict[str, Any] | None = None, **asked: Any
) -> tuple[Completion, http.Server]:
    """The answer to one request of an engine with `options`, at a server with that script."""

    async def main() -> tuple[Completion, http.Server]:
        async with http.serving(*script) as server, engine_at(server.url, **(options or {})) as engine:
            return await complete(engine, request(**asked)), server

    return asyncio.run(main())


def failure(
    kind: type[EngineError] | type[CallTimeout], *script: http.Reply, asks: int, **options: Any
) -> str:
    """The message of the error that a script leads to, after so many requests; it shows no key."""

    async def main() -> http.Server:
        async with (
            http.serving(*script) as server,
            engine_at(server.url, **options.pop("options", {})) as engine,
        ):
            with pytest.raises(kind) as caught:
                await complete(engine, request(**options))
            assert type(caught.value) is kind
            messages.append(str(caught.value))
            assert KEY not in "".join(traceback.format_exception(caught.value))
            return server

    messages: list[str] = []
    assert len(asyncio.run(main()).asked) == asks
    return messages[0]


def test_text_usage_and_the_request_s_options() -> None:
    pieces = ("He", "llo ", "wörld")
    answer, server = ask(http.said(*pieces), temperature=0.5, max_tokens=9, seed=3, stop=("X",))
    assert answer == Completion("Hello wörld", Usage(1000, 200, None), "stop")
    (asked,) = server.asked
    assert asked.headers["authorization"] == f"bearer {KEY}"
    assert asked.body == {
        "model": "m-1",
        "messages": [{"role": "user", "content": "hello there"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 3,
        "stop": ["X"],
    }


def test_the_price_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"m-1": {"input_per_million": 2, "output_per_million": 10}}')
    monkeypatch.setenv("MOSAIC_PRICES", str(prices))
    assert ask(http.said("a"))[0].usage.cost_usd == pytest.approx(0.004)
    assert ask(http.said("a"), model="m-2")[0].usage.cost_usd is None


@pytest.mark.parametrize("text", ['{"m": 1}', "no json", None])
def test_a_wrong_price_table_is_a_configuration_error(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prices.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("MOSAIC_PRICES", str(file))
    with pytest.raises(ConfigurationError, match="MOSAIC_PRICES"):
        load_prices("")


def test_list_prices_come_from_genai_prices_where_installed() -> None:
    pytest.importorskip("genai_prices")
    table = PriceTable(api_url="https://api.openai.com/v1")
    assert (table.cost_usd("gpt-4o-mini", input_tokens=1000, output_tokens=100) or 0) > 0
    assert table.cost_usd("no-such-model", input_tokens=1, output_tokens=1) is None
    assert (
        PriceTable(api_url="http://127.0.0.1:1/v1").cost_usd("gpt-4o", input_tokens=1, output_tokens=1)
        is None
    )


def test_usage_that_the_server_does_not_tell_is_estimated() -> None:
    answer, _ = ask(
        http.streamed(http.delta("four"), http.delta("five"), http.delta(finish="stop"), http.DONE)
    )
    assert answer.usage == Usage(3, 2, None, estimated=True)


@pytest.mark.parametrize(
    "told",
    [
        {"prompt_tokens": 3, "completion_tokens": -1_000_000},
        {"prompt_tokens": 10**30, "completion_tokens": 2},
        {"prompt_tokens": 3, "completion_tokens": 1.5},
        {"prompt_tokens": "3", "completion_tokens": 2},
        {"prompt_tokens": 3, "completion_tokens": True},
        {"prompt_tokens": 3},
        {},
        "3 and 2",
    ],
)
def test_usage_that_is_no_number_of_tokens_counts_as_not_told(told: Any) -> None:
    ended, usage = http.delta(finish="stop"), http.event(choices=[], usage=told)
    answer, _ = ask(http.streamed(http.delta("four"), http.delta("five"), ended, usage, http.DONE))
    assert answer.usage == Usage(3, 2, None, estimated=True)


@pytest.mark.parametrize(("cached", "counted"), [(-1, 0), (1.5, 0), (8, 8), (99, 10), (None, 0)])
def test_no_more_tokens_are_cached_than_were_read(cached: Any, counted: int) -> None:
    told = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    usage = http.event(choices=[], usage=told)
    answer, _ = ask(http.streamed(http.delta("a"), http.delta(finish="stop"), usage, http.DONE))
    assert answer.usage == Usage(10, 2, None, cached_tokens=counted)


@pytest.mark.parametrize(("finish", "reason"), [("length", "length"), ("content_filter", "refused")])
def test_the_reason_of_the_end_is_told(finish: str, reason: str) -> None:
    assert (
        ask(http.streamed(http.delta("a"), http.delta(finish=finish), http.USAGE, http.DONE))[0].finish_reason
        == reason
    )


def test_429_waits_as_long_as_retry_after_says() -> None:
    answer, server = ask(http.refused(429, Retry_After="0.3"), http.said("ok"))
    first, second = server.asked
    assert answer.text == "ok"
    assert 0.3 <= second.at_s - first.at_s < 1.0


def test_retry_after_ms_wins_over_retry_after() -> None:
    answer, server = ask(http.refused(503, Retry_After="30", Retry_After_Ms="200"), http.said("ok"))
    assert answer.text == "ok"
    assert 0.2 <= server.asked[1].at_s - server.asked[0].at_s < 1.0


def test_retry_after_may_be_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    answer, server = ask(http.refused(429, Retry_After=soon), http.said("ok"))
    assert answer.text == "ok"
    assert 0.5 <= server.asked[1].at_s - server.asked[0].at_s < 2.5


def test_a_long_retry_after_ends_the_attempts() -> None:
    message = failure(EngineOverloaded, http.refused(429, "slow down", Retry_After="3600"), asks=1)
    assert "asks to wait 3600 s" in message
    assert "slow down" in message


def test_a_retry_after_beyond_the_deadline_is_not_waited_for() -> None:
    message = failure(CallTimeout, http.refused(429, Retry_After="20"), asks=1, timeout_s=1.0)
    assert "no time for another attempt within 1 s" in message


def test_errors_of_the_server_are_tried_again() -> None:
    answer, server = ask(http.refused(500), http.refused(502), http.said("ok"))
    assert (answer.text, len(server.asked)) == ("ok", 3)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (http.refused(500, "boom"), EngineError),
        (http.refused(408, "boom"), EngineError),
        (http.refused(429, "boom"), EngineOverloaded),
        (http.refused(503, "boom"), EngineOverloaded),
        (http.refused(529, "boom"), EngineOverloaded),
    ],
)
def test_what_goes_on_failing_is_told_after_all_attempts(reply: http.Reply, kind: type[EngineError]) -> None:
    assert "boom" in failure(kind, reply, asks=3)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (http.refused(400, "bad temperature"), EngineRefused),
        (http.refused(401, f"Incorrect API key provided: {KEY}"), EngineRefused),
        (http.refused(403, "Bearer abc.def is not allowed"), EngineRefused),
        (http.refused(404, "The model m-1 does not exist"), EngineRefused),
        (http.refused(429, "no money", code="insufficient_quota"), EngineRefused),
        (http.refused(400, "content", code="content_filter"), ContentRefused),
        (http.refused(400, "long", code="context_length_exceeded"), ContextTooLong),
        (http.refused(400, "This model's maximum context length is 10 tokens"), ContextTooLong),
    ],
)
def test_what_cannot_succeed_is_not_tried_again(reply: http.Reply, kind: type[EngineError]) -> None:
    message = failure(kind, reply, asks=1)
    assert "127.0.0.1" in message
    assert "'m-1'" in message
    assert "abc.def" not in message


def test_a_refused_key_tells_the_provider_s_words_but_not_the_key() -> None:
    message = failure(
        EngineRefused, http.refused(401, f"Incorrect API key provided: {KEY}. Find it."), asks=1
    )
    assert "Incorrect API key provided: ***. Find it." in message
    assert "check OPENAI_API_KEY" in message


def test_a_hang_after_the_headers_ends_with_the_request_s_time() -> None:
    assert "within 0.2 s" in failure(CallTimeout, http.hanging, asks=1, timeout_s=0.2)


def test_a_silent_server_is_tried_again_after_the_read_timeout() -> None:
    message = failure(
        EngineError, http.hanging, asks=3, options={"timeouts": Timeouts(read_s=0.1), "retry": FAST}
    )
    assert "sent nothing within 0.1 s" in message
    assert ask(http.hanging, http.said("ok"), options={"timeouts": Timeouts(read_s=0.1)})[0].text == "ok"


def test_a_stream_that_ends_early_is_an_error_that_may_be_tried_again() -> None:
    message = failure(EngineError, http.streamed(http.delta("half")), asks=1)
    assert "ended before the answer was complete" in message


def test_a_stream_that_ends_before_the_first_token_is_tried_again() -> None:
    answer, server = ask(http.streamed(), http.said("ok"))
    assert (answer.text, len(server.asked)) == ("ok", 2)


def test_a_connection_that_breaks_in_mid_stream_is_an_error() -> None:
    async def breaking(connection: http.Connection) -> None:
        await connection.head(200, content_type="text/event-stream", content_length="10000")
        await connection.send(http.delta("half"))

    assert "failed" in failure(EngineError, breaking, asks=1)


def test_a_reset_connection_is_tried_again() -> None:
    async def resetting(connection: http.Connection) -> None:
        connection.reset()

    assert ask(resetting, http.said("ok"))[0].text == "ok"


BROKEN = {
    "no JSON": b"data: {broken\n\n",
    "text": b"data: I am sorry\n\n",
    "no UTF-8": http.delta("half").replace(b"half", b"\xff\xfe"),
    "half a character": http.delta("half").replace(b"half", "é".encode()[:1]),
    "a surrogate as bytes": http.delta("half").replace(b"half", b"\xed\xa0\x80"),
}
"""Events that cannot be read. None is guessed at: what a model said is told whole, or as an error."""


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_an_event_that_cannot_be_read_is_an_error_at_once(data: bytes) -> None:
    async def talking(connection: http.Connection) -> None:
        await connection.head(200, content_type="text/event-stream")
        await connection.send(http.delta("half"), data)
        await connection.gone()  # it would go on: nobody waits for that

    message = failure(EngineError, talking, asks=1)
    assert "an event that cannot be read" in message
    assert "127.0.0.1" in message


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_an_event_that_cannot_be_read_before_the_first_text_is_tried_again(data: bytes) -> None:
    answer, server = ask(http.streamed(data), http.said("ok"))
    assert (answer.text, len(server.asked)) == ("ok", 2)


SPOKEN = "Zoë zahlt 5 € für 日本 🎉"


@pytest.mark.parametrize("is_chunked", [False, True], ids=["TCP", "HTTP chunks"])
def test_characters_whose_bytes_come_one_by_one_are_whole(is_chunked: bool) -> None:
    """Each byte is a write of its own; as HTTP chunks they are surely read one by one."""
    spoken = {"choices": [{"index": 0, "delta": {"content": SPOKEN}, "finish_reason": None}]}
    body = (
        b"data: "
        + json.dumps(spoken, ensure_ascii=False).encode()
        + b"\n\n"
        + http.delta(finish="stop")
        + http.DONE
    )

    async def stammering(connection: http.Connection) -> None:
        coding = {"transfer_encoding": "chunked"} if is_chunked else {}
        await connection.head(200, content_type="text/event-stream", **coding)
        for byte in body:
            await connection.send(b"1\r\n%c\r\n" % byte if is_chunked else bytes([byte]))
            await asyncio.sleep(0)
        if is_chunked:
            await connection.send(b"0\r\n\r\n")

    assert ask(stammering)[0].text == SPOKEN


def test_a_character_whose_halves_come_in_two_events_is_whole() -> None:
    answer, _ = ask(http.said("a\ud83c", "\udf89", "b \ud83c\udf89", " \ud83c", "", "\udf89"))
    assert answer.text == "a🎉b 🎉 🎉"


@pytest.mark.parametrize(
    "pieces", [("a", "\ud83c", "b"), ("a", "\udf89 b"), ("a", "\ud83c\ud83c"), ("a", "\ud83c")]
)
def test_half_a_character_is_an_error(pieces: tuple[str, ...]) -> None:
    message = failure(EngineError, http.said(*pieces), asks=1)
    assert "holds half a character" in message or "before the answer was complete" in message


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, http.delta("half")),
        ({}, http.delta("half") + http.delta("other")[:-20]),
        ({}, http.delta("half") + b"data: \xe2\x82"),
        ({"transfer_encoding": "chunked"}, b"%x\r\n%b\r\n" % (len(http.delta("half")), http.delta("half"))),
        ({"transfer_encoding": "chunked"}, b"%x\r\n%b" % (len(http.delta("half")) + 100, http.delta("half"))),
        ({"content_length": "10000"}, http.delta("half")),
    ],
    ids=[
        "between events",
        "in an event",
        "in a character",
        "between chunks",
        "in a chunk",
        "before its length",
    ],
)
def test_a_server_that_closes_in_mid_stream_is_an_error(headers: dict[str, str], body: bytes) -> None:
    async def closing(connection: http.Connection) -> None:
        await connection.head(200, content_type="text/event-stream", **headers)
        await connection.send(body)

    assert "127.0.0.1" in failure(EngineError, closing, asks=1)


@pytest.mark.parametrize(
    "data", [b"data: 5\n\n", b"data: {}\n\n", b'data: {"choices": null}\n\n', b": ping\n\n"]
)
def test_events_without_content_are_passed_over(data: bytes) -> None:
    assert (
        ask(http.streamed(data, http.delta("ok"), data, http.delta(finish="stop"), http.DONE))[0].text == "ok"
    )


def test_a_page_of_html_is_no_answer() -> None:
    assert "OpenAI-compatible" in failure(
        EngineError, http.streamed(b"<html>\n<body>hello</body>\n</html>"), asks=3
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("rate_limit_exceeded", EngineOverloaded),
        (None, EngineError),
        ("context_length_exceeded", ContextTooLong),
    ],
)
def test_an_error_inside_the_stream_is_told(code: str | None, kind: type[EngineError]) -> None:
    reply = http.streamed(http.delta("half"), http.event(error={"message": "engine died", "code": code}))
    assert "engine died" in failure(kind, reply, asks=1)


def test_a_model_that_declines_is_a_refusal_with_its_words() -> None:
    reply = http.streamed(http.delta(None, refusal="I will not."), http.delta(finish="stop"), http.DONE)
    assert "I will not." in failure(ContentRefused, reply, asks=1)


def test_nobody_listening_is_an_error_that_names_the_server() -> None:
    async def main() -> str:
        async with http.serving(http.said("")) as server:
            url = server.url
        async with engine_at(url) as engine:
            with pytest.raises(EngineError, match="is it running") as caught:
                await complete(engine, request())
        return str(caught.value)

    assert "127.0.0.1" in asyncio.run(main())


def half_an_answer(left: asyncio.Event) -> http.Reply:
    """Answers without an end; `left` is set when the client has closed the connection."""

    async def endless(connection: http.Connection) -> None:
        await connection.head(200, content_type="text/event-stream")
        await connection.send(http.delta("half"))
        await connection.gone()
        left.set()

    return endless


def test_cancelling_the_task_closes_the_connection() -> None:
    async def main() -> None:
        begun, left = asyncio.Event(), asyncio.Event()

        async with http.serving(half_an_answer(left)) as server, engine_at(server.url) as engine:
            task = asyncio.create_task(complete(engine, request(), on_delta=lambda _: begun.set()))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(left.wait(), 2)

    asyncio.run(main())


def test_closing_the_iterator_closes_the_connection() -> None:
    async def main() -> list[TextDelta | Finished]:
        left = asyncio.Event()

        async with http.serving(half_an_answer(left)) as server, engine_at(server.url) as engine:
            async with aclosing(engine.stream(request())) as events:
                seen = [await anext(events)]
            await asyncio.wait_for(left.wait(), 2)
            return seen

    assert asyncio.run(main()) == [TextDelta("half")]


def test_a_schema_is_sent_as_a_strict_response_format() -> None:
    answer, server = ask(http.said('{"count": 3}'), output_schema={**SCHEMA, "title": "My Count!"})
    assert answer.text == '{"count": 3}'
    described = server.asked[0].body["response_format"]["json_schema"]
    assert (described["name"], described["strict"]) == ("My_Count_", True)
    assert described["schema"]["required"] == ["count"]


@pytest.mark.parametrize(
    "change",
    [
        {"required": []},
        {"additionalProperties": True},
        {"properties": {"count": {"oneOf": [{"type": "integer"}]}}},
        {"properties": {"count": {"type": "array", "items": {"type": "object"}}}},
    ],
)
def test_a_schema_that_strict_mode_does_not_take_is_sent_without(change: dict[str, Any]) -> None:
    _, server = ask(http.said("{}"), output_schema={**SCHEMA, **change})
    assert server.asked[0].body["response_format"]["json_schema"]["strict"] is False


def test_a_server_without_json_schema_gets_json_object_and_the_schema_in_the_prompt() -> None:
    no_schema = http.refused(400, "response_format type json_schema is unavailable")

    async def main() -> list[dict[str, Any]]:
        async with (
            http.serving(no_schema, http.said('{"count": 3}')) as server,
            engine_at(server.url) as engine,
        ):
            for _ in range(2):
                await complete(engine, request(output_schema=SCHEMA))
            return [asked.body for asked in server.asked]

    first, second, third = asyncio.run(main())
    assert first["response_format"]["type"] == "json_schema"
    assert second["response_format"] == {"type": "json_object"}
    assert '"required":["count"]' in second["messages"][0]["content"]
    assert third == second


def test_a_server_without_response_format_gets_the_schema_in_the_prompt_alone() -> None:
    no_format = http.refused(400, "unknown field", param="response_format")
    _, server = ask(no_format, no_format, http.said('{"count": 3}'), output_schema=SCHEMA)
    assert "response_format" not in server.asked[2].body
    assert server.asked[2].body["messages"][0]["role"] == "system"


def test_a_server_that_refuses_every_form_is_not_asked_for_ever() -> None:
    failure(EngineRefused, http.refused(400, "response_format is wrong"), asks=3, output_schema=SCHEMA)


def test_max_completion_tokens_and_stream_options_are_learnt() -> None:
    _, server = ask(
        http.refused(
            400, "Use 'max_completion_tokens' instead.", code="unsupported_parameter", param="max_tokens"
        ),
        http.refused(400, "stream_options is unknown"),
        http.said("ok"),
        max_tokens=5,
    )
    last = server.asked[2].body
    assert last["max_completion_tokens"] == 5
    assert {"max_tokens", "stream_options"}.isdisjoint(last)


def test_an_agent_repairs_its_answer_and_the_usage_and_price_are_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"m-1": {"input_per_million": 2, "output_per_million": 10}}')
    monkeypatch.setenv("MOSAIC_PRICES", str(prices))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    async def main() -> tuple[AgentAnswer, http.Server]:
        async with http.serving(http.said('{"count": "three"}'), http.said('Sorry: {"count": 3}')) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            agent = AgentPlan(prompt="count", model="openai:m-1", output_schema=SCHEMA)
            try:
                return await run_agent(agent, {}, timeout_s=5), server
            finally:
                await close_engines()

    answer, server = asyncio.run(main())
    assert msgspec.structs.replace(answer, text="") == AgentAnswer(
        {"count": 3}, Usage(2000, 400, 0.008), "openai:m-1", repaired=True
    )
    assert "field 'count'" in server.asked[1].body["messages"][-1]["content"]


def test_a_connection_is_kept_for_the_next_request() -> None:
    body = b"".join([http.delta("ok"), http.delta(finish="stop"), http.DONE])
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )

    async def main() -> int:
        ended: list[asyncio.Event] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ended.append(end := asyncio.Event())
            with suppress(asyncio.IncompleteReadError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    length = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
                    await reader.readexactly(int(length.split(b":")[1]))
                    writer.write(page)
            writer.close()
            await writer.wait_closed()
            end.set()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
        async with listener:
            async with engine_at(url) as engine:
                for _ in range(3):
                    await complete(engine, request())
            for end in ended:
                await end.wait()
        return len(ended)

    assert asyncio.run(main()) == 1


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/v1", "127.0.0.1:80", "http://"])
def test_a_url_that_is_none_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_BASE_URL"):
        OpenAIEngine(base_url=url, api_key=KEY)
