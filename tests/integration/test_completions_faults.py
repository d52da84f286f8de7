"""What goes wrong around the OpenAI endpoint, as OpenAI's own client tells it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import openai
import pytest
from redis import Redis

from mosaic_queues.settings import Settings, settings
from mosaic_tasks import Run, get_run, list_runs
from mosaic_tasks.access.principal import Principal
from tests.integration.completions_served import (
    ASKED,
    SCOPES,
    TOOLS,
    Keys,
    agent,
    client,
    served,
    spelled,
    tool,
    workflow,
)
from tests.integration.gateway_tools import gateway
from tests.integration.mixture_runs import says
from tests.integration.stream_tools import open_gate
from tests.services import Worker, Workers

pytestmark = pytest.mark.integration
QUEUES = ["mosaic.cpu", "mosaic.api.replay"]


@pytest.fixture
def worker(mosaic_process: Settings, workers: Workers, redis_client: Redis) -> Iterator[Worker]:
    yield workers.start("mosaic_tasks.app", QUEUES, pool="async", concurrency=32).wait_ready()
    open_gate(redis_client, "more", times=8)  # a worker ends once its calls have


@contextlib.contextmanager
def streaming(ai: openai.OpenAI, model: str, **options: Any) -> Iterator[tuple[Run, Iterator[str]]]:
    """A streamed answer whose first words were heard: its run, and all words."""
    with ai.chat.completions.create(model=model, messages=cast(Any, ASKED), stream=True, **options) as stream:
        chunks = iter(stream)
        first = next(chunk for chunk in chunks if chunk.choices[0].delta.content)

        def words() -> Iterator[str]:
            yield first.choices[0].delta.content or ""
            for chunk in chunks:
                yield chunk.choices[0].delta.content or ""

        yield get_run(first.id), words()


def ended(run: Run) -> str:
    """The status of a run, once it is over."""
    return str([event.detail for event in run.events(follow=True) if event.kind == "closed"][-1])


# -- what a run came to --------------------------------------------------------------------------------------------


def test_a_run_that_fails_is_an_error_and_is_not_asked_for_again(worker: Worker, tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    kinds: dict[str, tuple[type[openai.APIStatusError], str]] = {
        "context": (openai.BadRequestError, "context_length_exceeded"),
        "other": (openai.InternalServerError, "run_failed"),
    }
    models = [workflow(kind, {"answer": tool("fails", kind=kind, path=str(tried))}) for kind in kinds]
    with served(*models) as url, client(url, max_retries=2) as ai:
        for model, (kind, code) in kinds.items():
            for options in ({}, {"stream": True}):
                with pytest.raises(kind, match="that was too much") as told:
                    ai.chat.completions.create(model=model, messages=cast(Any, ASKED), **options)
                assert told.value.code == code
    assert tried.read_text().count("tried") == 2 * len(kinds)


def test_an_engine_that_is_overloaded_is_asked_again(worker: Worker, tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    model = workflow("busy", {"answer": tool("fails", kind="overloaded", path=str(tried))})
    with (
        served(model) as url,
        client(url, max_retries=1) as ai,
        pytest.raises(openai.InternalServerError) as told,
    ):
        ai.chat.completions.create(model="busy", messages=cast(Any, ASKED))
    assert (told.value.status_code, told.value.code) == (503, "engine_overloaded")
    assert tried.read_text().count("tried") == 2


def test_a_failure_in_the_middle_is_raised_by_the_stream(worker: Worker, redis_client: Redis) -> None:
    nodes = spelled("gated_numbers")
    nodes["made"] = {"tool": f"{TOOLS}:numbers_then_no_more", "with": {}}
    with served(workflow("breaks", nodes)) as url, client(url) as ai, streaming(ai, "breaks") as (run, words):
        assert next(words) == "0,"
        open_gate(redis_client, "more")
        with pytest.raises(openai.APIError, match="no more numbers") as told:
            list(words)
    assert told.value.code == "run_failed"
    assert ended(run).startswith("failed")


def test_a_run_that_somebody_cancels_is_an_error(worker: Worker) -> None:
    with (
        served(workflow("counts", spelled("gated_numbers", n=2))) as url,
        client(url) as ai,
        streaming(ai, "counts") as (run, words),
    ):
        run.cancel("by hand")
        with pytest.raises(openai.APIError, match="by hand") as told:
            list(words)
    assert told.value.code == "run_cancelled"


# -- corrections ---------------------------------------------------------------------------------------------------


def test_what_does_not_hold_any_more_ends_the_stream_and_the_whole_answer_is_right(
    worker: Worker, redis_client: Redis
) -> None:
    with served(workflow("mind", spelled("changes_its_mind", retry=2))) as url, client(url) as ai:
        options = {"extra_headers": {"Idempotency-Key": "k"}}
        with streaming(ai, "mind", **options) as (run, words):
            heard = next(words)
            while heard != "0,10,":
                heard += next(words)
            open_gate(redis_client, "heard")
            with pytest.raises(openai.APIError, match="corrected") as told:
                list(words)
        again = ai.chat.completions.create(model="mind", messages=cast(Any, ASKED), **options)
    assert told.value.code == "answer_changed"
    assert (again.id, again.choices[0].message.content) == (run.id, "0,20,30,(3)")


def test_what_is_said_again_as_before_does_not_break_the_stream(worker: Worker, redis_client: Redis) -> None:
    with (
        served(workflow("counts", spelled("gated_numbers", n=3))) as url,
        client(url) as ai,
        streaming(ai, "counts") as (run, words),
    ):
        assert next(words) == "0,"
        run.rerun("made")
        open_gate(redis_client, "more", times=2)
        assert "".join(words) == "1,2,(3)"
    assert run.view().epoch == 1


# -- clients that leave, and come back -----------------------------------------------------------------------------


def test_a_client_that_leaves_ends_its_run(worker: Worker, redis_client: Redis) -> None:
    nodes = spelled("gated_numbers")
    nodes["made"] = {"tool": f"{TOOLS}:numbers_then_no_more", "with": {}}
    with served(workflow("counts", nodes)) as url, client(url) as ai:
        with streaming(ai, "counts") as (streamed, _):
            assert redis_client.blpop(["test:bell:waits"], timeout=30)
        assert "client left" in ended(streamed)
        with contextlib.closing(sent(url, "counts")):
            assert redis_client.blpop(["test:bell:waits"], timeout=30)
        whole = get_run(list_runs()[0].run_id)
        assert whole.id != streamed.id
        assert "client left" in ended(whole)


def sent(url: str, model: str) -> socket.socket:
    """A request whose answer nobody has read yet."""
    at = httpx2.URL(url)
    body = httpx2.Request("POST", url, json={"model": model, "messages": ASKED}).read()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {at.host}:{at.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection((at.host, at.port or 80))
    connection.sendall(head.encode() + body)
    return connection


def test_with_a_key_it_may_come_back_to_the_same_run(worker: Worker, redis_client: Redis) -> None:
    with served(workflow("counts", spelled("gated_numbers", n=2))) as url, client(url) as ai:
        options = {"extra_headers": {"Idempotency-Key": "the same"}}
        with streaming(ai, "counts", **options) as (run, _):
            pass
        with streaming(ai, "counts", **options) as (again, words):
            assert next(words) == "0,"
            open_gate(redis_client, "more")
            assert "".join(words) == "1,(2)"
        whole = ai.chat.completions.create(model="counts", messages=cast(Any, ASKED), **options)
        other: Any = [{"role": "user", "content": "How few?"}]
        with pytest.raises(openai.BadRequestError, match="other inputs") as told:
            ai.chat.completions.create(model="counts", messages=other, **options)
    assert (again.id, whole.id, whole.choices[0].message.content) == (run.id, run.id, "0,1,(2)")
    assert told.value.type == "invalid_request_error"
    assert len(list_runs()) == 1


def test_the_next_try_after_a_gateway_was_killed_finds_the_run(
    worker: Worker, redis_client: Redis, redis_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "counts.yaml"
    file.write_text(workflow("counts", spelled("gated_numbers", n=2)).to_yaml())
    options = {"extra_headers": {"Idempotency-Key": "the same"}}
    with gateway(file, redis_url=redis_url, home=tmp_path) as first, client(f"{first.url}/v1") as ai:
        with streaming(ai, "counts", **options) as (run, words):
            first.kill()
            with pytest.raises(openai.APIConnectionError):
                list(words)
        with gateway(file, redis_url=redis_url, home=tmp_path) as second, client(f"{second.url}/v1") as other:
            open_gate(redis_client, "more")
            whole = other.chat.completions.create(model="counts", messages=cast(Any, ASKED), **options)
    assert (whole.id, whole.choices[0].message.content) == (run.id, "0,1,(2)")


def test_a_gateway_that_stops_says_so_in_time(worker: Worker, redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "counts.yaml"
    file.write_text(workflow("counts", spelled("gated_numbers", n=2)).to_yaml())
    with (
        gateway(file, redis_url=redis_url, home=tmp_path) as stopping,
        client(f"{stopping.url}/v1") as ai,
        streaming(ai, "counts") as (run, words),
        streaming(ai, "counts", extra_headers={"Idempotency-Key": "k"}) as (kept, other_words),
    ):
        assert stopping.stop() == 0
        for left in (words, other_words):
            with pytest.raises(openai.APIError, match="the gateway stops") as told:
                list(left)
            assert told.value.code == "service_unavailable"
    assert "client left" in ended(run)
    assert kept.record().status == "running"
    kept.cancel()


# -- nobody there, nobody known ------------------------------------------------------------------------------------


def test_where_nobody_serves_it_says_so(mosaic_process: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_GATEWAY_SILENCE_S", "0.02")
    settings.cache_clear()
    with served(workflow("waits", {"answer": tool("echo", value=1)})) as url, client(url) as ai:
        with pytest.raises(openai.InternalServerError, match="no worker serves") as whole:
            ai.chat.completions.create(model="waits", messages=cast(Any, ASKED))
        with pytest.raises(openai.APIError, match="no worker serves"):
            list(ai.chat.completions.create(model="waits", messages=cast(Any, ASKED), stream=True))
    assert (whole.value.status_code, whole.value.response.headers["retry-after"]) == (503, "5")
    assert {record.status for record in list_runs()} == {"cancelled"}


def test_while_nothing_is_said_comments_keep_the_connection(
    worker: Worker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_GATEWAY_SILENCE_S", "0.02")
    settings.cache_clear()
    model = workflow("slow", spelled("gated_numbers", n=1, gate_at=0))
    asked = {"model": "slow", "messages": ASKED, "stream": True}
    with (
        served(model) as url,
        httpx2.Client(base_url=url, timeout=30, trust_env=False) as http,
        http.stream("POST", "/chat/completions", json=asked) as answer,
    ):
        lines = answer.iter_lines()
        heard = [next(lines)]
        while heard.count(": here") < 2:
            heard.append(next(lines))
        assert '"0,' not in "".join(heard)
        open_gate(redis_client, "more")
        assert '"0,' in "".join(lines)


def test_keys_and_tenants(worker: Worker, tmp_path: Path) -> None:
    writes = workflow("writes", {"answer": agent(says(tmp_path, "a", "It is twelve."))})
    principals = {
        "of-a": Principal(subject="a", tenant="a", scopes=SCOPES),
        "of-b": Principal(subject="b", tenant="b", scopes=SCOPES),
        "reads": Principal(subject="reads", tenant="a", scopes=frozenset({"read"})),
    }
    options = {"extra_headers": {"Idempotency-Key": "the same"}}
    with served(writes, gate=Keys(cast(Any, principals))) as url:
        found = []
        for key in ("of-a", "of-b", "of-a"):
            with client(url, key=key) as ai:
                found.append(
                    ai.chat.completions.create(model="writes", messages=cast(Any, ASKED), **options).id
                )
        for key, kind, code in (
            ("unknown", openai.AuthenticationError, "invalid_api_key"),
            ("reads", openai.PermissionDeniedError, "insufficient_permissions"),
        ):
            with client(url, key=key) as ai, pytest.raises(kind) as told:
                ai.chat.completions.create(model="writes", messages=cast(Any, ASKED))
            assert told.value.code == code
    first, other, again = found
    assert first == again != other
    assert [get_run(run).plan().tenant for run in (first, other)] == ["a", "b"]


@pytest.mark.parametrize("share", ["open_runs", "readers"])
def test_a_tenant_that_has_had_its_share_is_told_when_to_ask_again(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text(f"tenants: {{'*': {{{share}: 1}}}}")
    monkeypatch.setenv("MOSAIC_QUOTAS", str(quotas))
    settings.cache_clear()
    with (
        served(workflow("counts", spelled("gated_numbers", n=2))) as url,
        client(url) as ai,
        streaming(ai, "counts"),
        pytest.raises(openai.RateLimitError) as told,
    ):
        ai.chat.completions.create(model="counts", messages=cast(Any, ASKED))
    assert (told.value.code, told.value.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert int(told.value.response.headers["retry-after"]) > 0
    assert len(list_runs()) == 1


def test_who_comes_back_with_a_key_is_answered_at_a_full_share(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("tenants: {'*': {open_runs: 1}}")
    monkeypatch.setenv("MOSAIC_QUOTAS", str(quotas))
    settings.cache_clear()
    echoes = workflow("echoes", {"answer": tool("echo", value="${inputs.question}")})
    ask: Any = {"model": "echoes", "messages": ASKED, "extra_headers": {"Idempotency-Key": "k"}}
    counts = workflow("counts", spelled("gated_numbers", n=2))
    with served(echoes, counts) as url, client(url) as ai:
        first = ai.chat.completions.create(**ask)
        with streaming(ai, "counts"):
            again = ai.chat.completions.create(**ask)
            parts = list(ai.chat.completions.create(**ask, stream=True))
            with pytest.raises(openai.RateLimitError):
                ai.chat.completions.create(**{**ask, "extra_headers": {"Idempotency-Key": "other"}})
    assert (again.id, again.choices[0].message.content) == (first.id, "How many?")
    assert {part.id for part in parts} == {first.id}
    assert len(list_runs()) == 2


# -- bad requests --------------------------------------------------------------------------------------------------


def test_what_a_workflow_cannot_do_is_refused_by_name(mosaic_process: Settings) -> None:
    model = workflow("asks", {"answer": tool("echo", value="${inputs.question}")})
    image = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "items": {}}}}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": "\n"}, "stop"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"response_format": schema}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": image}]}, "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages.0.role"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"extra_body": {"inputs": {"nix": 1}}}, "inputs"),
        ({"extra_body": {"inputs": {"question": "?"}}}, "inputs"),
    ]
    with served(model) as url, client(url) as ai:
        for more, param in refused:
            with pytest.raises(openai.BadRequestError) as told:
                ai.chat.completions.create(**{"model": "asks", "messages": ASKED, **more})
            assert (told.value.param, told.value.type) == (param, "invalid_request_error"), more
        assert list_runs() == []


def test_bodies_that_are_none(mosaic_process: Settings) -> None:
    model = workflow("asks", {"answer": tool("echo", value="${inputs.question}")})
    deep = b"[" * 100 + b"]" * 100
    right = b'"model": "asks", "messages": [{"role": "user", "content": "?"}]'
    bodies = [b"", b"{", b"[]", b'"x"', b"null", b'{"model": 1, "messages": 2}', b"\xff\xfe", deep]
    bodies += [b'{%s, "n": NaN}' % right, b'{%s, "model": "asks"}' % right, b'{%s, "a": %s}' % (right, deep)]
    type_ = {"Content-Type": "application/json"}
    with served(model) as url, httpx2.Client(base_url=url, timeout=30, trust_env=False) as http:
        for body in bodies:
            answer = http.post("/chat/completions", content=body, headers=type_)
            assert answer.status_code == 400, body
            assert answer.headers["content-type"] == "application/json"
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        named = http.post("/chat/completions", json={"model": "x" * 100_000, "messages": ASKED})
        assert (named.status_code, named.json()["error"]["param"]) == (400, "model")
        wrong = http.post("/chat/completions", json={"model": "asks", "messages": [{"role": "x"}] * 10_000})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "messages.0.role")
        assert max(len(named.content), len(wrong.content)) < 1_000
        large = b'{%s, "a": "%s"}' % (right, b"x" * 5_000_000)
        for status, answer in (
            (413, http.post("/chat/completions", content=large, headers=type_)),
            (
                415,
                http.post(
                    "/chat/completions", content=b"{%s}" % right, headers={"Content-Type": "text/plain"}
                ),
            ),
            (405, http.get("/chat/completions")),
            (404, http.get("/models/a/b/c")),
        ):
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")
        assert list_runs() == []
