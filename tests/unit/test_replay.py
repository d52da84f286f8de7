"""Recorded answers: which of them answers, at which pace, and how engines continue one that broke off.

Time is virtual: it passes only while the loop has nothing to do, so each piece comes at an exact moment.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_clock import run as run_from

from mosaic_queues.errors import CallTimeout, ConfigurationError, EngineRefused
from mosaic_tasks.definition.plan import AgentPlan
from mosaic_tasks.engines.extractive import ExtractiveEngine
from mosaic_tasks.engines.protocol import (
    Completion,
    Engine,
    EngineRequest,
    Events,
    Finished,
    Message,
    TextDelta,
    Usage,
    complete,
    continues,
)
from mosaic_tasks.engines.recordings import Recording
from mosaic_tasks.engines.registry import ModelName, close_engines, engine_for, model_name
from mosaic_tasks.engines.replay import ReplayEngine, performance, record
from mosaic_tasks.execution.agents import run_agent

Heard = list[tuple[float, str]]

ANSWERS = Path(__file__).parents[3] / "shared" / "data" / "answers" / "gsm8k-dev.jsonl.gz"

WORDS = {"key": "a", "text": "One two three four", "first_token_s": 0.5, "tokens_per_s": 2.0}
DELTAS = {"key": "a", "text": "One two three", "deltas": [[0.5, "One"], [0.75, " two th"], [2.0, "ree"]]}
FACTS = "Write.\n\nFACTS:\n- The parser works\n- The crash was fixed on Monday\n\n- Nobody was hurt"


run = partial(run_from, begins_s=100.0)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def write(file: Path, *recordings: dict[str, Any]) -> str:
    file.write_text("".join(f"{json.dumps(one)}\n" for one in recordings), encoding="utf-8")
    return str(file)


def asking(name: str, prompt: str = "What?", *, key: str | None = "a", **options: Any) -> EngineRequest:
    metadata = {} if key is None else {"replay": key}
    return EngineRequest((Message("user", prompt),), model=name, metadata=metadata, **options)


async def hear(engine: Engine, request: EngineRequest, *, pause_s: float = 0.0) -> tuple[Heard, Finished]:
    """What came, with its seconds since the start; the listener pauses after the first piece."""
    start, heard = now(), Heard()
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            if isinstance(event, Finished):
                return heard, event
            heard.append((round(now() - start, 6), event.text))
            if len(heard) == 1:
                await asyncio.sleep(pause_s)
    raise AssertionError("no end")


def heard(request: EngineRequest, *, speed: float = 1.0, pause_s: float = 0.0) -> Heard:
    return run(hear(ReplayEngine(speed=speed), request, pause_s=pause_s))[0]


def answer(request: EngineRequest, *, speed: float = 0.0) -> Completion:
    return run(complete(ReplayEngine(speed=speed or float("inf")), request))


def texts(name: str, prompt: str, **options: Any) -> str:
    return answer(asking(name, prompt, **options)).text


def refusal(request: EngineRequest) -> str:
    with pytest.raises(EngineRefused) as caught:
        answer(request)
    return str(caught.value)


# Pace


def test_tokens_come_at_their_rate_after_the_first(file: Path) -> None:
    assert heard(asking(write(file, WORDS))) == [
        (0.5, "One"),
        (0.875, " two"),
        (1.375, " three"),
        (2.125, " four"),
    ]


def test_the_tokens_that_were_counted_set_how_long_the_whole_takes(file: Path) -> None:
    counted = {**WORDS, "usage": {"input_tokens": 7, "output_tokens": 9}}
    assert [at_s for at_s, _ in heard(asking(write(file, counted)))] == [0.5, 1.25, 2.25, 3.75]


def test_recorded_deltas_come_as_they_came(file: Path) -> None:
    assert heard(asking(write(file, DELTAS))) == [(0.5, "One"), (0.75, " two th"), (2.0, "ree")]


def test_a_slow_listener_does_not_shift_what_follows(file: Path) -> None:
    assert heard(asking(write(file, DELTAS)), pause_s=1.0) == [(0.5, "One"), (1.5, " two th"), (2.0, "ree")]


def test_without_a_rate_all_comes_at_the_first_token(file: Path) -> None:
    name = write(file, {"key": "a", "text": "One two", "first_token_s": 0.5})
    assert heard(asking(name)) == [(0.5, "One"), (0.5, " two")]


def test_reading_the_input_delays_the_first_token(file: Path) -> None:
    counted = {"input_tokens": 30, "output_tokens": 4}
    name = write(file, {**DELTAS, "prefill_tokens_per_s": 20.0, "usage": counted})
    assert [at_s for at_s, _ in heard(asking(name))] == [2.0, 2.25, 3.5]


def test_an_empty_answer_ends_when_its_first_token_was_due(file: Path) -> None:
    async def ended_s(name: str) -> float:
        start = now()
        pieces, _ = await hear(ReplayEngine(speed=1.0), asking(name))
        assert pieces == []
        return now() - start

    assert run(ended_s(write(file, {"key": "a", "text": "", "first_token_s": 3.0}))) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("told", "times"),
    [
        (None, [0.5, 0.75, 2.0]),
        ("", [0.5, 0.75, 2.0]),
        ("10", [0.05, 0.075, 0.2]),
        ("0.5", [1.0, 1.5, 4.0]),
        ("0", [0.0, 0.0, 0.0]),
        ("max", [0.0, 0.0, 0.0]),
    ],
)
def test_the_environment_sets_the_speed(
    told: str | None, times: list[float], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOSAIC_REPLAY_SPEED", raising=False)
    if told is not None:
        monkeypatch.setenv("MOSAIC_REPLAY_SPEED", told)
    pieces, _ = run(hear(ReplayEngine(), asking(write(file, DELTAS))))
    assert [at_s for at_s, _ in pieces] == times


@pytest.mark.parametrize("told", ["fast", "-1", "nan"])
def test_a_speed_that_is_none_is_refused(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_REPLAY_SPEED", told)
    with pytest.raises(ConfigurationError, match=rf"MOSAIC_REPLAY_SPEED='{told}'.*'max' for no waiting"):
        ReplayEngine()


@given(st.text(max_size=60))
def test_the_pieces_make_up_the_text_in_order_of_time(text: str) -> None:
    pieces, _ = performance(Recording(key="a", text=text, tokens_per_s=5.0), asking(""))
    assert "".join(piece for _, piece in pieces) == text
    assert pieces == sorted(pieces, key=lambda piece: piece[0])
    assert max(len(piece.strip()) for _, piece in pieces) <= 7


# Which recording


def test_a_key_names_its_recording_whatever_the_prompt(file: Path) -> None:
    name = write(file, {"key": "b", "text": "b", "match": ["What"]}, {"key": "a", "text": "a"})
    assert [texts(name, "What?", key=key) for key in ("a", "b")] == ["a", "b"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("the risk", "general"),
        ("the risk in Asia", "specific"),
        ("Asia", "fallback"),
        ("How large is the market share in Europe?", "long"),
        ("How large is the market share?", "fallback"),
    ],
)
def test_the_most_specific_match_answers(prompt: str, expected: str, file: Path) -> None:
    recordings = [
        {"match": [""], "text": "fallback"},
        {"match": ["risk"], "text": "general"},
        {"match": ["risk", "Asia"], "text": "specific"},
        {"match": ["is the market share in Europe?", "How"], "text": "long"},
    ]
    assert texts(write(file, *recordings), prompt, key=None) == expected
    assert texts(write(file, *reversed(recordings)), prompt, key=None) == expected


def test_only_the_last_message_of_the_user_is_matched(file: Path) -> None:
    name = write(file, {"match": ["first"], "text": "1"}, {"match": ["second"], "text": "2"})
    said = (Message("user", "the first long"), Message("assistant", "first"), Message("user", "second"))
    assert answer(EngineRequest((*said, Message("assistant", "first")), model=name)).text == "2"


@pytest.mark.parametrize("key", ["a", None])
def test_the_seed_chooses_among_samples(key: str | None, file: Path) -> None:
    name = write(file, *({"key": "a", "match": ["What"], "text": text} for text in "xyz"))
    seeds = [None, 0, 1, 2, 3, -1]
    assert "".join(texts(name, "What?", key=key, seed=seed) for seed in seeds) == "xxyzxz"


def test_a_directory_stands_for_its_files_together(tmp_path: Path) -> None:
    write(tmp_path / "2.jsonl", {"key": "a", "match": ["What"], "text": "2"})
    write(tmp_path / "1.jsonl", {"key": "a", "match": ["What"], "text": "1"}, {"match": ["W"], "text": "3"})
    (tmp_path / "notes.txt").write_text("no recording")
    for key in ("a", None):
        assert [texts(str(tmp_path), "What?", key=key, seed=seed) for seed in (0, 1)] == ["1", "2"]


def test_a_file_is_read_once_and_again_when_it_changed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    read_bytes = Path.read_bytes

    def counted(self: Path) -> bytes:
        reads.append(self)
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", counted)
    name = write(file, {"key": "a", "text": "old"})
    assert [texts(name, "What?") for _ in range(3)] == ["old"] * 3
    write(file, {"key": "a", "text": "newer"})
    assert texts(name, "What?") == "newer"
    assert reads == [file, file]


def test_a_relative_name_is_one_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("one", "two"):
        (tmp_path / text).mkdir()
        monkeypatch.chdir(tmp_path / text)
        write(Path("answers.jsonl"), {"key": "a", "text": text})
        os.utime("answers.jsonl", (0, 0))
        assert texts("answers.jsonl", "What?") == text


def test_an_unknown_key_is_told_with_file_prompt_and_nearest(file: Path) -> None:
    name = write(
        file, {"key": "tickets-1", "text": ""}, {"key": "zebra", "text": ""}, {"key": "xyz", "text": ""}
    )
    said = refusal(asking(name, "Who did it? " * 20, key="ticket-1"))
    assert all(
        part in said for part in (name, "'ticket-1'", "'Who did it? Who", "...'", "nearest: 'tickets-1'")
    )
    assert len(said) < 400


def test_a_prompt_that_nothing_fits_is_told_with_the_nearest(file: Path) -> None:
    far = {"key": "far", "match": ["quarterly revenue"], "text": ""}
    near = {"key": "near", "match": ["weather in Rome"], "text": ""}
    said = refusal(asking(write(file, far, near), "weather in Roma", key=None))
    assert "the prompt 'weather in Roma'; nearest: 'near'" in said
    unnamed = refusal(asking(write(file, {"match": ["weather", "in"], "text": ""}), "whether", key=None))
    assert "nearest: 'weather + in'" in unnamed


@pytest.mark.parametrize("content", [b"", b"\n \r\n"])
def test_a_file_without_recordings_says_so(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    assert f"{str(file)!r} holds no recording" in refusal(asking(str(file)))


def test_a_directory_without_recordings_says_so(tmp_path: Path) -> None:
    assert f"{str(tmp_path)!r} holds no recording" in refusal(asking(str(tmp_path)))


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    assert f"{str(file)!r} cannot be read: No such file" in refusal(asking(str(file)))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"key": "a", "text": "cut', "truncated"),
        (b"\xff\xfe", ""),
        (b'{"text": "a"}', "neither `key` nor `match`"),
        (b'{"key": "a"}', "text"),
        (b'{"key": "a", "text": "", "tokens_per_sec": 3}', "tokens_per_sec"),
        (b'{"key": "a", "text": "", "tokens_per_s": 0}', "tokens_per_s"),
        (b'{"key": "a", "text": "", "first_token_s": -1}', "first_token_s"),
        (b'{"key": "a", "text": "", "finish_reason": "bored"}', "bored"),
        (b'{"key": "a", "text": "ab", "deltas": [[0, "a"]]}', "`deltas` do not make up `text`"),
        (b'{"key": "a", "text": "ab", "deltas": [[2, "a"], [1, "b"]]}', "times of `deltas` go back"),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(line: bytes, told: str, file: Path) -> None:
    file.write_bytes(b'{"key": "a", "text": "good"}\n\n' + line + b"\n")
    said = refusal(asking(str(file)))
    assert said.startswith(f"{file}:3: no recording: ")
    assert told in said


# Limits, usage, errors of a stream


@pytest.mark.parametrize(
    ("options", "text", "reason", "tokens"),
    [
        ({}, "One two three four", "stop", 5),
        ({"max_tokens": 2}, "One two ", "length", 2),
        ({"max_tokens": 50}, "One two three four", "stop", 5),
        ({"stop": ("four", "th", "")}, "One two ", "stop", 2),
        ({"max_tokens": 1, "stop": ("th",)}, "One ", "length", 1),
    ],
)
def test_limits_end_the_answer(
    options: dict[str, Any], text: str, reason: str, tokens: int, file: Path
) -> None:
    expected = Completion(text, Usage(2, tokens, 0.0, estimated=True), reason)  # type: ignore[arg-type]
    assert answer(asking(write(file, WORDS), **options)) == expected


def test_recorded_tokens_and_ends_are_told_as_recorded(file: Path) -> None:
    counted = {"input_tokens": 70, "output_tokens": 9}
    name = write(file, {**WORDS, "usage": counted, "finish_reason": "length"})
    assert answer(asking(name)) == Completion("One two three four", Usage(70, 9, 0.0), "length")
    cut = answer(asking(name, max_tokens=3))
    assert cut == Completion("One tw", Usage(70, 3, 0.0, estimated=True), "length")
    assert answer(asking(name, stop=("three",))).finish_reason == "stop"


def test_an_answer_that_takes_too_long_times_out_when_the_time_is_up(file: Path) -> None:
    async def main(name: str) -> tuple[list[str], float]:
        start, seen = now(), list[str]()
        with pytest.raises(CallTimeout, match=r"within 1\.5 s"):
            await complete(ReplayEngine(speed=1.0), asking(name, timeout_s=1.5), on_delta=seen.append)
        return seen, round(now() - start, 6)

    assert run(main(write(file, DELTAS))) == (["One", " two th"], 1.5)
    assert answer(asking(write(file, DELTAS), timeout_s=2.0), speed=1.0).text == DELTAS["text"]


def test_cancelling_ends_the_wait_at_once(file: Path) -> None:
    async def main(name: str) -> float:
        begun = asyncio.Event()
        request = asking(name)
        task = asyncio.create_task(complete(ReplayEngine(speed=1.0), request, on_delta=lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return now()

    assert run(main(write(file, DELTAS))) == pytest.approx(100.5)


def test_without_waiting_others_still_get_their_turn(file: Path) -> None:
    async def main(name: str) -> list[str]:
        order: list[str] = []
        engine = ReplayEngine(speed=float("inf"))
        asked = [complete(engine, asking(name), on_delta=order.append) for _ in range(2)]
        await asyncio.gather(*asked)
        return order

    assert run(main(write(file, {"key": "a", "text": "One two"}))) == ["One", "One", " two", " two"]


def test_an_agent_gets_its_fields_from_a_recording(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_REPLAY_SPEED", "max")
    name = write(file, {"match": ["Rome"], "text": 'Here: {"warm": true}'})
    schema = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}
    agent = AgentPlan(prompt="Weather in {{ city }}?", output_schema=schema, model=f"replay:{name}")

    async def main() -> tuple[Any, str]:
        told = await run_agent(agent, {"city": "Rome"})
        await close_engines()
        return told.value, told.model

    assert asyncio.run(main()) == ({"warm": True}, f"replay:{name}")


def test_the_registry_knows_it_and_asks_for_its_file() -> None:
    async def engine_name() -> str:
        engine = engine_for("replay:answers.jsonl")
        await close_engines()
        return engine.name

    assert asyncio.run(engine_name()) == "replay"
    assert model_name("replay:/a/b:c.jsonl") == ModelName("replay", "/a/b:c.jsonl")
    with pytest.raises(EngineRefused, match=r"names no file; write 'replay:<name of the file>'"):
        model_name("replay")
    with pytest.raises(EngineRefused, match=r"known: .*'replay:<file>'.*; did you mean 'replay'"):
        model_name("reply:x")


# Continuing from a prefix


@pytest.mark.parametrize("recorded", [WORDS, DELTAS])
def test_from_any_prefix_the_rest_follows_with_a_first_token_of_its_own(
    recorded: dict[str, Any], file: Path
) -> None:
    name, text = write(file, recorded), recorded["text"]
    for cut in range(len(text) + 1):
        pieces = heard(asking(name, prefix=text[:cut]))
        assert "".join(piece for _, piece in pieces) == text[cut:]
        assert cut == len(text) or pieces[0][0] == 0.5


def test_the_rest_keeps_its_gaps(file: Path) -> None:
    assert heard(asking(write(file, DELTAS), prefix="One tw")) == [(0.5, "o th"), (1.75, "ree")]


def test_a_continued_answer_is_whole_and_its_prefix_is_read_not_written(file: Path) -> None:
    name = write(file, WORDS)
    continued = answer(asking(name, prefix="One two "))
    assert continued == Completion("One two three four", Usage(2 + 2, 3, 0.0, estimated=True), "stop")
    counted = write(file, {**WORDS, "usage": {"input_tokens": 70, "output_tokens": 9}})
    assert answer(asking(counted, prefix="One two ")).usage == Usage(72, 5, 0.0, estimated=True)


def test_limits_hold_for_prefix_and_rest_together(file: Path) -> None:
    request = asking(write(file, WORDS), prefix="One tw", max_tokens=2)
    assert (answer(request).text, answer(request).finish_reason) == ("One two ", "length")


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ("One too", "at character 5 it reads 'oo', the answer 'wo three four'"),
        ("One two three four five", "at character 18 it reads ' five', the answer ''"),
    ],
)
def test_a_prefix_of_another_answer_is_refused(prefix: str, told: str, file: Path) -> None:
    said = refusal(asking(write(file, WORDS), prefix=prefix))
    assert f"'replay' cannot continue from the prefix: {told}" in said


@pytest.mark.parametrize("options", [{}, {"max_tokens": 9}, {"stop": ("fixed",)}])
def test_the_extractive_engine_continues_from_any_prefix(options: dict[str, Any]) -> None:
    request = EngineRequest((Message("user", FACTS),), **options)
    whole = run(complete(ExtractiveEngine(), request))
    for cut in range(len(whole.text) + 1):
        rest: list[str] = []
        continued = msgspec.structs.replace(request, prefix=whole.text[:cut])
        again = run(complete(ExtractiveEngine(), continued, on_delta=rest.append))
        assert "".join(rest) == whole.text[cut:]
        assert (again.text, again.finish_reason) == (whole.text, whole.finish_reason)


def test_the_extractive_engine_refuses_a_prefix_of_another_answer() -> None:
    request = EngineRequest((Message("user", FACTS),), prefix="The parser fails")
    with pytest.raises(EngineRefused, match=r"'extractive' cannot continue.*it reads 'fails'"):
        run(complete(ExtractiveEngine(), request))


def test_an_engine_that_does_not_continue_is_given_no_prefix() -> None:
    class Forgetful:
        name = "forgetful"

        async def aclose(self) -> None: ...

        async def stream(self, request: EngineRequest) -> Events:
            yield TextDelta("from the start")
            yield Finished("stop", Usage())

    assert continues(ReplayEngine(speed=1.0))
    assert continues(ExtractiveEngine())
    assert not continues(Forgetful())
    assert run(complete(Forgetful(), EngineRequest(()))).text == "from the start"
    with pytest.raises(EngineRefused, match="'forgetful' cannot continue an answer"):
        run(complete(Forgetful(), EngineRequest((), prefix="from")))


# Making recordings


def test_what_is_recorded_replays_the_same(file: Path, tmp_path: Path) -> None:
    counted = {"input_tokens": 70, "output_tokens": 9}
    text = "Grüße 👩‍👩‍👧 an 你好世界，再见 e\u0301!"
    name = write(file, {**WORDS, "text": text, "usage": counted, "finish_reason": "length"})
    copy = tmp_path / "copy.jsonl"

    async def main() -> None:
        for key in ("one", "two"):
            await record(copy, ReplayEngine(speed=1.0), asking(name), key=key, match=["What"])

    run(main())
    lines = [msgspec.json.decode(line, type=Recording) for line in copy.read_bytes().splitlines()]
    assert [(line.key, line.match, line.model) for line in lines] == [
        ("one", ("What",), name),
        ("two", ("What",), name),
    ]
    assert heard(asking(str(copy), key="one")) == heard(asking(name))
    assert (
        answer(asking(str(copy), key="two"))
        == answer(asking(name))
        == Completion(text, Usage(70, 9, 0.0), "length")
    )


def test_estimated_tokens_are_not_recorded_as_counted(file: Path) -> None:
    run(record(file, ExtractiveEngine(), EngineRequest((Message("user", FACTS),)), key="a"))
    assert "usage" not in json.loads(file.read_bytes())
    assert answer(asking(str(file), FACTS)).text.startswith("The parser works.")


def test_real_answers_are_replayed_as_they_were(tmp_path: Path) -> None:
    if not ANSWERS.exists():
        pytest.skip(f"no recorded answers of real models in {ANSWERS.parent}")
    with gzip.open(ANSWERS, "rt", encoding="utf-8") as lines:
        rows = [json.loads(next(lines)) for _ in range(20)]
    models = sorted(rows[0]["outputs"])
    for model in models:
        profile = {"first_token_s": 0.35, "tokens_per_s": 45.0, "model": model}
        write(
            tmp_path / f"{model}.jsonl",
            *({"match": [row["question"]], "text": row["outputs"][model], **profile} for row in rows),
        )
    for row in rows:
        for seed, model in enumerate(models):
            prompt, text = f"Question: {row['question']}\nAnswer in JSON.", row["outputs"][model]
            of_model = str(tmp_path / f"{model}.jsonl")
            assert texts(of_model, prompt, key=None) == text
            assert texts(str(tmp_path), prompt, key=None, seed=seed) == text
            assert texts(of_model, prompt, key=None, prefix=text[: len(text) // 3]) == text
    pieces = heard(asking(str(tmp_path / f"{models[0]}.jsonl"), rows[0]["question"], key=None))
    tokens = len(rows[0]["outputs"][models[0]]) / 4
    assert pieces[0][0] == 0.35
    assert 0.35 + (tokens - 3) / 45 <= pieces[-1][0] <= 0.35 + tokens / 45
