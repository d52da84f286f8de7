"""Model specs, what is told of a model's folder before vLLM starts, and how many requests fit."""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import CallTimeout, ConfigurationError, EngineRefused
from mosaic_tasks.engines.extractive import ExtractiveEngine
from mosaic_tasks.engines.protocol import EngineLoad
from mosaic_tasks.engines.registry import close_engines, engine_for, host, model_name
from mosaic_tasks.engines.vllm.arguments import (
    core_variables,
    engine_arguments,
    prepare_environment,
    tracker_variables,
)
from mosaic_tasks.engines.vllm.engine import VLLMEngine, _installation
from mosaic_tasks.engines.vllm.fitting import planned
from mosaic_tasks.engines.vllm.folder import check_adapter, check_model
from mosaic_tasks.engines.vllm.journal import Journal
from mosaic_tasks.engines.vllm.meter import WINDOW_S, Meter, expected_tokens, free_slots
from mosaic_tasks.engines.vllm.orphans import Guard
from mosaic_tasks.engines.vllm.spec import ModelSpec, check_options, option
from mosaic_tasks.engines.vllm.supervisor import Supervision, Supervisor, pause_s

LAYER = "model.layers.0.self_attn.q_proj"


def write_tensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    """A safetensors file of zeros, of one byte each."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = shape[0] * shape[1]
        header[name] = {"dtype": "I8", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    told = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(told)) + told + bytes(end))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    write_tensors(folder / "model.safetensors", {f"{LAYER}.weight": (16, 8)})
    return folder


def adapter(folder: Path, *, inputs: int = 8, outputs: int = 16, layer: str = LAYER) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 4, "base_model_name_or_path": "somebody/other"}')
    name = f"base_model.model.{layer}"
    tensors = {f"{name}.lora_A.weight": (4, inputs), f"{name}.lora_B.weight": (outputs, 4)}
    write_tensors(folder / "adapter_model.safetensors", tensors)
    return folder


class TestSpec:
    def test_a_folder_gives_its_name_as_alias(self, model: Path) -> None:
        spec = ModelSpec.read(str(model))
        assert (spec.alias, spec.folder) == ("tiny", model)

    def test_a_name_is_no_folder(self) -> None:
        spec = ModelSpec.read("some-team/Small Model-1.5B")
        assert (spec.alias, spec.folder) == ("Small-Model-1.5B", None)

    def test_a_file_gives_all_fields_and_the_arguments_come_on_top(self, tmp_path: Path) -> None:
        path = tmp_path / "small.yaml"
        path.write_text("model: team/small\nmax_length: 4096\noptions: {block_size: 32, seed: 1}\n")
        spec = ModelSpec.read(str(path), options={"block_size": 64})
        assert (spec.alias, spec.max_length, spec.options) == ("small", 4096, {"block_size": 64, "seed": 1})

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("model: m\nadaptors: {}", r"small\.yaml', field 'adaptors': .*did you mean 'adapters'\?"),
            ("model: m\nmax_lenght: 5", r"field 'max_lenght': .*did you mean 'max_length'\?"),
            ("model: m\nblock_size: 5", r"field 'block_size': .*belongs under 'options'"),
            ("model: m\ntensor_parallel: 0", r"field 'tensor_parallel': .*greater than or equal to 1"),
            ("model: m\nalias: 'a b'", r"field 'alias': 'a b' is no alias; use letters"),
            ("model: m\noptions: {max_model_len: 5}", r"'max_model_len' is set by the field 'max_length'"),
            ("model: m\ngpus: [0, 1]", r"tensor_parallel 1 needs as many gpus, but \[0, 1\] are named"),
            ("model: m\ntensor_parallel: 2\ngpus: [1, 1]", r"gpus \[1, 1\] names one twice"),
            ("dtype: auto", r"field 'model': Field required"),
            ("- a list", r"holds no fields; write at least 'model: <path or name>'"),
            ("model: [", r"is not YAML"),
        ],
    )
    def test_a_file_that_is_wrong_is_told_with_file_and_field(
        self, tmp_path: Path, text: str, told: str
    ) -> None:
        path = tmp_path / "small.yaml"
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=told):
            ModelSpec.read(str(path))

    def test_a_file_that_is_not_there_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"none\.yaml' cannot be read: No such file"):
            ModelSpec.read(str(tmp_path / "none.yaml"))


class TestOptions:
    def test_values_are_read_as_yaml(self) -> None:
        texts = ("block-size=32", "seed=0", "enforce_eager=true", "served=a=b", "hf_overrides={a: 1}")
        assert dict(option(text) for text in texts) == {
            "block_size": 32,
            "seed": 0,
            "enforce_eager": True,
            "served": "a=b",
            "hf_overrides": {"a": 1},
        }

    @pytest.mark.parametrize("text", ["block_size", "=32", ""])
    def test_another_form_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="not of the form name=value"):
            option(text)

    def test_a_value_that_is_not_yaml_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"'a=\{' cannot be read"):
            option("a={")

    def test_the_nearest_argument_is_suggested(self) -> None:
        known = frozenset({"block_size", "swap_space"})
        check_options({"block_size": 1}, known)
        with pytest.raises(
            ConfigurationError, match="no engine argument 'blok_size'; did you mean 'block_size'"
        ):
            check_options({"blok_size": 1}, known)


class TestFolder:
    def test_a_whole_folder_passes(self, model: Path) -> None:
        assert check_model(model) == {"model_type": "llama"}

    def test_a_path_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"there is no model folder .*none'; correct the path"):
            check_model(tmp_path / "none")

    def test_a_file(self, model: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"config\.json' is a file; give the model's folder"):
            check_model(model / "config.json")

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").touch()
        with pytest.raises(ConfigurationError, match=r"no config\.json \(it holds notes\.txt\)"):
            check_model(tmp_path)

    @pytest.mark.parametrize(("text", "told"), [("{", "is corrupt"), ("[]", "holds no JSON object")])
    def test_a_corrupt_configuration(self, model: Path, text: str, told: str) -> None:
        (model / "config.json").write_text(text)
        with pytest.raises(
            ConfigurationError, match=rf"config\.json' is corrupt: .*{told if text == '[]' else ''}"
        ):
            check_model(model)

    def test_no_weights(self, model: Path) -> None:
        (model / "model.safetensors").unlink()
        with pytest.raises(ConfigurationError, match="holds no weights"):
            check_model(model)

    def test_weights_that_are_cut_off(self, model: Path) -> None:
        path = model / "model.safetensors"
        os.truncate(path, path.stat().st_size - 100)
        with pytest.raises(
            ConfigurationError, match=r"are corrupt: [0-9,]+ bytes, where the header says [0-9,]+"
        ):
            check_model(model)

    @pytest.mark.parametrize(
        "content", [b"", b"abc", b"<html>not found</html>", struct.pack("<Q", 4) + b"abcd"]
    )
    def test_weights_that_are_none(self, model: Path, content: bytes) -> None:
        (model / "model.safetensors").write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"model\.safetensors' are corrupt"):
            check_model(model)

    def test_a_shard_that_is_missing(self, model: Path) -> None:
        index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ConfigurationError, match=r"lacks 'model-2\.safetensors', which its index names"):
            check_model(model)


class TestAdapter:
    def test_one_that_fits(self, model: Path, tmp_path: Path) -> None:
        assert check_adapter("tone", adapter(tmp_path / "tone"), model) == 4

    def test_nothing_is_compared_with_a_model_that_is_not_here(self, tmp_path: Path) -> None:
        assert check_adapter("tone", adapter(tmp_path / "tone", inputs=99), None) == 4

    @pytest.mark.parametrize(
        ("other", "told"),
        [
            ({"inputs": 32}, "has 8 inputs there, 32 in the adapter"),
            ({"outputs": 32}, "has 16 outputs there, 32 in the adapter"),
            (
                {"layer": "model.layers.9.self_attn.q_proj"},
                "that has no layer 'model.layers.9.self_attn.q_proj'",
            ),
        ],
    )
    def test_one_for_another_base(
        self, model: Path, tmp_path: Path, other: dict[str, Any], told: str
    ) -> None:
        folder = adapter(tmp_path / "tone", **other)
        with pytest.raises(ConfigurationError, match=rf"'tone' .* another model .*{told}.*'somebody/other'"):
            check_adapter("tone", folder, model)

    def test_a_folder_of_something_else(self, model: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"no adapter folder: it has no adapter_config\.json"):
            check_adapter("tone", model, model)

    def test_an_adapter_of_another_kind(self, model: Path, tmp_path: Path) -> None:
        folder = adapter(tmp_path / "tone")
        (folder / "adapter_config.json").write_text('{"peft_type": "PROMPT_TUNING"}')
        with pytest.raises(ConfigurationError, match="says no rank 'r'"):
            check_adapter("tone", folder, model)


class TestArguments:
    def test_only_what_is_said_is_given(self) -> None:
        arguments = engine_arguments(ModelSpec(model="team/small"), cpu=False)
        assert arguments == {
            "model": "team/small",
            "dtype": "auto",
            "tensor_parallel_size": 1,
            "scheduling_policy": "priority",
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }

    def test_a_processor_without_gpu_needs_more(self) -> None:
        arguments = engine_arguments(ModelSpec(model="team/small"), cpu=True)
        assert arguments["dtype"] == "float32"
        assert arguments["enforce_eager"] is True
        assert arguments["kv_cache_memory_bytes"] == 1 << 30

    def test_the_options_win(self) -> None:
        spec = ModelSpec(model="team/small", options={"scheduling_policy": "fcfs", "enforce_eager": False})
        arguments = engine_arguments(spec, cpu=True)
        assert (arguments["scheduling_policy"], arguments["enforce_eager"]) == ("fcfs", False)

    def test_memory_is_a_share_of_the_gpu(self) -> None:
        spec = ModelSpec(model="team/small", memory_gb=20, gpus=(3,))
        arguments = engine_arguments(spec, cpu=False, gpu_gb=80.0)
        assert (arguments["gpu_memory_utilization"], arguments["device_ids"]) == (0.25, [3])

    def test_more_memory_than_there_is(self) -> None:
        with pytest.raises(ConfigurationError, match=r"memory_gb 100 is more than the GPU has \(80\.0 GiB\)"):
            engine_arguments(ModelSpec(model="team/small", memory_gb=100), cpu=False, gpu_gb=80.0)

    def test_adapters_get_room_for_the_largest_rank(self) -> None:
        spec = ModelSpec(model="team/small", adapters={"a": Path("a"), "b": Path("b")})
        arguments = engine_arguments(spec, cpu=False, lora_rank=12)
        assert {name: arguments[name] for name in ("enable_lora", "max_loras", "max_lora_rank")} == {
            "enable_lora": True,
            "max_loras": 2,
            "max_lora_rank": 16,
        }
        with pytest.raises(ConfigurationError, match="rank 1000; vLLM takes 512 at most"):
            engine_arguments(spec, cpu=False, lora_rank=1000)

    def test_what_the_user_set_in_the_environment_stays(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        before = dict(os.environ)
        monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
        try:
            prepare_environment(ModelSpec(model=str(model)), cpu=True)
            assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
            assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
            assert "HF_HUB_OFFLINE" not in os.environ  # another model may have to be fetched
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]

    def test_only_a_model_in_a_folder_is_kept_from_the_hub(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        assert core_variables(ModelSpec(model=str(model)))["HF_HUB_OFFLINE"] == "1"
        assert "HF_HUB_OFFLINE" not in core_variables(ModelSpec(model="team/small"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        assert "HF_HUB_OFFLINE" not in core_variables(ModelSpec(model=str(model)))

    def test_what_only_python_and_torch_say_of_themselves_is_not_logged_unless_it_was_asked_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        quiet = {"PYTHONWARNINGS": "ignore", "TORCH_LOGS": "-all", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        for name in quiet:
            monkeypatch.delenv(name, raising=False)
        assert core_variables(ModelSpec(model="team/small")) == quiet
        assert tracker_variables() == {"PYTHONWARNINGS": "ignore:resource_tracker:UserWarning"}
        for name in quiet:
            monkeypatch.setenv(name, "default")
        assert core_variables(ModelSpec(model="team/small")) == {}
        assert tracker_variables() == {"PYTHONWARNINGS": "default,ignore:resource_tracker:UserWarning"}


def test_what_is_missing_is_installed_by_pip_or_in_a_clone_by_make(tmp_path: Path) -> None:
    assert _installation(tmp_path) == "pip install 'mosaic-tasks[vllm]'"
    (tmp_path / "requirements").mkdir()
    for name in ("requirements/engine.txt", "Makefile"):
        (tmp_path / name).touch()
    assert _installation(tmp_path) == "make engine"


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


class TestRoom:
    def test_the_largest_length_that_fits_is_told(self) -> None:
        spec = ModelSpec(model="team/large")
        found = planned(spec, LLAMA, free_bytes=20 << 30, cache_bytes=None, dtype="bfloat16")
        assert not found.fits
        assert "the largest length that would fit" in found.message

    def test_a_cache_that_is_set_bounds_what_is_available(self) -> None:
        spec = ModelSpec(model="team/large", max_length=8192)
        ample = planned(spec, LLAMA, free_bytes=80 << 30, cache_bytes=2 << 30, dtype="bfloat16")
        small = planned(spec, LLAMA, free_bytes=80 << 30, cache_bytes=1 << 29, dtype="bfloat16")
        assert (ample.fits, small.fits) == (True, False)


def asked(*, arrived: float = 0.0) -> SimpleNamespace:
    """A request, as vLLM keeps it, of which nothing has come yet."""
    return SimpleNamespace(is_prefilling=True, stats=SimpleNamespace(arrival_time=arrived, last_token_ts=0.0))


def came(meter: Meter, request: SimpleNamespace, at_s: float, **told: Any) -> None:
    """Has vLLM tell of an output, and then take it itself."""
    output = {"new_token_ids": [7], "events": None, "prefill_stats": None, **told}
    meter.came(request, SimpleNamespace(**output), at_s, None)
    request.is_prefilling = False


def read(tokens: int, *, cached: int = 0, begun: float) -> dict[str, Any]:
    """What vLLM tells with the first output of a request: what it read of its prompt, from when on."""
    stats = SimpleNamespace(num_prompt_tokens=tokens, num_computed_tokens=tokens - cached)
    return {"prefill_stats": stats, "events": [event(QUEUED, begun - 9), event(SCHEDULED, begun)]}


QUEUED, SCHEDULED, PREEMPTED = 1, 2, 3


def event(kind: int, at_s: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(type=kind, timestamp=at_s)


def scheduled(*, running: int = 0, waiting: int = 0, kv_use: float = 0.0) -> SimpleNamespace:
    """What vLLM tells of its queue."""
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=0,
        kv_cache_usage=kv_use,
        prefix_cache_stats=SimpleNamespace(queries=100, hits=25),
    )


class TestMeter:
    def test_rates_are_those_of_the_last_seconds(self) -> None:
        now = 100.0
        meter = Meter(now=lambda: now, wall=lambda: 1000.0)
        room: dict[str, Any] = {"blocks": 100, "block_tokens": 16, "most": 8, "longest": 512}
        now += 10
        for _ in range(5):
            request = asked(arrived=1000 - 0.2)
            came(meter, request, 50.0, **read(10, begun=50.0))
            came(meter, request, 50.01, new_token_ids=[7] * 18)
            came(meter, request, 50.04)
            meter.record(scheduled(running=2, waiting=1, kv_use=0.5))
        busy = meter.load(taken=3, **room)
        assert (busy.running, busy.waiting, busy.kv_use) == (2, 1, 0.5)
        assert [meter.load(taken=taken, **room).waiting for taken in (1, 2, 9)] == [0, 0, 7]
        assert busy.generated_tokens_s == pytest.approx(5 * 20 / WINDOW_S)
        assert busy.prompt_tokens_s == pytest.approx(5 * 10 / WINDOW_S)
        assert (busy.ttft_s, busy.inter_token_s) == (pytest.approx(0.2), pytest.approx(0.02))
        assert busy.prefix_hits == 0.25
        now += WINDOW_S + 1
        idle = meter.load(taken=0, **room)
        assert (idle.running, idle.kv_use, idle.generated_tokens_s, idle.ttft_s) == (0, 0.0, 0.0, 0.0)

    def test_the_lengths_of_what_finished_make_the_slots(self) -> None:
        meter = Meter()
        room: dict[str, Any] = {"blocks": 100, "block_tokens": 16, "most": 64, "longest": 800}
        assert meter.load(taken=0, **room).slots == 2  # 800 tokens each, while nothing is known
        request = asked()
        for events in (None, [event(QUEUED), event(SCHEDULED), event(PREEMPTED), event(SCHEDULED)]):
            came(meter, request, 50.0, events=events)
        came(meter, request, 51.0, events=[event(PREEMPTED), event(SCHEDULED)])
        for _ in range(2):
            meter.finished(160)
        assert meter.load(taken=0, **room).slots == 10
        assert meter.load(taken=0, **room).preempted == 2

    def test_a_step_that_reads_a_part_of_a_prompt_is_work_and_one_with_nothing_running_is_none(self) -> None:
        now = 100.0
        meter = Meter(now=lambda: now)
        now += 50
        meter.record(scheduled(running=0, waiting=1))
        assert meter.worked_at == 100
        meter.record(scheduled(running=1))
        assert meter.worked_at == 150
        now += 50
        came(meter, asked(), 1.0)
        meter.record(scheduled(running=0))
        assert meter.worked_at == 200
        now += 50
        for nothing in (scheduled(running=0), None):
            meter.record(nothing)
        assert meter.worked_at == 200

    def test_how_fast_prompts_are_read_is_told_by_long_ones_the_latest_first(self) -> None:
        meter = Meter()
        room: dict[str, Any] = {"blocks": 100, "block_tokens": 16, "most": 8, "longest": 512}
        for told in (
            read(20, begun=49.5),
            read(1000, cached=900, begun=49.5),
            read(1000, begun=50.0),
            {},
        ):
            came(meter, asked(), 50.0, **told)
            assert meter.load(taken=0, **room).prefill_tokens_s == 0.0
        came(meter, asked(), 50.0, **read(1500, cached=500, begun=49.5))
        assert meter.load(taken=0, **room).prefill_tokens_s == pytest.approx(2000)
        for _ in range(100):
            came(meter, asked(), 50.0, **read(1000, begun=49.0))
        assert meter.load(taken=0, **room).prefill_tokens_s == pytest.approx(1000, rel=0.01)


class TestSlots:
    def test_the_longest_request_of_an_empty_engine_is_taken(self) -> None:
        assert free_slots(blocks=4, block_tokens=16, kv_use=0, taken=0, expected_tokens=1000, most=8) == 1

    @given(
        blocks=st.integers(1, 10_000),
        taken=st.integers(0, 500),
        kv_use=st.floats(0, 1),
        expected=st.floats(1, 100_000),
        most=st.integers(1, 500),
    )
    def test_what_is_taken_fits(
        self, blocks: int, taken: int, kv_use: float, expected: float, most: int
    ) -> None:
        slots = free_slots(
            blocks=blocks, block_tokens=16, kv_use=kv_use, taken=taken, expected_tokens=expected, most=most
        )
        assert 0 <= slots <= most
        assert taken + slots <= max(most, taken)
        if slots > 1 or (slots and taken):
            assert (taken + slots) * expected <= blocks * 16

    def test_spread_counts(self) -> None:
        assert expected_tokens(deque([100, 100]), longest=1000) == 100
        assert expected_tokens(deque([50, 150]), longest=1000) == 150
        assert expected_tokens(deque([50, 150]), longest=120) == 120
        assert expected_tokens(deque(), longest=10_000) == 1024


class TestPauses:
    def test_they_double_up_to_the_longest(self) -> None:
        policy = Supervision(base_s=1, max_s=10)
        assert [pause_s(deaths, policy, share=1) for deaths in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, 10]

    def test_half_is_chance(self) -> None:
        policy = Supervision(base_s=4)
        drawn = [pause_s(1, policy, share=random.random()) for _ in range(50)]
        assert all(2 <= pause <= 4 for pause in drawn)
        assert len(set(drawn)) > 1


class TestJournal:
    def test_phases_come_once_and_the_first_cause_counts(self) -> None:
        journal = Journal()
        path = Path(str(journal.configuration)).with_name("log")
        path.write_text("INFO Starting to load model /m...\nINFO Starting to load model /m...\n")
        assert journal.phases() == ["loading weights"]
        with path.open("a") as log:
            log.write("ERROR EngineCore failed to start.\nTraceback (most recent call last):\n")
            log.write(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n\nDuring handling...\n"
            )
            log.write("RuntimeError: Engine core initialization failed.\n")
        assert journal.phases() == []
        assert journal.cause() == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
        journal.close()
        assert not path.parent.exists()

    def test_after_the_start_the_last_cause_counts(self) -> None:
        journal = Journal()
        path = Path(str(journal.configuration)).with_name("log")
        with path.open("a") as log:
            log.write("ERROR ImportError: no module that nobody needs\n")
            log.flush()
            journal.started()
            assert journal.cause() == ""
            log.write("ERROR ValueError: one request was wrong\nERROR OSError: the disk is gone\n")
        assert journal.cause() == "OSError: the disk is gone"
        journal.close()
        journal.close()

    def test_a_user_who_configures_logging_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "0")
        journal = Journal()
        assert journal.configuration is None
        journal.close()


class TestEnding:
    @pytest.mark.parametrize(
        ("code", "told"),
        [
            (-9, "EngineCore (pid 1234) was killed by SIGKILL"),
            (1, "EngineCore (pid 1234) ended with code 1: OSError: the disk is gone"),
        ],
    )
    def test_what_was_logged_is_the_cause_unless_a_signal_is(self, code: int, told: str) -> None:
        async def ended() -> str:
            engine = VLLMEngine(ModelSpec(model="team/small"))
            engine._journal = Journal()
            path = Path(str(engine._journal.configuration)).with_name("log")
            path.write_text("ERROR OSError: the disk is gone\n")
            engine._core_ended(SimpleNamespace(pid=1234, exitcode=code, sentinel=0))
            await engine.aclose()
            return engine.cause

        assert asyncio.run(ended()) == told

    def test_the_loop_goes_on_while_processes_are_looked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looking: list[int] = []

        def looked(_: object = None) -> list[int]:
            looking.append(threading.get_ident())
            return []

        monkeypatch.setattr(Guard, "close", looked)
        monkeypatch.setattr(VLLMEngine, "pids", looked)

        async def close() -> None:
            await VLLMEngine(ModelSpec(model="team/small")).aclose()

        asyncio.run(close())
        assert len(looking) == 2
        assert threading.get_ident() not in looking

    @pytest.mark.parametrize("works", [True, False])
    def test_an_engine_that_answers_others_did_not_hang(self, works: bool) -> None:
        meter, killed = Meter(), []

        async def probe(_: float) -> None:
            meter.worked_at += works
            raise CallTimeout("engine 'small' did not answer within 3 s")

        engine: Any = SimpleNamespace(
            meter=meter, probe=probe, kill=killed.append, load=lambda: EngineLoad(running=1)
        )
        asyncio.run(Supervisor(ModelSpec(model="team/small"))._probe(engine, 4.0))
        assert len(killed) == (not works)


class HostedStandIn(ExtractiveEngine):
    """In the place of vLLM's."""

    name = "vllm"


class TestHosting:
    def test_a_hosted_engine_answers_for_its_alias_on_its_loop(self) -> None:
        async def hosted() -> None:
            engine = HostedStandIn()
            host(engine, "tiny")
            host(engine, "tiny")
            assert engine_for("vllm:tiny") is engine
            with pytest.raises(ConfigurationError, match="two models are called 'tiny'"):
                host(HostedStandIn(), "tiny")
            with pytest.raises(EngineRefused, match=r"'vllm:other'; start one .*mosaic worker --class"):
                engine_for("vllm:other")
            await close_engines()
            with pytest.raises(EngineRefused, match="does not host the model 'vllm:tiny'"):
                engine_for("vllm:tiny")

        asyncio.run(hosted())

    def test_the_name_is_known_everywhere(self) -> None:
        assert str(model_name("vllm:tiny")) == "vllm:tiny"
        with pytest.raises(EngineRefused, match="names no model"):
            model_name("vllm")
