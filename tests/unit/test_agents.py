"""Agents: rendering, JSON in answers, repair, usage, and which engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from mosaic_queues.errors import CallTimeout, EngineError, EngineRefused, OutputInvalid
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.engines.protocol import (
    EngineRequest,
    Events,
    Finished,
    FinishReason,
    TextDelta,
    Usage,
    complete,
)
from mosaic_tasks.engines.registry import ModelName, close_engines, engine_for, model_name
from mosaic_tasks.engines.schema import mismatch
from mosaic_tasks.execution.agents import AgentAnswer, parse_answer, run_agent

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["people"],
    "properties": {
        "people": {
            "type": "array",
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        }
    },
}
GOOD = '{"people": [{"name": "Ada"}]}'


class Recorded:
    """An engine that gives recorded answers, in pieces of a few characters, and keeps what it was asked."""

    name = "recorded"

    def __init__(self, *answers: str, reason: FinishReason = "stop", cost_usd: float | None = 0.5) -> None:
        self.requests: list[EngineRequest] = []
        self._answers = list(answers)
        self._reason = reason
        self._cost_usd = cost_usd

    async def stream(self, request: EngineRequest) -> Events:
        self.requests.append(request)
        answer = self._answers.pop(0)
        for start in range(0, len(answer), 7):
            yield TextDelta(answer[start : start + 7])
        yield Finished(self._reason, Usage(10, 3, self._cost_usd))

    async def aclose(self) -> None:
        """Holds nothing."""


def run(agent: AgentPlan, engine: Recorded | None = None, **options: Any) -> AgentAnswer:
    async def main() -> AgentAnswer:
        try:
            return await run_agent(agent, options.pop("names", {}), engine=engine, **options)
        finally:
            await close_engines()

    return asyncio.run(main())


def test_prompts_are_rendered_and_the_sampling_is_passed_on() -> None:
    agent = AgentPlan(
        prompt="About {{ person.name }}", system="You are {{ role }}.", model="recorded:m-1", temperature=0.5,
        max_tokens=9, seed=4, stop=("END",),
    )  # fmt: skip
    engine, pieces = Recorded("some text"), list[str]()
    answer = run(agent, engine, names={"person": {"name": "Ada"}, "role": "a writer"}, on_delta=pieces.append)
    (asked,) = engine.requests
    assert [(message.role, message.content) for message in asked.messages] == [
        ("system", "You are a writer."),
        ("user", "About Ada"),
    ]
    assert (asked.model, asked.temperature, asked.max_tokens, asked.seed, asked.stop) == (
        "m-1",
        0.5,
        9,
        4,
        ("END",),
    )
    assert answer == AgentAnswer("some text", Usage(10, 3, 0.5), "recorded:m-1", text="some text")
    assert pieces == ["some te", "xt"]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"Here [1] is what you asked for:\n\n```\n{GOOD}\n```\nI hope {{that}} helps.",
        f'<think>maybe {{"people": 3}}</think> The answer is {GOOD}.',
        f"[] {GOOD} []",
    ],
)
def test_json_is_found_amid_fences_and_prose(text: str) -> None:
    assert parse_answer(text, SCHEMA) == ({"people": [{"name": "Ada"}]}, None)


@pytest.mark.parametrize("text", ["no json", "{" * 5000, "[" * 100_000, '{"people": NaN}', ""])
def test_an_answer_without_json_says_so(text: str) -> None:
    value, wrong = parse_answer(text, SCHEMA)
    assert value is None
    assert wrong is not None
    assert wrong.startswith("no JSON is in the answer")
    assert len(wrong) < 200


def test_a_mismatch_names_the_field() -> None:
    assert mismatch({"people": [{"name": 5}]}, SCHEMA) == "field 'people[0].name': 5 is not of type 'string'"
    assert mismatch({"people": [{}]}, SCHEMA) == "field 'people[0].name': 'name' is a required property"
    assert str(mismatch(3, SCHEMA)).startswith("field '(the whole answer)'")


def test_a_schema_never_fetches_what_it_refers_to() -> None:
    with pytest.raises(EngineRefused, match=r"\$defs"):
        mismatch({}, {"$ref": "http://127.0.0.1:9/schema.json"})


def test_an_answer_that_fits_is_not_repaired() -> None:
    answer = run(AgentPlan(prompt="p", output_schema=SCHEMA), Recorded(GOOD))
    assert answer == AgentAnswer({"people": [{"name": "Ada"}]}, Usage(10, 3, 0.5), "recorded", text=GOOD)


def test_what_a_model_thinks_is_no_part_of_its_answer() -> None:
    pieces = list[str]()
    answer = run(AgentPlan(prompt="p"), Recorded("<think>well, hm</think>\n\nYes."), on_delta=pieces.append)
    assert (answer.value, answer.text, "".join(pieces)) == ("Yes.", "Yes.", "Yes.")


def test_a_repair_shows_the_model_its_answer_and_the_error_and_sums_the_usage() -> None:
    engine, pieces = Recorded('{"people": [{"name": 5}]}', GOOD), list[str]()
    answer = run(AgentPlan(prompt="p", output_schema=SCHEMA), engine, on_delta=pieces.append)
    assert answer == AgentAnswer(
        {"people": [{"name": "Ada"}]}, Usage(20, 6, 1.0), "recorded", repaired=True, text=GOOD
    )
    asked, shown, correction = engine.requests[1].messages
    assert (asked.content, shown.role, shown.content) == ("p", "assistant", '{"people": [{"name": 5}]}')
    assert "'people[0].name'" in correction.content
    assert '"required"' in correction.content
    assert "".join(pieces) == '{"people": [{"name": 5}]}'


def test_a_second_wrong_answer_fails_and_names_the_field() -> None:
    with pytest.raises(OutputInvalid, match=r"'people'.*required") as told:
        run(AgentPlan(prompt="p", output_schema=SCHEMA), Recorded('{"people": 1}', "{}"))
    assert (told.value.model, told.value.usage) == ("recorded", Usage(20, 6, 1.0))


def test_the_cost_of_a_repair_is_unknown_where_one_cost_is() -> None:
    engine = Recorded("nothing", GOOD, cost_usd=None)
    assert run(AgentPlan(prompt="p", output_schema=SCHEMA), engine).usage == Usage(20, 6, None)


def test_a_cut_off_json_says_to_raise_max_tokens() -> None:
    engine = Recorded('{"people": [', reason="length")
    with pytest.raises(OutputInvalid, match=r"cut off.*max_tokens \(now 5\)"):
        run(AgentPlan(prompt="p", output_schema=SCHEMA, max_tokens=5), engine)


def test_a_cut_off_text_is_an_answer() -> None:
    assert run(AgentPlan(prompt="p"), Recorded("some", reason="length")).value == "some"


def test_an_empty_answer_may_be_tried_again() -> None:
    with pytest.raises(EngineError, match="empty") as caught:
        run(AgentPlan(prompt="p"), Recorded(" \n"))
    assert caught.value.retryable


def test_a_refused_answer_is_not_tried_again() -> None:
    with pytest.raises(EngineRefused, match="declined") as caught:
        run(AgentPlan(prompt="p"), Recorded("I ca", reason="refused"))
    assert not caught.value.retryable


def test_no_time_for_the_repair_is_a_timeout() -> None:
    class Slow(Recorded):
        async def stream(self, request: EngineRequest) -> Events:
            assert request.timeout_s is not None
            await asyncio.sleep(request.timeout_s)
            async for event in super().stream(request):
                yield event

    with pytest.raises(CallTimeout, match=r"within 0\.02 s"):
        run(AgentPlan(prompt="p", output_schema=SCHEMA), Slow("{}"), timeout_s=0.02)


def test_a_stream_without_an_end_is_an_error() -> None:
    class Endless(Recorded):
        async def stream(self, request: EngineRequest) -> Events:
            yield TextDelta("some")

    with pytest.raises(EngineError, match="without saying that it finished"):
        asyncio.run(complete(Endless(), EngineRequest(())))


@pytest.mark.parametrize(
    ("pieces", "prefix", "heard", "text", "thought"),
    [
        (("<thi", "nk>so</think>", " ", "Ye", "s <think>"), "", ["Ye", "s <think>"], "Yes <think>", "so"),
        (("", "<think>", "so </thi"), "", [], "", "so </thi"),
        ((" ", " <thi"), "", ["  <thi"], "  <thi", ""),
        (("<think>", "o"), "Y", ["<think>", "o"], "Y<think>o", ""),
    ],
    ids=["thought-first", "thought-alone", "tag-left-open", "continued"],
)
def test_what_is_heard_is_the_answer_alone_and_its_first_piece_is_told_before(
    pieces: tuple[str, ...], prefix: str, heard: list[str], text: str, thought: str
) -> None:
    class Writing(Recorded):
        continues = True

        async def stream(self, request: EngineRequest) -> Events:
            for piece in pieces:
                yield TextDelta(piece)
            yield Finished("stop", Usage(1, 1))

    told: list[str] = []
    asked = complete(
        Writing(),
        EngineRequest((), prefix=prefix),
        on_delta=told.append,
        on_first=lambda: told.append("first"),
    )
    answer = asyncio.run(asked)
    assert (answer.text, answer.reasoning) == (text, thought)
    assert told == (["first", *heard] if heard else [])


@pytest.mark.parametrize(
    ("model", "setting", "expected"),
    [
        (None, None, ModelName("extractive")),
        (None, "openai:gpt-x", ModelName("openai", "gpt-x")),
        ("extractive", "openai:gpt-x", ModelName("extractive")),
        ("openai:org/model:7b", None, ModelName("openai", "org/model:7b")),
    ],
)
def test_the_model_comes_from_the_agent_then_the_environment_then_the_default(
    model: str | None, setting: str | None, expected: ModelName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOSAIC_MODEL", raising=False)
    if setting is not None:
        monkeypatch.setenv("MOSAIC_MODEL", setting)
    assert model_name(model) == expected
    assert str(expected) == (model or setting or "extractive")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "openia:gpt-x",
            r"'openia'.*known: 'extractive', 'openai:<model>', 'replay:<file>', 'simulated:<model>', 'vllm:<model>'; "
            "did you mean 'openai'",
        ),
        ("gpt-x", r"no engine is called 'gpt-x'"),
        ("openai", r"names no model; write 'openai:<name"),
    ],
)
def test_an_unknown_engine_is_refused_with_the_known_ones(model: str, message: str) -> None:
    with pytest.raises(EngineRefused, match=message):
        model_name(model)


def test_an_openai_model_without_key_and_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(EngineRefused, match="OPENAI_API_KEY is not set"):
        run(AgentPlan(prompt="p", model="openai:gpt-x"))


def test_a_loop_has_one_engine_and_another_loop_another() -> None:
    async def engines() -> Sequence[object]:
        found = [engine_for("extractive"), engine_for("extractive")]
        await close_engines()
        return [*found, engine_for("extractive")]

    first, again, after_closing = asyncio.run(engines())
    (other, *_) = asyncio.run(engines())
    assert first is again
    assert len({id(first), id(after_closing), id(other)}) == 3


def test_the_default_engine_answers_from_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOSAIC_MODEL", raising=False)
    answer = run(AgentPlan(prompt="Write.\n\nFACTS:\n- {{ fact }}"), names={"fact": "It works"})
    assert (answer.value, answer.model, answer.usage.cost_usd) == ("It works.", "extractive", 0.0)
