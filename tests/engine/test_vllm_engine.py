"""A real vLLM engine: what it streams, what it refuses, and that it drops what nobody wants any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from mosaic_queues.errors import (
    CallTimeout,
    ConfigurationError,
    ContextTooLong,
    EngineError,
    EngineOverloaded,
    EngineRefused,
)
from mosaic_tasks.engines.protocol import EngineRequest, Finished, Message, TextDelta, complete
from mosaic_tasks.engines.vllm.engine import VLLMEngine
from tests.engine.hosting import Hosted, ask, hosted, small
from tests.engine.models import with_truncated_weights, without_config, write_model

Tiny = Hosted[VLLMEngine]

RUNNING = 4
CHUNK = 128
"""Tokens of a prompt that one step reads."""
ENDLESS = {"max_tokens": 900, "temperature": 1.0, "seed": 7}
ANSWER = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tiny(tiny_model: Path, tiny_adapter: Path) -> Iterator[Tiny]:
    """The tiny model with its adapter; four requests run at once."""
    spec = small(
        tiny_model,
        max_running=RUNNING,
        adapters={"tone": tiny_adapter},
        options={
            "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
            "max_num_batched_tokens": CHUNK,
        },
    )
    with hosted(VLLMEngine(spec)) as engine:
        yield engine


async def collect(engine: VLLMEngine, request: EngineRequest) -> tuple[list[str], Finished]:
    """The deltas and the end of an answer."""
    events = [event async for event in engine.stream(request)]
    assert isinstance(events[-1], Finished)
    return [event.text for event in events[:-1] if isinstance(event, TextDelta)], events[-1]


async def begin(engine: VLLMEngine, request: EngineRequest) -> Any:
    """A stream whose first text has come."""
    stream = engine.stream(request)
    await anext(stream)
    return stream


class TestAnswers:
    def test_deltas_are_the_answer_and_tokens_are_counted(self, tiny: Tiny) -> None:
        deltas, end = tiny.run(collect(tiny.engine, ask("Tell me about the week", max_tokens=24)))
        assert len(deltas) > 5
        assert (end.reason, end.usage.output_tokens, end.usage.estimated) == ("length", 24, False)
        assert end.usage.input_tokens > 5
        assert "".join(deltas) == tiny.run(complete(tiny.engine, ask("Tell me about the week"))).text

    def test_a_seed_repeats_an_answer(self, tiny: Tiny) -> None:
        def answer(seed: int) -> str:
            return tiny.run(complete(tiny.engine, ask("Go", temperature=1.0, seed=seed, top_p=0.9))).text

        assert answer(1) == answer(1) != answer(2)

    def test_a_stop_string_ends_the_answer_and_is_not_in_it(self, tiny: Tiny) -> None:
        whole = tiny.run(complete(tiny.engine, ask("Tell me"))).text
        stop = whole[len(whole) // 2 :][:4]
        deltas, end = tiny.run(collect(tiny.engine, ask("Tell me", stop=(stop,))))
        assert ("".join(deltas), end.reason) == (whole[: whole.index(stop)], "stop")

    def test_log_probabilities_come_for_each_token_if_asked(self, tiny: Tiny) -> None:
        asked = tiny.run(complete(tiny.engine, ask("Tell me", logprobs=True)))
        assert len(asked.logprobs) == asked.usage.output_tokens
        assert all(value <= 0 for value in asked.logprobs)
        assert tiny.run(complete(tiny.engine, ask("Tell me"))).logprobs == ()

    def test_no_character_is_torn(self, tiny: Tiny) -> None:
        """The tokenizer writes these letters byte by byte."""
        text = "naïve 日本語 🚀 Ωmega"
        deltas, _ = tiny.run(
            collect(tiny.engine, ask("Write", max_tokens=200, output_schema={"enum": [text]}))
        )
        assert "�" not in "".join(deltas)
        assert json.loads("".join(deltas)) == text

    def test_many_at_once(self, tiny: Tiny) -> None:
        async def many() -> list[Any]:
            return await asyncio.gather(*(complete(tiny.engine, ask(f"Item {n}")) for n in range(24)))

        assert [answer.usage.output_tokens for answer in tiny.run(many())] == [24] * 24
        load = tiny.engine.load()
        assert load.generated_tokens_s > 0 < load.ttft_s
        assert 0 < load.inter_token_s < load.ttft_s + 10
        assert (load.running, load.waiting, load.kv_use) == (0, 0, 0.0)
        assert load.slots == RUNNING


class TestContinuing:
    def test_only_the_rest_comes_and_the_prefix_counts(self, tiny: Tiny) -> None:
        prefix = "The team merged nine changes"
        deltas, end = tiny.run(collect(tiny.engine, ask("Report", prefix=prefix, max_tokens=40)))
        fresh = tiny.run(complete(tiny.engine, ask("Report", max_tokens=40)))
        read = end.usage.input_tokens - fresh.usage.input_tokens
        assert read > 0
        assert end.usage.output_tokens == 40 - read
        assert not "".join(deltas).startswith(prefix)

    def test_it_goes_on_as_the_answer_would_have(self, tiny: Tiny) -> None:
        whole, end = tiny.run(collect(tiny.engine, ask("Report", max_tokens=12)))
        # A prefix that the tokenizer takes apart as the model put it together.
        length = tiny.run(complete(tiny.engine, ask("Report", prefix=whole[0], max_tokens=12)))
        assert length.text.startswith(whole[0])
        assert length.usage.input_tokens + length.usage.output_tokens == (
            end.usage.input_tokens + end.usage.output_tokens
        )
        assert length.text == "".join(whole)

    def test_nothing_is_asked_when_the_prefix_is_the_whole_answer(self, tiny: Tiny) -> None:
        deltas, end = tiny.run(collect(tiny.engine, ask("Report", prefix="One two three four", max_tokens=2)))
        assert (deltas, end.reason, end.usage.output_tokens) == ([], "length", 0)

    def test_a_grammar_begins_at_the_start(self, tiny: Tiny) -> None:
        with pytest.raises(EngineRefused, match="ask again without a prefix"):
            tiny.run(complete(tiny.engine, ask("Report", prefix='{"colour": ', output_schema=ANSWER)))


class TestSchemas:
    def test_the_answer_fits(self, tiny: Tiny) -> None:
        answer = tiny.run(complete(tiny.engine, ask("Which?", max_tokens=100, output_schema=ANSWER)))
        value = json.loads(answer.text)
        assert value["colour"] in ("red", "blue")
        assert isinstance(value["sure"], bool)
        assert answer.finish_reason == "stop"

    @pytest.mark.parametrize(
        "schema", [{"type": "banana"}, {"type": "array", "items": {"$ref": "#/$defs/none"}}]
    )
    def test_one_that_no_grammar_can_be_made_of_is_refused(self, tiny: Tiny, schema: dict[str, Any]) -> None:
        with pytest.raises(EngineRefused, match=r"the output schema cannot be made a grammar of: \S+"):
            tiny.run(complete(tiny.engine, ask("Which?", output_schema=schema)))
        assert tiny.engine.load().running == 0


class TestAdapters:
    def test_the_same_base_answers_otherwise(self, tiny: Tiny) -> None:
        plain, toned, again = (
            tiny.run(complete(tiny.engine, ask("Tell me", adapter=name))).text
            for name in ("", "tone", "tone")
        )
        assert plain != toned == again

    def test_an_unknown_one_is_refused_with_those_there_are(self, tiny: Tiny) -> None:
        with pytest.raises(EngineRefused, match=r"no adapter 'tune'; there are: 'tone'\."):
            tiny.run(complete(tiny.engine, ask("Tell me", adapter="tune")))


class TestPrefixCache:
    def test_what_was_read_is_not_read_again(self, tiny: Tiny) -> None:
        question = "A first long question about the weekly report. " * 5
        first = tiny.run(complete(tiny.engine, ask(question)))
        second = tiny.run(complete(tiny.engine, ask(question)))
        assert (first.usage.cached_tokens, first.text) == (0, second.text)
        assert 0 < second.usage.cached_tokens < second.usage.input_tokens
        assert tiny.engine.load().prefix_hits > 0

    def test_a_static_prefix_is_warmed(self, tiny: Tiny) -> None:
        system = Message("system", "You sum up what teams have done, and never invent anything. " * 5)
        tiny.run(tiny.engine.warm([system]))
        request = EngineRequest(messages=(system, Message("user", "Go")), max_tokens=2)
        assert tiny.run(complete(tiny.engine, request)).usage.cached_tokens >= 32


class TestTwoModels:
    def test_both_answer_and_one_may_go(self, tiny_model: Path, tmp_path: Path) -> None:
        other = write_model(tmp_path / "other", seed=1)

        async def both() -> None:
            one, two = VLLMEngine(small(tiny_model)), VLLMEngine(small(other))
            try:
                await asyncio.gather(one.start(), two.start())
                answers = await asyncio.gather(*(complete(engine, ask("Tell me")) for engine in (one, two)))
                assert answers[0].text != answers[1].text
                assert one.pids()
                assert two.pids()
                assert not set(one.pids()) & set(two.pids())
                await one.aclose()
                assert (one.pids(), one.load().slots) == ([], 0)
                assert (await complete(two, ask("Tell me"))).text == answers[1].text
            finally:
                await asyncio.gather(one.aclose(), two.aclose())

        asyncio.run(both())


class TestOrder:
    def test_the_urgent_one_overtakes_those_that_wait(self, tiny: Tiny) -> None:
        done: list[str] = []

        async def one(name: str, priority: int) -> None:
            await complete(tiny.engine, ask(name, priority=priority, **ENDLESS | {"max_tokens": 60}))
            done.append(name)

        async def race() -> None:
            running = [await begin(tiny.engine, ask("busy", priority=5, **ENDLESS)) for _ in range(RUNNING)]
            waiting = [asyncio.create_task(one(f"patient {n}", 5)) for n in range(2 * RUNNING)]
            await asyncio.sleep(0)
            urgent = asyncio.create_task(one("urgent", 0))
            await asyncio.sleep(0)
            for stream in running:
                await stream.aclose()
            await asyncio.gather(urgent, *waiting)

        tiny.run(race())
        assert "urgent" in done[:RUNNING]


class TestDropping:
    """Whatever ends a stream early: the engine stops working on it."""

    async def _running_beside(self, engine: VLLMEngine) -> int:
        """How many requests the engine itself has in its batch, while another one is asked."""
        async with aclosing(engine.stream(ask("Count", **ENDLESS))) as stream:
            await anext(stream)
            await anext(stream)
            return engine.meter.running

    def test_a_stream_that_is_closed(self, tiny: Tiny) -> None:
        async def leave() -> int:
            stream = await begin(tiny.engine, ask("Go", **ENDLESS))
            await stream.aclose()
            assert tiny.engine.load().running == 0
            return await self._running_beside(tiny.engine)

        assert tiny.run(leave()) == 1

    def test_a_task_that_is_cancelled(self, tiny: Tiny) -> None:
        async def cancel() -> int:
            task = asyncio.create_task(complete(tiny.engine, ask("Go", **ENDLESS)))
            while not tiny.engine.load().running:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await self._running_beside(tiny.engine)

        assert tiny.run(cancel()) == 1

    def test_a_task_that_is_cancelled_while_vllm_takes_its_request(
        self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        core = tiny.engine._llm.engine_core
        add = core.add_request_async

        async def cancel() -> int:
            added = asyncio.Event()

            async def add_and_stay(request: Any) -> None:
                await add(request)
                added.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(core, "add_request_async", add_and_stay)
            task = asyncio.create_task(complete(tiny.engine, ask("Go", **ENDLESS)))
            await added.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            monkeypatch.setattr(core, "add_request_async", add)
            return await self._running_beside(tiny.engine)

        assert tiny.run(cancel()) == 1

    def test_a_time_that_has_passed(self, tiny: Tiny) -> None:
        async def late() -> int:
            with pytest.raises(CallTimeout, match=r"engine 'tiny' did not answer within 0\.0"):
                await complete(tiny.engine, ask("Go", timeout_s=0.05, **ENDLESS))
            return await self._running_beside(tiny.engine)

        assert tiny.run(late()) == 1


class TestWork:
    def test_reading_a_long_prompt_counts_before_there_is_a_token(
        self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        meter = tiny.engine.meter
        record = meter.record
        silent: list[bool] = []

        def watched(scheduler: Any) -> None:
            before, has_tokens = meter.worked_at, meter._step.generated_tokens
            record(scheduler)
            if not has_tokens and scheduler.num_running_reqs:
                silent.append(meter.worked_at > before)

        monkeypatch.setattr(meter, "record", watched)
        tiny.run(complete(tiny.engine, ask("unlike what was asked before " * 20, max_tokens=1)))
        assert silent
        assert all(silent)
        assert tiny.engine.load().prefill_tokens_s > 0

    def test_vllm_makes_no_statistics_of_each_token(
        self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They take a twentieth of the loop's time."""
        made: list[None] = []
        monkeypatch.setattr("vllm.v1.engine.async_llm.IterationStats", lambda: made.append(None))
        tiny.run(complete(tiny.engine, ask("Go")))
        assert made == []


class TestRefusals:
    def test_a_prompt_over_the_limit_is_told_with_both_numbers(self, tiny: Tiny) -> None:
        with pytest.raises(
            ContextTooLong, match=r"has [1-9],\d{3} tokens, but model 'tiny' takes 1,024 at most"
        ):
            tiny.run(complete(tiny.engine, ask("long " * 1000)))
        with pytest.raises(ContextTooLong):
            tiny.run(tiny.engine.warm([Message("user", "long " * 1000)]))
        assert tiny.engine.load().running == 0

    def test_sampling_that_means_nothing(self, tiny: Tiny) -> None:
        with pytest.raises(EngineRefused, match=r"model 'tiny' refuses the sampling: .*top_p"):
            tiny.run(complete(tiny.engine, ask("Go", top_p=1.5)))

    def test_an_engine_that_has_not_started(self, tiny_model: Path) -> None:
        with pytest.raises(EngineOverloaded, match="has not started yet"):
            asyncio.run(complete(VLLMEngine(small(tiny_model)), ask("Go")))


class TestStarting:
    """What a spec can be wrong in; nothing of an engine is left of it."""

    def _fails(self, engine: VLLMEngine, kind: type[Exception], told: str) -> None:
        with pytest.raises(kind, match=told):
            asyncio.run(engine.start())
        assert engine.pids() == []

    def test_a_path_that_is_wrong(self, tmp_path: Path) -> None:
        self._fails(VLLMEngine(small(tmp_path / "none")), ConfigurationError, "there is no model folder")

    def test_a_folder_without_configuration(self, tiny_model: Path, tmp_path: Path) -> None:
        folder = without_config(tiny_model, tmp_path / "broken")
        self._fails(VLLMEngine(small(folder)), ConfigurationError, r"it has no config\.json")

    def test_weights_that_are_cut_off(self, tiny_model: Path, tmp_path: Path) -> None:
        folder = with_truncated_weights(tiny_model, tmp_path / "broken")
        self._fails(VLLMEngine(small(folder)), ConfigurationError, "corrupt: .* bytes, where the header says")

    def test_an_adapter_for_another_model(self, tiny_model: Path, foreign_adapter: Path) -> None:
        engine = VLLMEngine(small(tiny_model, adapters={"foreign": foreign_adapter}))
        self._fails(engine, ConfigurationError, "'foreign' .* is for another model .* made for 'wide'")

    def test_an_option_that_vllm_does_not_have(self, tiny_model: Path) -> None:
        engine = VLLMEngine(small(tiny_model, options={"max_num_batched_token": 4}))
        self._fails(engine, ConfigurationError, "did you mean 'max_num_batched_tokens'")

    def test_a_length_that_the_model_cannot(self, tiny_model: Path) -> None:
        engine = VLLMEngine(small(tiny_model, max_length=100_000))
        self._fails(engine, EngineError, r"engine 'tiny' could not start: .*max_model_len.*2048")

    def test_a_model_that_is_too_large(self, tiny_model: Path, tmp_path: Path) -> None:
        config = json.loads((tiny_model / "config.json").read_text())
        folder = tmp_path / "large"
        folder.mkdir()
        for file in tiny_model.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        large = {
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_hidden_layers": 126,
            "vocab_size": 128256,
        }
        (folder / "config.json").write_text(json.dumps(config | large))
        self._fails(
            VLLMEngine(small(folder)),
            ConfigurationError,
            r"does not fit: weights .* GiB \+ KV .* > .* available",
        )

    def test_what_only_vllm_finds_out_is_told_in_its_words(self, tiny_model: Path, tmp_path: Path) -> None:
        folder = tmp_path / "mixed"
        folder.mkdir()
        for file in tiny_model.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        config = json.loads((tiny_model / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 512}))
        self._fails(
            VLLMEngine(small(folder)), EngineError, r"engine 'mixed' could not start: \w+Error: .{10}"
        )

    def test_a_start_that_takes_too_long_says_where_it_was(self, tiny_model: Path) -> None:
        engine = VLLMEngine(small(tiny_model))
        with pytest.raises(
            EngineError, match=r"did not start within 0\.5 s; it was at: importing vLLM|starting"
        ):
            asyncio.run(engine.start(timeout_s=0.5))
        assert engine.pids() == []

    def test_progress_is_told(self, tiny_model: Path) -> None:
        told: list[str] = []

        async def start() -> None:
            engine = VLLMEngine(small(tiny_model, alias="mine"))
            await engine.start(told.append)
            assert engine.pids() != []
            await engine.aclose()
            assert engine.pids() == []

        asyncio.run(start())
        steps = ("checking the model", "loading weights", "profiling memory", "first token", "ready after")
        places = [next(place for place, line in enumerate(told) if step in line) for step in steps]
        assert places == sorted(places)
        assert len(set(told)) == len(told)
