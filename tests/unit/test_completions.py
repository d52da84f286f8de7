"""Workflows as models, in pure code: who receives the conversation, what was told, forms, how errors read."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from mosaic_queues.errors import InputError
from mosaic_queues.events import Event
from mosaic_tasks import Workflow
from mosaic_tasks.gateway import problems
from mosaic_tasks.gateway.completions.failures import (
    InOurWords,
    Refused,
    cause_of,
    of_failed_run,
    of_response,
)
from mosaic_tasks.gateway.completions.formats import guarantees, is_object
from mosaic_tasks.gateway.completions.models import Models, NoModel, model_of, text_of
from mosaic_tasks.gateway.completions.replies import Envelope, finish_of, usage_of
from mosaic_tasks.gateway.completions.telling import AnswerChanged, Telling

TEXT: dict[str, Any] = {"type": "string"}
CONVERSATION = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "First?"},
    {"role": "user", "content": "Second?"},
    {"role": "assistant", "content": "Perhaps"},
]


def workflow(node: dict[str, Any] | None = None, **inputs: Any) -> Workflow:
    name = next(iter(inputs), "none")
    made = node or {"agent": {"prompt": f"{{{{ inputs.{name} }}}}", "model": "extractive"}}
    data = {"name": "asked", "inputs": inputs, "nodes": {"answer": made}, "output": "answer"}
    return Workflow.from_data(data)


# -- who receives the conversation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "receiver"),
    [
        ({"messages": "array", "prompt": {**TEXT, "default": ""}}, "messages"),
        ({"messages": "any"}, "messages"),
        ({"messages": TEXT}, "messages"),  # a text like any other
        ({"prompt": TEXT, "tone": {**TEXT, "default": "dry"}}, "prompt"),
        ({"question": {**TEXT, "default": "?"}, "tone": {**TEXT, "default": "dry"}}, "question"),
        ({"topic": TEXT, "tone": {**TEXT, "default": "dry"}}, "topic"),
        ({"topic": {**TEXT, "default": "x"}, "count": {"type": "integer", "default": 1}}, "topic"),
        ({"topic": TEXT, "tone": {"type": "string", "enum": ["dry"], "default": "dry"}}, "topic"),
    ],
)
def test_the_input_that_receives_the_conversation(inputs: dict[str, Any], receiver: str) -> None:
    model = model_of(workflow(**inputs))
    assert model.receiver == receiver
    assert set(model.inputs(CONVERSATION, {})) == set(inputs)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({}, "give it an input 'messages'"),
        ({"count": "integer"}, "give it an input 'messages'"),
        ({"one": {**TEXT, "default": ""}, "two": {**TEXT, "default": ""}}, "single text input"),
        ({"prompt": TEXT, "count": "integer"}, "its input 'count' has no default"),
    ],
)
def test_a_workflow_that_is_no_model_says_why(inputs: dict[str, Any], why: str) -> None:
    flow = workflow({"tool": "tests.integration.run_tools:one"}, **inputs)
    models = Models({"asked": flow})
    assert list(models) == []
    with pytest.raises(NoModel, match=why):
        models.named("asked")
    with pytest.raises(NoModel, match="there is no model 'other'"):
        models.named("other")


def test_a_text_input_gets_the_last_question_and_messages_get_all() -> None:
    last = model_of(workflow(topic=TEXT, count={"type": "integer", "default": 1}))
    assert last.inputs(CONVERSATION, {"count": 2}) == {"topic": "Second?", "count": 2}
    with pytest.raises(InputError, match="no message is of the role 'user'"):
        last.inputs(CONVERSATION[:1], {})
    with pytest.raises(InputError, match="receives the messages"):
        last.inputs(CONVERSATION, {"topic": "mine"})
    with pytest.raises(InputError, match="no input 'other'"):
        last.inputs(CONVERSATION, {"other": 1})
    assert model_of(workflow(messages="array")).inputs(CONVERSATION[:1], {}) == {"messages": CONVERSATION[:1]}


def test_only_prose_is_told_as_it_is_written() -> None:
    schema = {"type": "object", "properties": {"a": TEXT}}
    asks = {"prompt": "{{ inputs.topic }}", "model": "extractive"}
    assert model_of(workflow({"agent": asks}, topic=TEXT)).streams
    assert not model_of(workflow({"agent": {**asks, "output": schema}}, topic=TEXT)).streams
    items = {"tool": "tests.integration.stream_tools:numbers", "with": {"n": 1}}
    assert not model_of(workflow(items, topic={**TEXT, "default": ""})).streams


@pytest.mark.parametrize(
    ("output", "text"),
    [("a <b>", "a <b>"), (None, ""), ({"ä": [1, None]}, '{"ä":[1,null]}'), (False, "false")],
)
def test_any_output_has_a_text(output: Any, text: str) -> None:
    assert text_of(output) == text


# -- what was told -------------------------------------------------------------------------------------------------


def test_what_is_said_again_is_not_told_again() -> None:
    telling = Telling()
    assert telling.hear(0, "Hello ") == "Hello "
    assert telling.hear(6, "wor") == "wor"
    assert telling.hear(0, "Hel") == ""
    assert telling.hear(3, "lo world") == "ld"
    assert telling.end("Hello world.") == "."
    assert telling.told == "Hello world."


@pytest.mark.parametrize(("place", "text"), [(0, "Help"), (3, "p"), (4, "o w"), (0, "Hello  ")])
def test_what_differs_cannot_be_told(place: int, text: str) -> None:
    telling = Telling()
    telling.hear(0, "Hello!")
    with pytest.raises(AnswerChanged):
        telling.hear(place, text)


@pytest.mark.parametrize("end", ["", "Hell", "Help!", "Hello?"])
def test_an_end_that_differs_is_noticed(end: str) -> None:
    telling = Telling()
    telling.hear(0, "Hello")
    if end.startswith("Hello"):
        assert telling.end(end) == end[5:]
    else:
        with pytest.raises(AnswerChanged):
            telling.end(end)


@given(st.lists(st.tuples(st.integers(0, 12), st.text("ab", max_size=4)), max_size=12))
def test_what_was_told_is_what_is_said_or_it_is_noticed(said: list[tuple[int, str]]) -> None:
    telling, text, told = Telling(), "", ""
    try:
        for place, piece in said:
            at = min(place, len(text))
            text = text[:at] + piece
            told += telling.hear(at, piece)
        told += telling.end(text)
    except AnswerChanged:
        return
    assert told == text == telling.told


# -- forms ---------------------------------------------------------------------------------------------------------

ANSWER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
    "required": ["n"],
}
NESTED = {
    "type": "object",
    "properties": {"one": {"$ref": "#/$defs/One"}},
    "required": ["one"],
    "$defs": {"One": ANSWER},
}


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        (ANSWER, True),
        ({**ANSWER, "title": "T", "description": "d", "additionalProperties": False}, True),
        ({}, True),
        ({"type": ["object", "null"]}, True),
        ({"type": "object", "properties": {"n": {"type": "number"}}}, True),
        (
            {"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}}}},
            True,
        ),
        ({"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a"]}}}}, False),
        ({"type": "object", "properties": {"n": {"type": "string"}}}, False),
        ({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}}, False),
        ({**ANSWER, "required": ["n", "tags"]}, False),
        ({"type": "object", "properties": {"n": {}}, "additionalProperties": False}, False),
        ({"type": "object", "properties": {"n": {}}, "additionalProperties": {"type": "integer"}}, False),
        ({"type": "array"}, False),
        ({"anyOf": [ANSWER]}, False),
        ({"$ref": "http://127.0.0.1/schema"}, False),
        ({"$ref": "#"}, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, False),
        ({"type": "object", "properties": 3}, False),
        ({"type": {}}, False),
        ({"type": "object", "properties": {"n": {"enum": "1"}}}, False),
        ({"type": "object", "required": "n"}, False),
        ({"type": "object", "patternProperties": {"(a+)+$": False}}, False),
        (True, False),
        ([], False),
    ],
)
def test_a_form_that_is_wanted(wanted: Any, holds: bool) -> None:
    assert guarantees(ANSWER, wanted) is holds


def test_forms_are_followed_through_definitions_on_both_sides() -> None:
    assert guarantees(NESTED, {"type": "object", "properties": {"one": ANSWER}, "required": ["one"]})
    assert guarantees(NESTED, {**NESTED, "$defs": {"One": {"type": "object"}}})
    assert not guarantees(NESTED, {**NESTED, "$defs": {"One": {"type": "string"}}})
    assert not guarantees({"type": "string"}, ANSWER)
    assert not guarantees({}, ANSWER)
    assert is_object(ANSWER)
    assert not is_object({"type": ["object", "null"]})


def test_a_form_that_refers_to_itself_takes_no_time() -> None:
    turns = {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}}
    own = {**turns, "$defs": {"T": turns}}
    assert guarantees(own, {"type": "object"})
    assert not guarantees(own, own)  # not told beyond a depth


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "required",
                    "items",
                    "enum",
                    "const",
                    "anyOf",
                    "$ref",
                    "$defs",
                    "n",
                    "pattern",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_form_is_answered(wanted: Any) -> None:
    assert guarantees(ANSWER, wanted) in (True, False)
    assert guarantees(NESTED, wanted) in (True, False)


# -- answers -------------------------------------------------------------------------------------------------------


def used(call: str, read: int, written: int, cached: int = 0, finish: str = "stop") -> Event:
    return Event("1-1/0", 1, "usage", (call,), tokens=(read, written), cached_tokens=cached, finish=finish)


def test_the_tokens_of_all_calls_count_and_the_output_node_says_why_it_ended() -> None:
    events = [
        used("1.0", 5, 2, 4),
        used("2", 7, 3, finish="length"),
        used("2", 1, 1),
        used("12", 0, 0, finish="length"),
    ]
    assert usage_of(events).model_dump() == {
        "prompt_tokens": 13,
        "completion_tokens": 6,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert finish_of(events, 2) == "stop"
    assert finish_of(events[:2], 2) == "length"
    assert finish_of(events, 12) == "length"
    assert finish_of([], 0) == "stop"
    assert finish_of([used("3.0", 1, 1, finish="length"), used("3.1", 1, 1)], 3) == "length"
    assert finish_of([used("3.0", 1, 1, finish="length"), used("3.0.~", 1, 1)], 3) == "stop"


def test_a_stream_says_its_usage_where_that_was_asked_for() -> None:
    for counts in (False, True):
        envelope = Envelope("run", "model", 1, counts)
        raw = envelope.opening() + envelope.more("a\n\nb") + envelope.ending("stop", usage_of([]))
        events = [line.removeprefix("data: ") for line in raw.decode().split("\n\n")[:-1]]
        assert events.pop() == "[DONE]"
        chunks = [json.loads(event) for event in events]
        assert all(("usage" in chunk) is counts for chunk in chunks)
        assert chunks[1]["choices"][0]["delta"] == {"content": "a\n\nb"}
        assert [chunk["choices"] == [] for chunk in chunks] == [False, False, False, *[True] * counts]


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cause", "status", "code"),
    [
        ("node 'a': ContextTooLong: 9 of 8", "ContextTooLong", 400, "context_length_exceeded"),
        ("node 'a', item 3: EngineOverloaded: busy", "EngineOverloaded", 503, "engine_overloaded"),
        ("node 'a': CallTimeout: it ran longer", "CallTimeout", 504, "timeout"),
        ("node 'a': ToolError: ValueError: ContextTooLong: no", "ToolError", 500, "run_failed"),
        ("not finished within its deadline of 3 s", "", 500, "run_failed"),
    ],
)
def test_a_failed_run_is_told_by_its_cause(error: str, cause: str, status: int, code: str) -> None:
    refused = of_failed_run(error)
    assert cause_of(error) == cause
    assert (refused.status, refused.code, refused.message) == (status, code, error)
    assert (refused.headers.get("x-should-retry") == "false") is (status != 503)


def test_a_problem_is_said_in_the_words_of_this_api() -> None:
    problem = problems.problem(
        HTTPStatus.UNPROCESSABLE_ENTITY, "does not fit", errors=[{"loc": ["body", "messages", 0], "msg": "x"}]
    )
    refused = of_response(problem)
    assert refused.body() == {
        "error": {
            "message": "does not fit",
            "type": "invalid_request_error",
            "param": "messages.0",
            "code": None,
        }
    }
    assert refused.status == 400
    away = of_response(problems.problem(HTTPStatus.SERVICE_UNAVAILABLE, "away", headers={"Retry-After": "2"}))
    assert (away.status, away.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [("/v1/chat/completions", True), ("/v1/models/a/b", True), ("/v1/modelsx", False), ("/v1/runs", False)],
)
def test_only_the_routes_of_this_api_speak_so(path: str, is_ours: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await problems.problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large")(scope, receive, send)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "path": path, "headers": []}
    asyncio.run(InOurWords(app)(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    headers = dict(sent[0]["headers"])
    assert ("error" in json.loads(body)) is is_ours
    assert sent[0]["status"] == 413
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"content-type"] == (b"application/json" if is_ours else b"application/problem+json")


def test_what_is_wrong_with_a_request_has_a_type() -> None:
    kinds = {
        status: Refused(HTTPStatus(status), "x").body()["error"]["type"]
        for status in (400, 401, 403, 404, 429, 500)
    }
    assert kinds == {
        400: "invalid_request_error",
        401: "invalid_request_error",
        403: "permission_error",
        404: "invalid_request_error",
        429: "rate_limit_error",
        500: "server_error",
    }
