"""Which command starts a worker for a queue."""

from __future__ import annotations

import pytest

from mosaic_queues.errors import NoWorker
from mosaic_routing.queues import hosting_queues, queue_for
from mosaic_routing.serving import deployment_of, hosted_model, unhosted, worker_commands
from mosaic_tasks.client import no_worker

HOSTING = "mosaic worker --class {} --model SPEC (the model with the alias 'llama-3.1-8b')"


@pytest.mark.parametrize(
    ("queues", "commands"),
    [
        (["mosaic.cpu"], "mosaic worker --queues mosaic.cpu"),
        (["a", queue_for("agent", "openai:gpt-5.1")], "mosaic worker --queues a,mosaic.api.openai"),
        ([queue_for("agent", "vllm:llama-3.1-8b")], HOSTING.format("CLASS")),
        (hosting_queues("a100-80", "llama-3.1-8b")[1:], HOSTING.format("a100-80")),
        (
            ["mosaic.gpu.llama-3.1-8b", "mosaic.cpu"],
            f"mosaic worker --queues mosaic.cpu and {HOSTING.format('CLASS')}",
        ),
        (["mosaic.gpu"], "mosaic worker --queues mosaic.gpu"),
    ],
)
def test_a_queue_of_a_hosted_model_needs_a_worker_that_hosts_it(queues: list[str], commands: str) -> None:
    assert worker_commands(queues) == commands


def test_an_error_names_the_queues_and_the_command() -> None:
    error = no_worker(["mosaic.h100.tiny"], "r")
    assert isinstance(error, NoWorker)
    assert str(error).startswith(
        "no worker serves the queue 'mosaic.h100.tiny', so run r waits; start one with: "
    )
    assert "mosaic worker --class h100 --model SPEC" in str(error)


def test_an_error_names_where_to_look_for_what_the_router_lacks() -> None:
    assert str(no_worker(["mosaic.routed"], "r")).endswith(" (`mosaic explain r` says what is missing)")


def test_an_error_names_the_hosted_model_that_was_perhaps_meant() -> None:
    error = no_worker(["mosaic.gpu.tinny"], "r", served=["mosaic.cpu", "mosaic.gpu.tiny"])
    assert str(error).endswith("(the model with the alias 'tinny'); did you mean 'tiny'?")


@pytest.mark.parametrize(
    ("queue", "model"),
    [
        ("mosaic.gpu.a.b", "a.b"),
        ("mosaic.a100-80.a", "a"),
        ("mosaic.api.openai", None),
        ("mosaic.direct.w1@host", None),
        ("mosaic.cpu", None),
        ("reports", None),
    ],
)
def test_the_model_of_a_queue(queue: str, model: str | None) -> None:
    assert hosted_model(queue) == model
    assert unhosted([queue], []) == ([queue] if model else [])
    assert unhosted([queue], [queue]) == []


def test_the_queues_of_a_worker_tell_as_which_deployment_it_hosts_a_model() -> None:
    queues = ["mosaic.cpu", *hosting_queues("l4", "qwen"), *hosting_queues("h100", "llama-3.1-8b")]
    assert deployment_of(queues, "llama-3.1-8b") == "h100/llama-3.1-8b"
    assert deployment_of(["mosaic.direct.llama-3.1-8b", "mosaic.api.x"], "llama-3.1-8b") is None
