"""OpenAI's own client against the gateway: answers whole and streamed, of agents, mixtures, tools and folds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from redis import Redis

from mosaic_queues.settings import Settings
from mosaic_tasks import get_run
from tests.integration.completions_served import ASKED, agent, client, served, spelled, tool, workflow
from tests.integration.mixture_runs import SCHEMA, experts, number, says
from tests.integration.stream_tools import open_gate
from tests.services import Worker, Workers

pytestmark = pytest.mark.integration
QUEUES = ["mosaic.cpu", "mosaic.api.replay"]


@pytest.fixture
def worker(mosaic_process: Settings, workers: Workers) -> Worker:
    return workers.start("mosaic_tasks.app", QUEUES, pool="async", concurrency=32).wait_ready()


def said(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_an_agent_answers_at_once_and_as_it_writes(worker: Worker, tmp_path: Path) -> None:
    text = "Twelve, since <b>each</b> face & edge counts. " * 5
    writes = workflow("writes", {"answer": agent(says(tmp_path, "a", text, tokens_per_s=400.0))})
    with served(writes) as url, client(url) as ai:
        whole = ai.chat.completions.create(model="writes", messages=ASKED)
        with ai.chat.completions.create(
            model="writes", messages=ASKED, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        again = ai.chat.completions.create(model="writes", messages=ASKED, stream=True)
        assert said(again) == text
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == "stop"
    run = get_run(whole.id)
    assert run.output() == text
    (used,) = [event for event in run.events() if event.kind == "usage"]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == used.tokens
    assert whole.usage.total_tokens == sum(used.tokens)
    assert said(chunks) == text
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 3
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert get_run(chunks[0].id).output() == text


def test_the_asynchronous_client_is_answered_too(worker: Worker, tmp_path: Path) -> None:
    writes = workflow("writes", {"answer": agent(says(tmp_path, "a", "It is twelve."))})

    async def ask(url: str) -> tuple[str | None, str, str]:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as ai:
            raw = await ai.chat.completions.with_raw_response.create(model="writes", messages=ASKED)
            stream = await ai.chat.completions.create(model="writes", messages=ASKED, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            whole = raw.parse()
            assert raw.headers["x-mosaic-run"] == whole.id
            return whole.choices[0].message.content, text, raw.headers["content-type"]

    with served(writes) as url:
        assert asyncio.run(ask(url)) == ("It is twelve.", "It is twelve.", "application/json")


def test_words_come_while_the_rest_is_not_there_yet(worker: Worker, redis_client: Redis) -> None:
    with served(workflow("counts", spelled("gated_numbers", n=3))) as url, client(url) as ai:
        stream = ai.chat.completions.create(model="counts", messages=ASKED, stream=True)
        chunks = iter(stream)
        heard = next(chunk for chunk in chunks if chunk.choices[0].delta.content)
        assert heard.choices[0].delta.content == "0,"
        open_gate(redis_client, "more")
        assert said(chunks) == "1,2,(3)"


def test_a_mixture_answers_and_the_tokens_of_all_its_experts_count(worker: Worker, tmp_path: Path) -> None:
    asked = experts(tmp_path, number(12), number(12), number(13))
    mixes = workflow(
        "mixes",
        {
            "answer": {
                "mixture": {
                    "prompt": "{{ inputs.question }}",
                    "answer": {"form": "number", "field": "answer"},
                    "experts": asked,
                    "gate": "none",
                }
            }
        },
    )
    with served(mixes) as url, client(url) as ai:
        whole = ai.chat.completions.create(model="mixes", messages=ASKED)
        stream = ai.chat.completions.create(
            model="mixes", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert whole.choices[0].message.content == said(chunks) == "12"
    used = [event for event in get_run(whole.id).events() if event.kind == "usage"]
    assert len(used) == 3
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == sum(event.tokens[0] for event in used)
    assert whole.usage.completion_tokens == sum(event.tokens[1] for event in used)
    assert chunks[-1].usage == whole.usage


def test_what_is_no_text_comes_whole_as_json(worker: Worker, tmp_path: Path) -> None:
    value = {"answer": "Ünïcode", "reasoning": "It follows."}
    writes = agent(says(tmp_path, "a", f"Here: {json.dumps(value)}"), output=SCHEMA)
    models = [
        workflow("objects", {"answer": writes}),
        workflow("lists", {"answer": {"tool": "tests.integration.stream_tools:numbers", "with": {"n": 3}}}),
        workflow("nothing", {"answer": tool("echo", value=None)}),
    ]
    with served(*models) as url, client(url) as ai:

        def ask(model: str, **options: Any) -> str:
            chunks = ai.chat.completions.create(model=model, messages=ASKED, stream=True, **options)
            whole = ai.chat.completions.create(model=model, messages=ASKED, **options)
            text = said(chunks)
            assert whole.choices[0].message.content == text
            return text

        schema = {"name": "answer", "schema": {**SCHEMA, "additionalProperties": False}, "strict": True}
        forms: list[Any] = [
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": schema},
            {"type": "text"},
        ]
        for form in forms:
            assert json.loads(ask("objects", response_format=form)) == value
        assert ask("lists") == "[0,1,2]"
        assert ask("nothing") == ""


def test_the_conversation_goes_to_one_input_and_others_may_be_given(worker: Worker) -> None:
    models = [
        workflow("all", {"answer": tool("echo", value="${inputs.messages}")}, messages="array"),
        workflow(
            "last",
            {"answer": tool("echo", value=["${inputs.text}", "${inputs.count}"])},
            text="string",
            count={"type": "integer", "default": 1},
        ),
    ]
    conversation: list[Any] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "second?"}]},
        {"role": "assistant", "content": "Perhaps"},
    ]
    with served(*models) as url, client(url) as ai:

        def ask(model: str, **options: Any) -> Any:
            whole = ai.chat.completions.create(model=model, messages=conversation, **options)
            return json.loads(whole.choices[0].message.content or "")

        assert ask("last") == ["And second?", 1]
        assert ask("last", extra_body={"inputs": {"count": 3}}) == ["And second?", 3]
        heard = ask("all", temperature=0.3, max_tokens=1, seed=4, user="u", metadata={"a": "b"})
    assert [message["role"] for message in heard] == ["system", "user", "assistant", "user", "assistant"]
    assert heard[3] == {"role": "user", "content": "And second?"}


def test_an_answer_that_was_cut_says_so_and_one_that_was_refused_too(worker: Worker, tmp_path: Path) -> None:
    long = "one two three four five six seven eight"
    models = [
        workflow("cut", {"answer": agent(says(tmp_path, "a", long), max_tokens=2)}),
        workflow("refused", {"answer": tool("fails", kind="refused")}),
    ]
    with served(*models) as url, client(url) as ai:
        cut = ai.chat.completions.create(model="cut", messages=ASKED)
        refused = ai.chat.completions.create(model="refused", messages=ASKED)
        stream = list(ai.chat.completions.create(model="refused", messages=ASKED, stream=True))
    assert cut.choices[0].finish_reason == "length"
    assert long.startswith(cut.choices[0].message.content or "nothing")
    assert (refused.choices[0].finish_reason, refused.choices[0].message.content) == ("content_filter", "")
    assert stream[-1].choices[0].finish_reason == "content_filter"


def test_models_are_the_workflows_that_can_receive_a_conversation(mosaic_process: Settings) -> None:
    models = [
        workflow("asks", {"answer": tool("echo", value="${inputs.question}")}),
        workflow("needs", {"answer": tool("echo", value="${inputs.n}")}, n="integer", question="string"),
    ]
    with served(*models) as url, client(url) as ai:
        assert [(model.id, model.object) for model in ai.models.list()] == [("asks", "model")]
        assert ai.models.retrieve("asks").owned_by == "mosaic-tasks"
        with pytest.raises(openai.NotFoundError, match="input 'n' has no default"):
            ai.models.retrieve("needs")
        with pytest.raises(openai.NotFoundError, match="did you mean 'asks'") as told:
            ai.chat.completions.create(model="ask", messages=ASKED)
    assert (told.value.code, told.value.param, told.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
