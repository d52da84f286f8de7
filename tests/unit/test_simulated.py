"""Simulated GPUs: when they answer, what their caches spare, and how they fail; on a virtual clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from virtual_clock import run as run_from

from mosaic_queues.errors import CallTimeout, ConfigurationError, EngineGone, EngineRefused
from mosaic_tasks.engines.hosted import hosted_engine, read_spec
from mosaic_tasks.engines.protocol import Completion, EngineRequest, Message, complete
from mosaic_tasks.engines.registry import ModelName, close_engines, engine_for, host, model_name
from mosaic_tasks.engines.simulated import PrefixCache, SimulatedGpu, SimulatedSpec
from mosaic_tasks.execution.hosted_models import fingerprint

WORDS = "One two three four five six seven eight nine ten"
run = partial(run_from, begins_s=100.0)
Asked = Callable[..., Awaitable[tuple[float, Completion]]]


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """Ten tokens to whatever is asked."""
    path = tmp_path / "answers.jsonl"
    told = {"match": [""], "text": WORDS, "usage": {"input_tokens": 1, "output_tokens": 10}}
    path.write_text(f"{json.dumps(told)}\n", encoding="utf-8")
    return path


def spec(answers: Path, **fields: Any) -> SimulatedSpec:
    """Reads 100 tokens a second and writes 10; a token is a character."""
    return SimulatedSpec.model_validate(
        {
            "simulated": True,
            "alias": "gpu",
            "recordings": answers,
            "slots": 2,
            "prefill_tokens_s": 100.0,
            "decode_tokens_s": 10.0,
            "block_tokens": 10,
            "chars_per_token": 1,
            **fields,
        }
    )


def now() -> float:
    return asyncio.get_running_loop().time() - 100.0


async def ask(gpu: SimulatedGpu, prompt: str = "p" * 100, **options: Any) -> tuple[float, Completion]:
    """When the answer was whole, and the answer."""
    answer = await complete(gpu, EngineRequest((Message("user", prompt),), **options))
    return now(), answer


def on(wanted: SimulatedSpec, body: Callable[[SimulatedGpu], Awaitable[Any]], **options: Any) -> Any:
    """What a body gives that has the simulated GPU for itself."""

    async def hosted() -> Any:
        gpu = SimulatedGpu(wanted, **options)
        await gpu.start()
        try:
            return await body(gpu)
        finally:
            await gpu.aclose()

    return run(hosted())


def ends(wanted: SimulatedSpec, prompts: Sequence[str]) -> list[float]:
    """When the answers to prompts are whole that all come at once."""

    async def body(gpu: SimulatedGpu) -> list[tuple[float, Completion]]:
        return await asyncio.gather(*(ask(gpu, prompt) for prompt in prompts))

    return [at_s for at_s, _ in on(wanted, body)]


class TestPace:
    def test_a_prompt_is_read_and_then_the_answer_written(self, answers: Path) -> None:
        at_s, answer = on(spec(answers, first_token_s=0.25), ask)
        assert at_s == pytest.approx(1.0 + 0.25 + 1.0)
        assert (answer.text, answer.usage.input_tokens, answer.usage.output_tokens) == (WORDS, 100, 10)

    def test_prompts_are_read_one_after_the_other_and_answers_written_side_by_side(
        self, answers: Path
    ) -> None:
        assert ends(spec(answers, slots=3), ["a" * 100, "b" * 50, "c" * 100]) == pytest.approx(
            [2.0, 2.5, 3.5]
        )

    def test_what_finds_no_slot_waits_in_its_turn(self, answers: Path) -> None:
        assert ends(spec(answers, slots=1), ["a" * 100, "b" * 100]) == pytest.approx([2.0, 4.0])

    def test_a_character_may_stand_for_many_tokens(self, answers: Path) -> None:
        at_s, answer = on(spec(answers, chars_per_token=1 / 16), partial(ask, prompt="p" * 100))
        assert (at_s, answer.usage.input_tokens) == (pytest.approx(17.0), 1600)

    @given(
        st.lists(st.integers(1, 300), min_size=1, max_size=12),
        st.integers(1, 4),
        st.floats(1.0, 1000.0),
        st.floats(1.0, 100.0),
    )
    def test_no_machine_does_more_than_it_can(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        lengths: list[int],
        slots: int,
        read: float,
        write: float,
    ) -> None:
        path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
        told = {"match": [""], "text": WORDS, "usage": {"input_tokens": 1, "output_tokens": 10}}
        path.write_text(json.dumps(told), encoding="utf-8")
        wanted = spec(path, slots=slots, prefill_tokens_s=read, decode_tokens_s=write)
        last_s = max(ends(wanted, [chr(65 + number) * length for number, length in enumerate(lengths)]))
        assert last_s >= sum(lengths) / read * (1 - 1e-9)
        assert last_s >= len(lengths) * 10 / write / slots * (1 - 1e-9)
        assert last_s <= (sum(lengths) / read + len(lengths) * 10 / write) * (1 + 1e-9)

    def test_an_answer_that_is_not_wanted_any_more_frees_its_slot_and_the_reading(
        self, answers: Path
    ) -> None:
        async def body(gpu: SimulatedGpu) -> float:
            dropped = asyncio.create_task(ask(gpu, "a" * 1000))
            await asyncio.sleep(0.5)
            dropped.cancel()
            await asyncio.gather(dropped, return_exceptions=True)
            return (await ask(gpu, "b" * 100))[0]

        assert on(spec(answers, slots=1), body) == pytest.approx(0.5 + 1.0 + 1.0)

    @pytest.mark.parametrize("prompts", [1, 2])
    def test_time_is_up_for_one_that_is_late_and_for_one_that_waits(
        self, answers: Path, prompts: int
    ) -> None:
        async def body(gpu: SimulatedGpu) -> list[Any]:
            asked = [ask(gpu, letter * 100, timeout_s=1.5) for letter in "ab"[:prompts]]
            return await asyncio.gather(*asked, return_exceptions=True)

        found = on(spec(answers, slots=1), body)
        assert [type(one) for one in found] == [CallTimeout] * prompts

    def test_what_nobody_recorded_is_refused(self, answers: Path) -> None:
        answers.write_text('{"match": ["else"], "text": "x"}\n', encoding="utf-8")
        with pytest.raises(EngineRefused, match="no recording"):
            on(spec(answers), ask)


class TestCache:
    def test_what_leads_a_prompt_is_read_once(self, answers: Path) -> None:
        async def body(gpu: SimulatedGpu) -> list[tuple[float, int]]:
            found = []
            for prompt in ("a" * 100, "a" * 60 + "b" * 40, "c" * 100):
                begun = now()
                at_s, answer = await ask(gpu, prompt)
                found.append((at_s - begun, answer.usage.cached_tokens))
            return found

        found = on(spec(answers, cache_blocks=100), body)
        assert found == [(pytest.approx(2.0), 0), (pytest.approx(1.4), 60), (pytest.approx(2.0), 0)]

    def test_one_that_waited_to_be_read_finds_what_was_read_before_it(self, answers: Path) -> None:
        assert ends(spec(answers, cache_blocks=100), ["a" * 100, "a" * 100]) == pytest.approx([2.0, 2.01])

    def test_one_token_is_always_read(self, answers: Path) -> None:
        async def body(gpu: SimulatedGpu) -> int:
            await ask(gpu)
            return (await ask(gpu))[1].usage.cached_tokens

        assert on(spec(answers, cache_blocks=100), body) == 99

    def test_without_a_cache_nothing_is_spared(self, answers: Path) -> None:
        assert ends(spec(answers), ["a" * 100, "a" * 100]) == pytest.approx([2.0, 3.0])

    def test_the_least_recently_used_goes_first_and_a_beginning_last(self) -> None:
        cache = PrefixCache(4)
        cache.keep([1, 2])
        cache.keep([3, 4])
        cache.keep([1, 2])
        cache.keep([5])
        assert [cache.known(blocks) for blocks in ([1, 2], [3, 4], [5])] == [2, 1, 1]

    @given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20), st.integers(0, 8))
    def test_it_never_holds_more_than_it_may(self, kept: list[list[int]], most: int) -> None:
        cache = PrefixCache(most)
        for blocks in kept:
            cache.keep(blocks)
            assert sum(cache.known([block]) for block in range(10)) <= most


class TestLoad:
    def test_it_tells_what_runs_and_how_fast_it_is(self, answers: Path) -> None:
        async def body(gpu: SimulatedGpu) -> None:
            asked = [asyncio.create_task(ask(gpu, letter * 100)) for letter in "abc"]
            await asyncio.sleep(0.5)
            load = gpu.load()
            assert (load.running, load.waiting, load.slots, load.kv_use) == (2, 1, 0, 1.0)
            assert (load.prefill_tokens_s, load.inter_token_s) == (100.0, 0.1)
            await asyncio.gather(*asked)
            load = gpu.load()
            assert (load.running, load.waiting, load.slots) == (0, 0, 2)
            assert (load.prompt_tokens_s, load.generated_tokens_s) == (60.0, 6.0)
            assert load.ttft_s == pytest.approx((1.0 + 2.0 + 3.0) / 3)
            await asyncio.sleep(6.0)
            assert gpu.load().prompt_tokens_s == 0.0

        on(spec(answers), body)


class TestFaults:
    def test_one_that_dies_takes_all_that_it_has_with_it_and_is_not_started_again(
        self, answers: Path
    ) -> None:
        reasons: list[str] = []

        async def body(gpu: SimulatedGpu) -> list[Any]:
            first = [asyncio.create_task(ask(gpu)) for _ in range(2)]
            await asyncio.sleep(0.5)
            found = await asyncio.gather(ask(gpu), *first, return_exceptions=True)
            assert (now(), gpu.ready, gpu.load().slots) == (pytest.approx(0.5), False, 0)
            return [*found, *await asyncio.gather(ask(gpu), return_exceptions=True)]

        found = on(spec(answers, faults={"dies_after": 3}), body, on_give_up=reasons.append)
        assert [type(one) for one in found] == [EngineGone] * 4
        assert len(reasons) == 1
        assert "simulated GPU 'gpu'" in reasons[0]

    def test_one_that_flaps_answers_again_with_an_empty_cache(self, answers: Path) -> None:
        async def body(gpu: SimulatedGpu) -> list[Any]:
            found = []
            for _ in range(2):
                assert (await ask(gpu))[1].usage.cached_tokens == 0
                found += await asyncio.gather(ask(gpu), return_exceptions=True)
                assert (gpu.ready, gpu.state) == (False, "restarting")
                await asyncio.sleep(5.0)
                assert (gpu.ready, gpu.state, gpu.phase) == (True, "ready", "")
            return found

        faults = {"dies_after": 2, "restart_s": 4.0}
        found = on(spec(answers, cache_blocks=100, faults=faults), body)
        assert [type(one) for one in found] == [EngineGone] * 2

    def test_one_that_hangs_looks_ready_until_it_is_killed(self, answers: Path) -> None:
        async def body(gpu: SimulatedGpu) -> list[float]:
            first, second = asyncio.create_task(ask(gpu)), asyncio.create_task(ask(gpu))
            await asyncio.sleep(20.0)
            assert gpu.ready
            assert [first.done(), second.done()] == [False, False]
            found = await asyncio.gather(first, second, return_exceptions=True)
            return [type(one) for one in found] + [now()]

        faults = {"hangs_after": 2, "hang_s": 30.0, "restart_s": 1.0}
        assert on(spec(answers, faults=faults), body) == [EngineGone, EngineGone, pytest.approx(30.0)]

    def test_time_is_up_for_what_hangs(self, answers: Path) -> None:
        with pytest.raises(CallTimeout):
            on(spec(answers, faults={"hangs_after": 1}), partial(ask, timeout_s=3.0))


class TestSpec:
    def written(self, tmp_path: Path, text: str) -> str:
        path = tmp_path / "gpu.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def test_a_file_that_says_so_is_a_simulated_gpu(self, tmp_path: Path) -> None:
        source = self.written(tmp_path, "simulated: true\nalias: gpu\nrecordings: answers.jsonl\nslots: 3\n")
        found = read_spec(source, options={})
        assert isinstance(found, SimulatedSpec)
        assert found.slots == 3
        assert isinstance(hosted_engine(found, on_give_up=lambda _: None), SimulatedGpu)

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("slots: 0", "slots"),
            ("decode_tokens_s: -1", "decode_tokens_s"),
            ("prefill_tokens_s: .inf", "prefill_tokens_s"),
            ("alias: a b", "alias"),
            ("simulated: false", "simulated"),
            ("speed: 3", "speed"),
        ],
    )
    def test_a_wrong_field_is_named_with_file_and_line(self, tmp_path: Path, line: str, told: str) -> None:
        lines = {"simulated": "true", "alias": "gpu", "recordings": "answers.jsonl"}
        name, _, value = line.partition(": ")
        lines[name] = value
        source = self.written(tmp_path, "".join(f"{key}: {value}\n" for key, value in lines.items()))
        with pytest.raises(ConfigurationError) as refused:
            read_spec(source, options={})
        assert f"gpu.yaml:{list(lines).index(name) + 1}: field {told!r}" in str(refused.value)
        assert "simulated GPU" in str(refused.value)

    def test_engine_options_are_for_vllm(self, tmp_path: Path) -> None:
        source = self.written(tmp_path, "simulated: true\nalias: gpu\nrecordings: answers.jsonl\n")
        with pytest.raises(ConfigurationError, match="no engine options"):
            read_spec(source, options={"block_size": 32})

    def test_recordings_that_are_not_there_are_told_before_it_works(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"simulated GPU 'gpu'.*cannot be read"):
            on(spec(tmp_path / "none.jsonl"), ask)

    def test_its_pace_does_not_tell_models_apart_and_its_recordings_do(self, answers: Path) -> None:
        slow, fast = spec(answers), spec(answers, decode_tokens_s=99.0, slots=7)
        assert fingerprint(slow) == fingerprint(fast)
        before = fingerprint(slow)
        answers.write_text('{"match": ["else"], "text": "x"}\n', encoding="utf-8")
        assert fingerprint(slow) != before

    def test_nothing_else_can_be_said_of_it(self, answers: Path) -> None:
        with pytest.raises(ValidationError):
            spec(answers, model="llama")


def test_agents_ask_it_where_it_is_hosted(answers: Path) -> None:
    async def body(gpu: SimulatedGpu) -> None:
        with pytest.raises(EngineRefused, match="does not host the model 'simulated:gpu'"):
            engine_for("simulated:gpu")
        host(gpu, "gpu")
        assert engine_for("simulated:gpu") is gpu
        assert model_name("simulated:gpu") == ModelName("simulated", "gpu")
        await close_engines()
        assert not gpu.ready

    on(spec(answers), body)
