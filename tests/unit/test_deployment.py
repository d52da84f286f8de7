"""Whether a topology and a model pool fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.topology import Topology, topology
from mosaic_routing.deployment import Gap, check, gpus_of, queues_of, served, specs_of
from mosaic_routing.pool import ModelPool, pool

ROOT = Path(__file__).resolve().parents[2]
LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def hosted(classes: dict[str, Any], *, config: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "context_tokens": 8192,
        "hosting": {"spec": {"model": "a/b", **spec}, "classes": classes, "config": config or {}},
    }


MODELS = ModelPool.model_validate(
    {
        "models": {
            "small": hosted({"l4": {}, "h100": {}, "cpu": {}, "our-own-chip": {}}),
            "wide": hosted({"h100": {"tensor_parallel": 2}}),
            "modest": hosted({"l4": {}}, memory_gb=8),
            "large": hosted({"l4": {}, "h100": {"tensor_parallel": 4}}, config=LLAMA_70B),
            "far": {"context_tokens": 8192, "providers": [{"provider": "groq", "model": "f"}]},
        }
    }
)


def group(name: str = "g", gpu_class: str = "l4", **fields: Any) -> dict[str, Any]:
    return {"name": name, "class": gpu_class, **fields}


def made(*groups: dict[str, Any]) -> Topology:
    return Topology.model_validate({"version": 1, "workers": groups})


def told(*groups: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in check(made(*groups), MODELS).contradictions]


@pytest.mark.parametrize(
    "fields",
    [
        group(models=["small"]),
        group(gpu_class="cpu", models=["small"]),
        group(gpu_class="our-own-chip", models=["small"]),
        group(gpu_class="h100", models=["wide"], gpus=2),
        group(gpu_class="h100", models=["wide", "small"], gpus=3),
        group(gpu_class="h100", models=["wide", "small"]),
        group(models=["modest", "small"], gpus=2),
        group(gpu_class="h100", models=["large"]),
        group(models=["small"], queues=["mosaic.cpu", "mosaic.gpu.small", "mosaic.l4.small"]),
        group(gpu_class="cpu", queues=["mosaic.cpu", "mosaic.api.groq", "reports"]),
        group(gpu_class="h100-1g-10gb", queues=["mosaic.cpu"]),
    ],
)
def test_what_fits_is_no_contradiction(fields: dict[str, Any]) -> None:
    assert told(fields) == []


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        (
            group(gpu_class="h1000", queues=["a"]),
            "group 'g': there is no GPU class 'h1000'; did you mean 'h100'?",
        ),
        (group(models=["smal"]), "group 'g': the model pool has no model 'smal'; did you mean 'small'?"),
        (
            group(gpu_class="t4", models=["small"]),
            "group 'g': the pool does not say that 'small' may run on 't4'; it may on l4, h100, cpu, our-own-chip",
        ),
        (
            group(models=["far"]),
            "group 'g': no worker can host 'far': the pool has providers of it only; name their queues instead",
        ),
        (
            group(queues=["mosaic.gpu.small"]),
            "group 'g': it cannot serve the queue 'mosaic.gpu.small', since it does not host the model 'small' on its "
            "class 'l4'; leave it out, or add the model to 'models'",
        ),
        (
            group(queues=["mosaic.h100.small"], models=["small"]),
            "group 'g': it cannot serve the queue 'mosaic.h100.small', since it does not host the model 'small' on its "
            "class 'l4'; leave it out, or add the model to 'models'",
        ),
        (
            group(queues=["mosaic.routed"]),
            "group 'g': no worker takes from 'mosaic.routed', where calls wait for the router; leave it out",
        ),
        (
            group(queues=["mosaic.direct.w1@host"]),
            "group 'g': 'mosaic.direct.w1@host' belongs to one worker, which takes from it by itself; leave it out",
        ),
        (
            group(gpu_class="h100", models=["wide"], gpus=1),
            "group 'g': its models need 2 GPUs of a worker, and it has 1; raise 'gpus'",
        ),
        (
            group(models=["modest", "small"], gpus=1),
            "group 'g': its models share GPUs, and would take 29.6 of 24 GB of one; give it 2 GPUs, or the models a "
            "'memory_gb' in the pool",
        ),
    ],
)
def test_what_no_worker_could_do_is_told(fields: dict[str, Any], wrong: str) -> None:
    assert told(fields) == [wrong]


def test_a_model_that_does_not_fit_on_its_class_is_told_with_the_arithmetic() -> None:
    [wrong] = told(group(models=["large"]))
    assert wrong.startswith("group 'g': the class 'l4' cannot host 'large': ")
    assert "GiB" in wrong
    assert wrong.endswith("; take a larger class, or a higher tensor_parallel")


def test_one_model_hosted_in_two_ways_is_told_once() -> None:
    one = group("one", models=["small"], options={"max_num_seqs": 4})
    other = group("other", "h100", models=["small"], options={"max_num_seqs": 8})
    assert told(one, {**other, "options": one["options"]}) == []
    assert told(one, other) == [
        "the groups 'one' and 'other' serve the queue 'mosaic.gpu.small' with different options, so that calls would "
        "be answered by either; give them the same, or add the model to the pool under another name"
    ]


def test_two_groups_with_unlike_pools_may_serve_one_queue() -> None:
    one = group("one", "cpu", queues=["mosaic.cpu"])
    assert told(one, {**one, "name": "other", "pool": "async"}) == []


def test_models_that_nobody_answers_for_are_gaps_and_no_contradictions() -> None:
    found = check(made(group(models=["small"]), group("api", "cpu", queues=["mosaic.api.groq"])), MODELS)
    assert found.contradictions == ()
    assert found.gaps == (
        Gap("wide", ("mosaic.h100.wide",)),
        Gap("modest", ("mosaic.l4.modest",)),
        Gap("large", ("mosaic.l4.large", "mosaic.h100.large")),
    )


def test_a_group_serves_what_it_names_and_what_its_models_have() -> None:
    known = made(group(queues=["mosaic.cpu"], models=["small"]), group("other", "h100", models=["small"]))
    assert queues_of(known.workers[0]) == ("mosaic.cpu", "mosaic.gpu.small", "mosaic.l4.small")
    assert [(each.queue, each.groups, each.model) for each in served(known)] == [
        ("mosaic.cpu", ("g",), ""),
        ("mosaic.gpu.small", ("g", "other"), "small"),
        ("mosaic.l4.small", ("g",), "small"),
        ("mosaic.h100.small", ("other",), "small"),
    ]


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        (group(gpu_class="cpu", models=["small"]), 0),
        (group(gpu_class="h100", models=["wide", "small"]), 3),
        (group(gpu_class="h100", models=["wide"], gpus=4), 4),
        (group(gpu_class="h100", queues=["a"]), 0),
    ],
)
def test_a_worker_has_as_many_gpus_as_its_models_need(fields: dict[str, Any], gpus: int) -> None:
    assert gpus_of(made(fields).workers[0], MODELS) == gpus


def test_models_of_one_worker_have_gpus_of_their_own_where_there_are_enough() -> None:
    def used(gpus: int) -> list[Any]:
        return [spec.get("gpus") for spec in specs_of(["wide", "small"], "h100", MODELS, gpus=gpus)]

    assert used(0) == used(3) == used(8) == [[0, 1], [2]]
    assert used(2) == [None, None]
    assert [spec.get("gpus") for spec in specs_of(["wide"], "h100", MODELS)] == [None]


def test_a_spec_is_the_pools_with_the_options_of_the_group() -> None:
    [spec] = specs_of(["wide"], "h100", MODELS, options={"max_num_seqs": 4})
    assert spec == {"model": "a/b", "alias": "wide", "tensor_parallel": 2, "options": {"max_num_seqs": 4}}
    with pytest.raises(ConfigurationError, match="does not say that 'wide' may run on 'l4'; it may on h100"):
        specs_of(["wide"], "l4", MODELS)


def test_what_ships_has_no_contradiction() -> None:
    found = check(topology(ROOT / "queues" / "topology.yaml"), pool(ROOT / "routing" / "models.yaml"))
    assert found.contradictions == ()
