"""One GPU worker with two real engines: what workflows get out of it, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mosaic_queues.errors import RunFailed
from mosaic_queues.settings import Settings
from mosaic_routing.inventory import prometheus
from mosaic_tasks import Run
from mosaic_tasks.app import app
from mosaic_tasks.cli import application
from mosaic_tasks.execution.process import process_for
from tests.engine.gpu_runs import (
    RUN_S,
    TRIES,
    GpuWorkers,
    agent,
    done,
    fan_out,
    reports,
    result,
    spec_file,
    submitted,
    usage,
    wait_running,
    wait_served,
    wait_until,
)
from tests.engine.models import with_truncated_weights, without_config, write_model
from tests.services import ServerForTests, Worker

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"enum": [1, 2, 3]},
        "done": {"type": "boolean"},
        "items": {"type": "array", "items": {"enum": ["one", "two"]}, "maxItems": 3},
    },
    "required": ["count", "done", "items"],
    "additionalProperties": False,
}
RULES = "A worker takes a call from its queue, asks the engine, and records the answer. " * 12
"""Some ten blocks of the engines' prefix caches."""


@pytest.fixture(scope="module")
def started(redis_server: ServerForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuWorkers]:
    with GpuWorkers(redis_server.urls, tmp_path_factory.mktemp("gpu")) as workers:
        yield workers


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture(scope="module")
def worker(
    started: GpuWorkers,
    tiny_model: Path,
    tiny_adapter: Path,
    other_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Worker:
    folder = tmp_path_factory.mktemp("specs")
    tiny = spec_file(folder, tiny_model, adapters={"tone": str(tiny_adapter)})
    return started.ready(tiny, spec_file(folder, other_model, max_running=4))


@pytest.fixture(autouse=True)
def _served(worker: Worker, mosaic_process: Settings) -> None:
    wait_served(worker)


class TestAnswers:
    def test_a_reader_gets_the_tokens_as_they_come(self) -> None:
        run = submitted({"text": agent("Write the report", max_tokens=200)})
        pieces = [event.value for event in run.stream(timeout_s=RUN_S) if event.kind == "text"]
        assert "".join(pieces) == run.result(RUN_S)
        assert len(pieces) > 1

    def test_structured_answers_are_valid_each_time(self) -> None:
        answers = result({"facts": fan_out(output=SCHEMA, temperature=1.0, max_tokens=60)}, items=24)
        assert len(answers) == 24
        assert all(answer["count"] in (1, 2, 3) and len(answer["items"]) <= 3 for answer in answers)
        assert len({json.dumps(answer) for answer in answers}) > 1

    def test_an_adapter_and_its_base_answer_side_by_side(self) -> None:
        plain = submitted({"texts": fan_out()}, items=6)
        toned = result({"texts": fan_out(adapter="tone")}, items=6)
        assert plain.result(RUN_S) != toned
        assert toned == result({"texts": fan_out(adapter="tone")}, items=6)

    def test_two_models_in_one_worker_answer_each_for_itself(self) -> None:
        first, second = (result({"text": agent("Go", model=f"vllm:{name}")}) for name in ("tiny", "other"))
        assert first
        assert second
        assert first != second

    def test_a_seed_gives_the_same_text_again(self) -> None:
        told = [result({"text": agent("Go", temperature=1.0, seed=seed)}) for seed in (7, 7, 8)]
        assert told[0] == told[1] != told[2]

    def test_an_answer_ends_before_a_stop_string(self) -> None:
        whole = result({"text": agent("Go on", max_tokens=60)})
        stop = whole[len(whole) // 2 :][:4]
        assert result({"text": agent("Go on", max_tokens=60, stop=[stop])}) == whole[: whole.index(stop)]

    def test_an_urgent_run_overtakes_a_batch(self) -> None:
        batch = submitted({"texts": fan_out(model="vllm:other", max_tokens=120)}, items=60, priority=9)
        wait_running(4, "other")
        urgent = submitted({"text": agent("Now", model="vllm:other")})
        urgent.result(RUN_S)
        before = len(done(batch))
        assert len(batch.result(RUN_S)) == 60
        assert before < 60


class TestPrefixes:
    def test_a_prefix_is_read_once_and_status_tells_the_rate(self) -> None:
        node = {"text": agent("Say {{ inputs['items'] }}", system=f"Told once: {RULES}")}
        first, second = submitted(node, items=1), submitted(node, items=2)
        for run in (first, second):
            run.result(RUN_S)
        (fresh,), (cached,) = usage(first), usage(second)
        assert cached.cached_tokens > fresh.cached_tokens
        assert cached.tokens[0] - cached.cached_tokens < 64
        told = CliRunner().invoke(application, ["status", second.id])
        share = f"{cached.cached_tokens / cached.tokens[0]:.0%}"
        assert f"prompt tokens from prefix caches: text {share}" in told.output

    def test_the_beginning_of_a_reader_is_warm_before_what_it_reads_is_written(self) -> None:
        nodes = {
            "draft": agent("Write a draft", max_tokens=120),
            "edit": agent("{{ draft }}", system=f"Never told before: {RULES}", max_tokens=4),
        }
        run = submitted(nodes, "edit")
        run.result(RUN_S)
        (edited,) = [event for event in usage(run) if event.calls[0].startswith(_number(run, "edit"))]
        assert edited.cached_tokens > 250


def _number(run: Run, name: str) -> str:
    return str([node.name for node in run.plan().nodes].index(name))


class TestLoad:
    def test_the_inventory_tells_what_the_engines_do(self) -> None:
        result({"texts": fan_out(max_tokens=60)}, items=8)
        report = wait_until(lambda: _report_with_figures(), "a report with figures")
        shared, own = report.queues[:2], report.queues[2:]
        assert shared == ("mosaic.gpu.tiny", "mosaic.cpu.tiny")
        assert [queue.startswith("mosaic.direct.") for queue in own] == [True]
        assert report.slots > 0
        assert 'mosaic_engine_free_slots{model="tiny",class="cpu"' in prometheus(reports().values())

    def test_a_cancelled_run_leaves_the_engine_and_the_queue_at_once(self) -> None:
        ends = {"on_failure": {"default": ""}}  # an answer by chance may be empty, which fails it
        run = submitted({"texts": fan_out(temperature=1.0, max_tokens=900, node=ends)}, items=500)
        wait_running(20)
        assert run.cancel()
        wait_until(_is_idle, "an engine without requests", 15)
        assert result({"text": agent("Go")})
        client = process_for(app).client
        wait_until(lambda: not _waiting_messages(client), "an empty queue", 15)
        wait_until(lambda: _used_slots() == 0, "free slots", 15)
        assert len(done(run)) < 100  # a few that ended by themselves


def _report_with_figures() -> Any:
    report = reports().get("tiny")
    return report if report and report.generated_tokens_s and report.ttft_s and report.inter_token_s else None


def _is_idle() -> bool:
    report = reports()["tiny"]
    return report.running == report.waiting == 0


def _waiting_messages(client: Any) -> int:
    return sum(
        client.llen(key) for key in client.scan_iter("mosaic.gpu.tiny*") if client.type(key) == b"list"
    )


def _used_slots() -> int:
    answers = app.control.inspect(timeout=5).stats() or {}
    return sum(stats["pool"]["running"] for stats in answers.values())


class TestRefusedCalls:
    def refusal(self, node: dict[str, Any]) -> str:
        with pytest.raises(RunFailed) as caught:
            result({"text": node | {"retry": TRIES}})
        return str(caught.value)

    def test_a_prompt_over_the_limit(self) -> None:
        told = self.refusal(agent("word " * 1500))
        assert "ContextTooLong: the prompt has " in told
        assert "model 'tiny' takes 1,024 at most" in told

    def test_a_schema_that_no_grammar_can_be_made_of(self) -> None:
        schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
        told = self.refusal(agent("Go", output=schema))
        assert "EngineRefused: the output schema cannot be made a grammar of" in told

    def test_an_adapter_that_the_worker_has_not(self) -> None:
        told = self.refusal(agent("Go", adapter="tune"))
        assert "EngineRefused: model 'tiny' has no adapter 'tune'; there are: 'tone'" in told

    def test_a_model_that_the_worker_does_not_host(self) -> None:
        told = self.refusal(agent("Go", model="vllm:ghost", node={"queue": "mosaic.gpu.tiny"}))
        assert "EngineRefused: this worker does not host the model 'vllm:ghost'; start one" in told


class TestRefusedWorkers:
    def test_a_wrong_path(self, started: GpuWorkers, tmp_path: Path) -> None:
        assert f"there is no model folder '{tmp_path}/nothing'" in started.refused(tmp_path / "nothing")

    def test_a_folder_without_a_configuration(
        self, started: GpuWorkers, tiny_model: Path, tmp_path: Path
    ) -> None:
        told = started.refused(without_config(tiny_model, tmp_path / "bare"))
        assert "is no model folder: it has no config.json (it holds " in told

    def test_weights_that_end_in_the_middle(
        self, started: GpuWorkers, tiny_model: Path, tmp_path: Path
    ) -> None:
        told = started.refused(with_truncated_weights(tiny_model, tmp_path / "cut"))
        assert "model.safetensors" in told
        assert "1,100,068 bytes, where the header says 2,200,136; copy them again" in told

    def test_a_model_too_big_for_the_memory(
        self, started: GpuWorkers, tiny_model: Path, tmp_path: Path
    ) -> None:
        spec = spec_file(tmp_path, tiny_model, alias="big", kv_memory_gb=0.001, max_length=2048)
        told = started.refused(spec)
        assert "model 'big' does not fit: " in told
        assert "2,048" in told

    def test_an_adapter_of_another_base(
        self, started: GpuWorkers, tiny_model: Path, foreign_adapter: Path, tmp_path: Path
    ) -> None:
        spec = spec_file(tmp_path, tiny_model, alias="foreign", adapters={"foreign": str(foreign_adapter)})
        told = started.refused(spec)
        assert "is for another model than" in told
        assert "it was made for 'wide'" in told

    def test_an_engine_option_that_does_not_exist(
        self, started: GpuWorkers, tiny_model: Path, tmp_path: Path
    ) -> None:
        spec = spec_file(tmp_path, tiny_model, alias="misspelt")
        told = started.refused(spec, args=["--engine-option", "blok_size=32"])
        assert "vLLM has no engine argument 'blok_size'; did you mean 'block_size'?" in told

    def test_another_model_under_a_name_that_is_taken(
        self, started: GpuWorkers, worker: Worker, other_model: Path, tmp_path: Path
    ) -> None:
        told = started.refused(spec_file(tmp_path, other_model, alias="tiny"))
        assert f"/{worker.pid}/" in told
        assert "serves the queue 'mosaic.gpu.tiny' with another model than" in told
        assert reports()["tiny"].slots > 0
