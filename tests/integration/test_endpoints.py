"""Several real HTTP servers behind one model: failing over, resting, waiting, continuing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai_server as http
import pytest

from mosaic_queues.errors import (
    CallTimeout,
    ContentRefused,
    ContextTooLong,
    EngineError,
    EngineOverloaded,
    EngineRefused,
)
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.engines.openai import OpenAIEngine, RetryPolicy
from mosaic_tasks.engines.protocol import EngineRequest, Message, Usage, complete, continues
from mosaic_tasks.execution.agents import run_agent

pytestmark = pytest.mark.integration

FAST = RetryPolicy(attempts=3, base_s=0.01, max_s=0.02)
NEVER = RetryPolicy(attempts=3, base_s=1000.0, max_s=1000.0, longest_s=2000.0)
"""Whoever waits for a pause of this one fails the test by its time."""
VLLM = {"kind": "vllm"}

Write = Callable[[list[dict[str, Any]]], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the endpoints of the model `m`."""

    def written(endpoints: list[dict[str, Any]]) -> None:
        file = tmp_path / "endpoints.json"
        file.write_text(json.dumps({"m": endpoints}))
        monkeypatch.setenv("MOSAIC_ENDPOINTS", str(file))

    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return written


@asynccontextmanager
async def engine_of(
    write: Write,
    *scripts: list[http.Reply],
    fields: list[dict[str, Any]] | None = None,
    retry: RetryPolicy = FAST,
) -> AsyncIterator[tuple[OpenAIEngine, list[http.Server]]]:
    """An engine whose model `m` has a server for each script."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(http.serving(*script)) for script in scripts]
        more = fields or [{}] * len(servers)
        write([{"url": server.url, **one} for server, one in zip(servers, more, strict=True)])
        engine = OpenAIEngine(retry=retry)
        stack.push_async_callback(engine.aclose)
        yield engine, servers


def request(**options: Any) -> EngineRequest:
    return EngineRequest((Message("user", "hello there"),), **{"model": "m", "timeout_s": 8.0, **options})


def texts(
    write: Write,
    *scripts: list[http.Reply],
    calls: int = 1,
    asked: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[list[str], list[int]]:
    """The answers to so many calls one after the other, and how many requests each server saw."""

    async def main() -> tuple[list[str], list[int]]:
        async with engine_of(write, *scripts, **options) as (engine, servers):
            answers = [(await complete(engine, request(**(asked or {})))).text for _ in range(calls)]
            return answers, [len(server.asked) for server in servers]

    return asyncio.run(main())


def failure(
    kind: type[Exception], write: Write, *scripts: list[http.Reply], **options: Any
) -> tuple[str, list[int]]:
    """The message of the error that a call ends with, and how many requests each server saw."""

    async def main() -> tuple[str, list[int]]:
        asked = options.pop("asked", {})
        async with engine_of(write, *scripts, **options) as (engine, servers):
            with pytest.raises(kind) as caught:
                await complete(engine, request(**asked))
            assert type(caught.value) is kind
            return str(caught.value), [len(server.asked) for server in servers]

    return asyncio.run(main())


async def resetting(connection: http.Connection) -> None:
    connection.reset()


async def breaking(connection: http.Connection) -> None:
    await connection.head(200, content_type="text/event-stream", content_length="10000")
    await connection.send(http.delta("half "))


# Failing over


@pytest.mark.parametrize(
    "reply",
    [
        http.refused(500),
        http.refused(429),
        http.refused(429, Retry_After="1000"),
        http.refused(503, "Loading model"),
        resetting,
        http.streamed(),
        http.streamed(b"data: {broken\n\n"),
        http.streamed(b"<html>\n</html>\n"),
        http.streamed(http.event(error={"message": "engine died", "code": 500})),
    ],
    ids=["500", "429", "429 for long", "503", "reset", "no events", "malformed", "HTML", "error event"],
)
def test_before_the_first_token_another_endpoint_is_asked_at_once(reply: http.Reply, write: Write) -> None:
    """And from then on only that one, as long as the first rests."""
    assert texts(write, [reply], [http.said("ok")], calls=3, retry=NEVER) == (["ok"] * 3, [1, 3])


def test_a_hang_after_the_headers_is_failed_over_after_the_read_timeout(write: Write) -> None:
    fields = [{"timeouts": {"read_s": 0.1}}, {}]
    scripts = [http.hanging], [http.said("ok")]
    assert texts(write, *scripts, fields=fields, retry=NEVER) == (["ok"], [1, 1])


def test_nobody_listening_is_failed_over(write: Write) -> None:
    async def main() -> str:
        async with http.serving(http.said("")) as gone:
            url = gone.url
        async with http.serving(http.said("ok")) as server:
            write([{"url": url}, {"url": server.url}])
            engine = OpenAIEngine(retry=NEVER)
            try:
                return (await complete(engine, request())).text
            finally:
                await engine.aclose()

    assert asyncio.run(main()) == "ok"


def test_an_endpoint_that_lets_a_call_run_out_of_time_rests(write: Write) -> None:
    async def main() -> list[int]:
        scripts = [http.hanging], [http.said("ok")]
        async with engine_of(write, *scripts, retry=NEVER) as (engine, servers):
            with pytest.raises(CallTimeout):
                await complete(engine, request(timeout_s=0.2))
            for _ in range(3):
                await complete(engine, request())
            return [len(server.asked) for server in servers]

    assert asyncio.run(main()) == [1, 3]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (http.refused(400, "bad temperature"), EngineRefused),
        (http.refused(400, "no", code="content_filter"), ContentRefused),
        (http.refused(400, "no", code="context_length_exceeded"), ContextTooLong),
        (
            http.refused(400, "request (9 tokens) exceeds the available context size (8 tokens)"),
            ContextTooLong,
        ),
        (http.refused(422, "`inputs` tokens + `max_new_tokens` must be <= 8. Given: 9"), ContextTooLong),
        (
            http.refused(400, "The decoder prompt (length 9) is longer than the maximum model length of 8"),
            ContextTooLong,
        ),
    ],
)
def test_what_is_wrong_with_the_request_is_not_asked_elsewhere(
    reply: http.Reply, kind: type[EngineError], write: Write
) -> None:
    assert failure(kind, write, [reply], [http.said("ok")])[1] == [1, 0]


def test_every_endpoint_is_tried_also_when_they_are_more_than_the_attempts(write: Write) -> None:
    broken = [[http.refused(500)]] * 5
    assert texts(write, *broken, [http.said("ok")], retry=NEVER)[0] == ["ok"]


def test_errors_everywhere_end_the_attempts(write: Write) -> None:
    message, asked = failure(EngineError, write, [http.refused(500, "boom")], [http.refused(500, "boom")])
    assert "boom" in message
    assert sum(asked) == 3


def test_an_answer_ends_the_row_of_failures(write: Write) -> None:
    """In one row, the pause after the last of these would be some minutes."""
    retry = RetryPolicy(attempts=2, base_s=0.001, max_s=1000.0)
    script = [http.refused(500), http.said("ok")] * 20
    assert texts(write, script, calls=20, retry=retry) == (["ok"] * 20, [40])


# Keys and names


def test_each_endpoint_has_its_own_key_and_name_of_the_model(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_A", "secret-a")

    async def main() -> list[tuple[str, str]]:
        fields = [{"key_env": "KEY_A", "model": "m-at-a"}, {}]
        async with engine_of(write, [http.said("a")], [http.said("b")], fields=fields) as (engine, servers):
            for _ in servers:
                await complete(engine, request())
            asked = [server.asked[0] for server in servers]
            return [(one.headers["authorization"], one.body["model"]) for one in asked]

    assert asyncio.run(main()) == [("bearer secret-a", "m-at-a"), ("bearer no-key", "m")]


@pytest.mark.parametrize(
    "reply",
    [
        http.refused(401),
        http.refused(404, "no such model"),
        http.refused(429, "no money", code="insufficient_quota"),
    ],
)
def test_an_endpoint_that_refuses_key_or_model_is_passed_over(reply: http.Reply, write: Write) -> None:
    assert texts(write, [reply], [http.said("ok")], calls=3) == (["ok"] * 3, [1, 3])


def test_an_endpoint_that_lacks_an_adapter_is_passed_over_for_that_call_alone(write: Write) -> None:
    async def main() -> list[int]:
        script = [http.refused(404, "The model `tone` does not exist"), http.said("ok")]
        async with engine_of(write, script, [http.said("ok")], fields=[VLLM, VLLM]) as (engine, servers):
            await complete(engine, request(adapter="tone"))
            assert servers[1].asked[0].body["model"] == "tone"
            for _ in range(4):
                await complete(engine, request())
            return [len(server.asked) for server in servers]

    assert asyncio.run(main()) == [3, 3]


def test_a_key_that_all_refuse_is_told_with_its_variable_and_without_itself(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_A", "secret-a")
    reply = http.refused(401, "wrong key secret-a")
    message, asked = failure(EngineRefused, write, [reply], [reply], fields=[{"key_env": "KEY_A"}] * 2)
    assert asked == [1, 1]
    assert "wrong key ***; check KEY_A" in message


def test_a_key_that_is_not_set_is_told(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEY_A", raising=False)
    message, asked = failure(EngineRefused, write, [http.said("ok")], fields=[{"key_env": "KEY_A"}])
    assert "KEY_A is not set" in message
    assert asked == [0]


def test_a_model_that_the_file_does_not_list_is_asked_at_the_url(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[str]:
        async with http.serving(http.said("elsewhere")) as other:
            monkeypatch.setenv("OPENAI_BASE_URL", other.url)
            async with engine_of(write, [http.said("listed")]) as (engine, _):
                return [(await complete(engine, request(model=model))).text for model in ("m", "n")]

    assert asyncio.run(main()) == ["listed", "elsewhere"]


def test_a_model_that_no_one_has_is_told_with_those_that_are_listed(write: Write) -> None:
    message, _ = failure(EngineRefused, write, [http.said("ok")], asked={"model": "n"})
    assert "lists no model 'n' (there are: m)" in message


# Rate limits


def test_a_server_that_is_overloaded_for_long_is_waited_for(write: Write) -> None:
    """More refusals than there are attempts; each asks for a pause."""
    minute = [http.refused(429, Retry_After_Ms="20")] * 8
    assert texts(write, [*minute, http.said("ok")]) == (["ok"], [9])


def test_many_calls_wait_for_it_together(write: Write) -> None:
    async def main() -> list[str]:
        minute = [http.refused(429, Retry_After_Ms="50")] * 20
        async with engine_of(write, [*minute, http.said("ok")]) as (engine, _):
            answers = await asyncio.gather(*(complete(engine, request()) for _ in range(8)))
            return [answer.text for answer in answers]

    assert asyncio.run(main()) == ["ok"] * 8


def test_without_a_deadline_the_attempts_end(write: Write) -> None:
    script = [http.refused(429, Retry_After_Ms="20")]
    assert failure(EngineOverloaded, write, script, asked={"timeout_s": None})[1] == [3]


def test_when_all_rest_the_call_waits_for_the_first(write: Write) -> None:
    async def main() -> list[int]:
        scripts = (
            [http.refused(429, Retry_After="1000")],
            [http.refused(429, Retry_After_Ms="200"), http.said("ok")],
        )
        async with engine_of(write, *scripts) as (engine, servers):
            await complete(engine, request())
            first, second = servers[1].asked
            assert second.at_s - first.at_s >= 0.2
            return [len(server.asked) for server in servers]

    assert asyncio.run(main()) == [1, 2]


def test_when_all_rest_for_too_long_the_call_says_so_at_once(write: Write) -> None:
    script = [http.refused(429, "slow down", Retry_After="1000")]
    message, asked = failure(CallTimeout, write, script, script)
    assert asked == [1, 1]
    assert "within 8 s" in message
    assert "slow down; the next may be made in 1e+03 s" in message


def test_who_waits_for_room_is_not_sent_to_an_endpoint_that_just_asked_for_a_pause(write: Write) -> None:
    async def main() -> None:
        script = [http.refused(429, Retry_After="1000"), http.said("ok")]
        async with engine_of(write, script, fields=[{"concurrency": 1}]) as (engine, (server,)):
            calls = [complete(engine, request()) for _ in range(2)]
            for ended in await asyncio.gather(*calls, return_exceptions=True):
                assert "the next may be made in 1e+03 s" in str(ended)
            assert len(server.asked) == 1

    asyncio.run(main())


def test_an_endpoint_whose_limit_is_used_up_pauses_until_the_reset(write: Write) -> None:
    async def main() -> float:
        spent = {"X_RateLimit_Remaining_Requests": "0", "X_RateLimit_Reset_Requests": "200ms"}
        async with engine_of(write, [http.said("ok", **spent), http.said("ok")]) as (engine, (server,)):
            for _ in range(2):
                await complete(engine, request())
            return server.asked[1].at_s - server.asked[0].at_s

    assert asyncio.run(main()) >= 0.2


def test_meanwhile_the_other_endpoint_is_asked(write: Write) -> None:
    spent = {"X_RateLimit_Remaining_Tokens": "0", "X_RateLimit_Reset_Tokens": "6m0s"}
    scripts = [http.said("a", **spent)], [http.said("b")]
    assert texts(write, *scripts, calls=4) == (["a", "b", "b", "b"], [1, 3])


def test_an_endpoint_has_no_more_requests_at_once_than_it_may(write: Write) -> None:
    async def main() -> list[int]:
        fields = [{"concurrency": 2}, {"concurrency": 3}]
        async with engine_of(write, [http.said("ok")], [http.said("ok")], fields=fields) as (engine, servers):
            answers = await asyncio.gather(*(complete(engine, request()) for _ in range(20)))
            assert len(answers) == 20
            return [server.most_at_once for server in servers]

    most = asyncio.run(main())
    assert most[0] <= 2
    assert most[1] <= 3


def test_no_room_within_the_deadline_is_told(write: Write) -> None:
    async def main() -> str:
        async with engine_of(write, [http.hanging], fields=[{"concurrency": 1}]) as (engine, _):
            first = asyncio.create_task(complete(engine, request()))
            await asyncio.sleep(0)
            with pytest.raises(CallTimeout) as caught:
                await complete(engine, request(timeout_s=0.1))
            first.cancel()
            await asyncio.wait([first])
            return str(caught.value)

    assert "no endpoint of model 'm' had room within 0.1 s" in asyncio.run(main())


# Once text came


def test_after_the_first_token_no_other_endpoint_is_asked(write: Write) -> None:
    assert failure(EngineError, write, [breaking], [http.said("ok")])[1] == [1, 0]


def logged(text: str, *logprobs: float) -> bytes:
    tokens = [{"token": "t", "logprob": one, "bytes": None, "top_logprobs": []} for one in logprobs]
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, "logprobs": {"content": tokens}}
    return http.event(choices=[choice])


def test_an_endpoint_that_can_continues_what_broke_off(write: Write) -> None:
    async def main() -> None:
        scripts = (
            [http.streamed(logged("one two ", -1.0, -2.0))],
            [http.streamed(logged(" three", -3.0), http.delta(finish="stop"), http.USAGE, http.DONE)],
        )
        async with engine_of(write, *scripts, fields=[VLLM, VLLM]) as (engine, servers):
            heard: list[str] = []
            answer = await complete(engine, request(max_tokens=9, logprobs=True), on_delta=heard.append)
            assert heard == ["one two ", "three"]
            assert answer.text == "one two three"
            assert answer.logprobs == (-1.0, -2.0, -3.0)
            assert answer.usage == Usage(1003, 202, None, estimated=True)
            again = servers[1].asked[0].body
            assert again["messages"][1:] == [{"role": "assistant", "content": "one two"}]
            assert (again["continue_final_message"], again["add_generation_prompt"]) == (True, False)
            assert again["max_tokens"] == 7

    asyncio.run(main())


def test_a_lone_endpoint_continues_its_own_answer(write: Write) -> None:
    assert texts(write, [breaking, http.said("whole")], fields=[VLLM]) == (["half whole"], [2])


def test_only_those_that_can_are_asked_to_continue(write: Write) -> None:
    scripts = [breaking, http.said("whole")], [http.said("no")]
    assert texts(write, *scripts, fields=[VLLM, {}]) == (["half whole"], [2, 0])


def test_a_server_that_will_not_continue_leaves_the_first_failure(write: Write) -> None:
    script = [breaking, http.refused(400, "unknown field continue_final_message")]
    message, asked = failure(EngineError, write, script, fields=[VLLM])
    assert "the connection to" in message
    assert asked == [2]


def test_an_answer_under_a_grammar_is_not_continued(write: Write) -> None:
    asked = {"output_schema": {"type": "object"}}
    assert failure(EngineError, write, [breaking, http.said("{}")], fields=[VLLM], asked=asked)[1] == [1]


@pytest.mark.parametrize(("kind", "text"), [("vllm", "It was good."), ("openai", "good.")])
def test_an_agent_s_prefix_is_continued_where_the_server_can(kind: str, text: str, write: Write) -> None:
    async def main() -> str:
        async with engine_of(write, [http.said("good.")], fields=[{"kind": kind}]) as (engine, _):
            assert continues(engine) == (kind == "vllm")
            agent = AgentPlan(prompt="Was it?", model="openai:m")
            return (await run_agent(agent, {}, engine=engine, prefix="It was ", timeout_s=5)).text

    assert asyncio.run(main()) == text


def test_a_model_that_cannot_continue_begins_anew_beside_one_that_can(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> str:
        async with (
            http.serving(http.said("good.")) as other,
            engine_of(write, [http.said("")], fields=[VLLM]) as (engine, _),
        ):
            monkeypatch.setattr(engine, "_url", other.url)
            assert continues(engine)
            agent = AgentPlan(prompt="Was it?", model="openai:n")
            return (await run_agent(agent, {}, engine=engine, prefix="It was ", timeout_s=5)).text

    assert asyncio.run(main()) == "good."


# What is asked and read


def test_logprobs_top_p_and_cached_tokens(write: Write) -> None:
    counts = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    reply = http.streamed(
        logged("a", -0.5), logged("b", -0.25), http.delta(finish="stop"), http.event(choices=[], usage=counts)
    )

    async def main() -> None:
        async with engine_of(write, [reply]) as (engine, (server,)):
            answer = await complete(engine, request(logprobs=True, top_p=0.9))
            assert answer.logprobs == (-0.5, -0.25)
            assert answer.usage == Usage(10, 2, cached_tokens=8)
            body = server.asked[0].body
            assert (body["logprobs"], body["top_p"]) == (True, 0.9)
            await complete(engine, request())
            assert {"logprobs", "top_p"}.isdisjoint(server.asked[1].body)

    asyncio.run(main())


def test_what_one_endpoint_does_not_understand_the_others_are_still_asked(write: Write) -> None:
    async def main() -> list[list[bool]]:
        scripts = [http.refused(400, "stream_options is unknown"), http.said("ok")], [http.said("ok")]
        async with engine_of(write, *scripts) as (engine, servers):
            for _ in range(4):
                await complete(engine, request())
            return [["stream_options" in asked.body for asked in server.asked] for server in servers]

    first, second = asyncio.run(main())
    assert first[0] is True
    assert not any(first[1:])
    assert len(first) > 1
    assert all(second)


def test_a_priority_goes_to_vllm_until_it_refuses_it(write: Write) -> None:
    async def main() -> list[int | None]:
        script = [
            http.refused(400, "Got priority 5 but Priority scheduling is not enabled."),
            http.said("ok"),
        ]
        async with engine_of(write, script, fields=[VLLM]) as (engine, (server,)):
            for _ in range(2):
                await complete(engine, request(priority=5))
            return [asked.body.get("priority") for asked in server.asked]

    assert asyncio.run(main()) == [5, None, None]


def test_tgi_gets_the_schema_in_its_older_form(write: Write) -> None:
    schema = {"type": "array", "items": {"type": "string"}}

    async def main() -> dict[str, Any]:
        script = [http.refused(422, "response_format: unknown variant `json_schema`"), http.said("[]")]
        async with engine_of(write, script, fields=[{"kind": "tgi"}]) as (engine, (server,)):
            await complete(engine, request(output_schema=schema))
            return server.asked[1].body["response_format"]

    assert asyncio.run(main()) == {"type": "json_object", "value": schema}
