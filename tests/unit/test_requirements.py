"""What agents ask for, which deployments have it, and what people are told where none has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import ConfigurationError
from mosaic_routing.classes import CLASSES, GpuClass
from mosaic_routing.pool import ModelPool
from mosaic_routing.requirements import (
    Classes,
    Match,
    MemoryNeed,
    Requirement,
    explain_misses,
    match,
    problems,
    read_requirement,
)

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
POOL = ModelPool.model_validate(
    {
        "models": {
            "llama": {
                "capabilities": {"math": 0.85, "code": 0.7},
                "context_tokens": 131072,
                "formats": ["bf16"],
                "hosting": {
                    "spec": {"model": "/models/llama"},
                    "classes": {
                        "l4": {},
                        "h100": {"speed": {"prefill_tokens_s": 30000, "decode_tokens_s": 140}},
                    },
                    "config": LLAMA,
                },
            },
            "gemma": {
                "capabilities": {"math": 0.53},
                "context_tokens": 8192,
                "hosting": {
                    "spec": {"model": "/models/gemma"},
                    "classes": {"t4": {}, "l4": {"tensor_parallel": 2}},
                },
            },
            "mini": {
                "capabilities": {"math": 0.94},
                "context_tokens": 128000,
                "price": {"input": 0.15, "output": 0.6},
                "providers": [{"provider": "openai", "model": "gpt-4o-mini"}],
            },
        }
    }
)


def classes(*names: str) -> Classes:
    """A fleet."""
    return {name: CLASSES.get(name) for name in names}


EVERY = classes("l4", "t4", "h100")


def found(
    asked: dict[str, Any], fleet: Classes = EVERY, *, providers: tuple[str, ...] | None = None
) -> Match:
    """The match of a requirement as people write it."""
    return match(read_requirement(asked), POOL, fleet, providers=providers)


def names(
    asked: dict[str, Any], fleet: Classes = EVERY, *, providers: tuple[str, ...] | None = None
) -> list[str]:
    """The deployments that satisfy a requirement."""
    return [each.name for each in found(asked, fleet, providers=providers).satisfying]


def told(asked: dict[str, Any], fleet: Classes = EVERY, *, providers: tuple[str, ...] | None = None) -> str:
    """What people read where nothing satisfies a requirement."""
    match_of = found(asked, fleet, providers=providers)
    assert not match_of.satisfying
    return explain_misses(read_requirement(asked), match_of)


ALL = ["l4/llama", "h100/llama", "t4/gemma", "l4/gemma", "api.openai/mini"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ALL),
        ({"model": "llama"}, ["l4/llama", "h100/llama"]),
        ({"capability": "code"}, ["l4/llama", "h100/llama"]),
        ({"capability": "math", "min_quality": 0.8}, ["l4/llama", "h100/llama", "api.openai/mini"]),
        ({"capability": "math", "min_quality": 0.85}, ["l4/llama", "h100/llama", "api.openai/mini"]),
        ({"min_memory_gb": 24}, ["l4/llama", "h100/llama", "l4/gemma"]),
        ({"min_memory_gb": 24.5}, ["h100/llama"]),
        ({"architecture": "hopper"}, ["h100/llama"]),
        ({"architecture": ["hopper", "turing"]}, ["h100/llama", "t4/gemma"]),
        ({"min_compute_capability": 8.9}, ["l4/llama", "h100/llama", "l4/gemma"]),
        ({"min_compute_capability": 9}, ["h100/llama"]),
        ({"formats": ["fp8", "int4"]}, ["l4/llama", "l4/gemma"]),
        ({"classes": "l4"}, ["l4/llama", "l4/gemma"]),
        ({"classes": ["api.openai"]}, ["api.openai/mini"]),
        ({"classes": "api"}, ["api.openai/mini"]),
        ({"excluded": "api"}, ALL[:4]),
        ({"excluded": ["l4", "api.openai"]}, ["h100/llama", "t4/gemma"]),
        ({"max_price": 0.5}, ALL[:4]),
        ({"max_price": 0.6}, ALL),
        ({"input_tokens": 8000, "output_tokens": 192}, ALL),
        ({"input_tokens": 8000, "output_tokens": 193}, ["l4/llama", "h100/llama", "api.openai/mini"]),
        ({"input_tokens": 60_000}, ["h100/llama", "api.openai/mini"]),
        ({"input_tokens": 130_000}, ["h100/llama"]),
        ({"memory": {"base_gb": 30}}, ["h100/llama", "l4/gemma"]),
        (
            {"memory": {"base_gb": 10, "gb_per_1k_tokens": 4}, "input_tokens": 5000},
            ["h100/llama", "l4/gemma"],
        ),
        ({"memory": {"base_gb": 10, "gb_per_1k_tokens": 4}, "input_tokens": 1000}, ALL[:4]),
        ({"near": ["writer"]}, ALL),
    ],
)
def test_what_satisfies(asked: dict[str, Any], expected: list[str]) -> None:
    assert names(asked) == expected


def test_a_latency_is_that_of_the_speed_that_was_told_or_estimated() -> None:
    asked = {"model": "llama", "input_tokens": 3000, "output_tokens": 140}
    assert names({**asked, "latency_s": 1.2}) == ["h100/llama"]
    assert names({**asked, "latency_s": 20}) == ["l4/llama", "h100/llama"]
    assert told({**asked, "latency_s": 1}) == (
        "no model here satisfies model llama, latency_s 1, input_tokens 3,000, output_tokens 140; "
        "nearest misses: h100/llama (1.1 s, and 1 s allowed), l4/llama (9.41 s, and 1 s allowed), "
        "t4 (the pool does not say that llama may run there)"
    )


def test_what_is_not_there_does_not_satisfy() -> None:
    assert names({}, classes("l4")) == ["l4/llama", "l4/gemma", "api.openai/mini"]
    assert names({}, classes("l4"), providers=()) == ["l4/llama", "l4/gemma"]
    assert names({}, {}, providers=("openai",)) == ["api.openai/mini"]


def test_a_class_of_which_nothing_is_known_satisfies_what_asks_for_no_hardware() -> None:
    fleet: Classes = {"l4": None}
    assert names({"classes": "l4"}, fleet) == ["l4/llama", "l4/gemma"]
    assert "l4 (nothing is known of its GPUs)" in told({"classes": "l4", "min_memory_gb": 1}, fleet)


def test_what_a_fleet_says_of_a_class_goes_before_the_table() -> None:
    small = msgspec.structs.replace(CLASSES["h100"], memory_gb=10.0)
    assert names({"classes": "h100"}, {"h100": small}) == []


def test_a_model_needs_a_gpu_that_computes_in_one_of_its_formats() -> None:
    fp16 = GpuClass("l4", "nvidia", 24, "turing", (7, 5), frozenset({"fp16"}), 300, 65)
    assert told({"model": "llama", "classes": "l4"}, {"l4": fp16}) == (
        "no model here satisfies model llama, classes l4; nearest misses: l4/llama (the model needs bf16), "
        "h100 (there is no such machine and not among the classes l4)"
    )


# What people are told.


@pytest.mark.parametrize(
    ("asked", "fleet", "expected"),
    [
        pytest.param(
            {"min_memory_gb": 30},
            classes("l4", "t4"),
            "no GPU class here satisfies min_memory_gb 30; nearest misses: l4 (24 GB of the 30 GB needed), "
            "t4 (16 GB of the 30 GB needed), h100 (there is no such machine)",
            id="too little memory",
        ),
        pytest.param(
            {"classes": ["l4"], "min_memory_gb": 80},
            EVERY,
            "no GPU class here satisfies min_memory_gb 80, classes l4; nearest misses: l4 (24 GB of the 80 GB needed), "
            "h100 (not among the classes l4), t4 (not among the classes l4 and 16 GB of the 80 GB needed)",
            id="contradictory, told of a fleet",
        ),
        pytest.param(
            {"architecture": "hopper", "excluded": "api"},
            classes("l4"),
            "no GPU class here satisfies architecture hopper, excluded api; nearest misses: l4 (ada, not hopper), "
            "h100 (there is no such machine), t4 (there is no such machine and turing, not hopper)",
            id="another architecture",
        ),
        pytest.param(
            {"min_compute_capability": 9, "formats": "fp8"},
            classes("t4", "mi300x"),
            "no GPU class here satisfies min_compute_capability 9, formats fp8; nearest misses: "
            "t4 (compute capability 7.5 of the 9 needed and it has no fp8), h100 (there is no such machine), "
            "mi300x (the pool does not say that a model may run there and amd has no compute capability)",
            id="no compute capability",
        ),
        pytest.param(
            {"capability": "math", "min_quality": 0.99},
            EVERY,
            "no model here satisfies capability math, min_quality 0.99; nearest misses: "
            "mini (math 0.94 of the 0.99 needed), llama (math 0.85 of the 0.99 needed), "
            "gemma (math 0.53 of the 0.99 needed)",
            id="not good enough",
        ),
        pytest.param(
            {"capability": "code", "classes": "t4"},
            EVERY,
            "no model here satisfies capability code, classes t4; nearest misses: gemma (nobody measured it at code), "
            "h100 (not among the classes t4), l4 (not among the classes t4)",
            id="not measured",
        ),
        pytest.param(
            {"model": "llama", "classes": "l4", "input_tokens": 60_000},
            EVERY,
            "no model here satisfies model llama, input_tokens 60,000, classes l4; nearest misses: l4/llama (weights "
            "15.0 GiB + KV 7.32 GiB for 60,000 tokens x 1 = 22.3 GiB > 21.6 GiB available), "
            "h100 (not among the classes l4), "
            "t4 (the pool does not say that llama may run there and not among the classes l4)",
            id="the input does not fit into the memory",
        ),
        pytest.param(
            {"model": "gemma", "input_tokens": 10_000},
            EVERY,
            "no model here satisfies model gemma, input_tokens 10,000; nearest misses: "
            "gemma (a context of 8,192 tokens of the 10,000 tokens needed), "
            "h100 (the pool does not say that gemma may run there)",
            id="the input does not fit into the context",
        ),
        pytest.param(
            {"model": "mini", "max_price": 0.5},
            {},
            "no model here satisfies model mini, max_price 0.5; nearest misses: "
            "api.openai/mini (0.6 dollars a million tokens, and 0.5 allowed)",
            id="too dear",
        ),
        pytest.param(
            {"model": "mini", "min_memory_gb": 1},
            classes("cpu"),
            "no GPU class here satisfies model mini, min_memory_gb 1; nearest misses: "
            "api.openai (a provider tells nothing of its hardware), "
            "cpu (the pool does not say that mini may run there and it has no GPU)",
            id="nobody knows a provider's hardware",
        ),
        pytest.param(
            {"memory": {"base_gb": 100, "gb_per_1k_tokens": 1}, "input_tokens": 20_000, "excluded": ["api"]},
            EVERY,
            "no GPU class here satisfies memory base_gb 100 + gb_per_1k_tokens 1, input_tokens 20,000, excluded api; "
            "nearest misses: h100/llama (80 GB of the 120 GB needed), "
            "l4/llama (24 GB of the 120 GB needed), l4/gemma (a context of 8,192 tokens of the 20,000 tokens needed "
            "and 48 GB of the 120 GB needed)",
            id="memory by the length of the input",
        ),
    ],
)
def test_the_nearest_misses_are_told(asked: dict[str, Any], fleet: Classes, expected: str) -> None:
    assert told(asked, fleet) == expected


def test_a_fleet_that_shrank_to_nothing_is_told_as_what_is_missing() -> None:
    assert told({"capability": "math", "min_quality": 0.8}, {}, providers=()) == (
        "no model here satisfies capability math, min_quality 0.8; nearest misses: "
        "api.openai (no worker asks this provider), h100 (there is no such machine), l4 (there is no such machine)"
    )


def test_an_empty_pool_is_told() -> None:
    requirement = Requirement(capability="math")
    assert explain_misses(requirement, match(requirement, ModelPool(), EVERY)) == (
        "the model pool is empty, so nothing satisfies capability math; add a model (MOSAIC_MODELS)"
    )
    assert problems(Requirement(), ModelPool()) == [
        "the model pool is empty, so nothing satisfies an agent that asks for nothing; add a model (MOSAIC_MODELS)"
    ]


def test_a_model_that_the_pool_lacks_is_told() -> None:
    with pytest.raises(ConfigurationError, match="the model pool has no model 'lama'; did you mean 'llama'"):
        match(Requirement(model="lama"), POOL, EVERY)


# What no fleet could do.


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(
            {"classes": ["l4"], "min_memory_gb": 80},
            "these requirements contradict each other: min_memory_gb 80, classes l4; nearest misses: "
            "l4 (24 GB of the 80 GB needed), h100 (not among the classes l4), "
            "t4 (not among the classes l4 and 16 GB of the 80 GB needed)",
            id="a class and its memory",
        ),
        pytest.param(
            {"architecture": "turing", "formats": "fp8"},
            "these requirements contradict each other: architecture turing, formats fp8; nearest misses: "
            "h100 (hopper, not turing), l4 (ada, not turing), t4 (it has no fp8)",
            id="an architecture and its formats",
        ),
        pytest.param(
            {"model": "mini", "classes": "h100"},
            "no model satisfies model mini, classes h100; nearest misses: "
            "h100 (the pool does not say that mini may run there), api.openai (not among the classes h100), "
            "l4 (the pool does not say that mini may run there and not among the classes h100)",
            id="a model and where it never runs",
        ),
        pytest.param(
            {"min_memory_gb": 5000},
            "no GPU class satisfies min_memory_gb 5,000; nearest misses: h100 (80 GB of the 5,000 GB needed), "
            "l4 (24 GB of the 5,000 GB needed), t4 (16 GB of the 5,000 GB needed)",
            id="more memory than any GPU has",
        ),
        pytest.param(
            {"capability": "math", "min_quality": 1},
            "no model satisfies capability math, min_quality 1; nearest misses: mini (math 0.94 of the 1 needed), "
            "llama (math 0.85 of the 1 needed), gemma (math 0.53 of the 1 needed)",
            id="better than any model",
        ),
        pytest.param(
            {"model": "lama"},
            "the model pool has no model 'lama'; did you mean 'llama'?",
            id="an unknown model",
        ),
        pytest.param(
            {"capability": "maths"},
            "no model of the pool was measured at 'maths'; did you mean 'math'?",
            id="an unknown capability",
        ),
        pytest.param(
            {"classes": "h1000"},
            "there is no GPU class and no provider 'h1000'; did you mean 'h100'?",
            id="an unknown class",
        ),
        pytest.param(
            {"excluded": ["api.opena"]},
            "there is no GPU class and no provider 'api.opena'; did you mean 'api.openai'?",
            id="an unknown provider",
        ),
    ],
)
def test_what_no_fleet_could_satisfy_is_told(asked: dict[str, Any], expected: str) -> None:
    assert problems(read_requirement(asked), POOL, EVERY) == [expected]


@pytest.mark.parametrize(
    "asked", [{}, {"model": "llama", "min_memory_gb": 80}, {"classes": "api"}, {"architecture": "hopper"}]
)
def test_what_some_fleet_could_satisfy_is_no_problem(asked: dict[str, Any]) -> None:
    assert problems(read_requirement(asked), POOL) == []


# Reading.


def test_a_requirement_is_read_as_people_write_it() -> None:
    assert read_requirement(
        {
            "capability": "math",
            "min_quality": 0.8,
            "architecture": "hopper",
            "formats": ["fp8", "bf16"],
            "memory": {"base_gb": 16, "gb_per_1k_tokens": 0.13},
            "input_tokens": 8000,
            "near": "writer",
            "latency_s": 2,
        }
    ) == Requirement(
        capability="math",
        min_quality=0.8,
        architecture=("hopper",),
        formats=("fp8", "bf16"),
        memory=MemoryNeed(base_gb=16, gb_per_1k_tokens=0.13),
        input_tokens=8000,
        near=("writer",),
        latency_s=2,
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("math", "'math' is no requirement; write for example {capability: math, min_quality: 0.8}"),
        ({"min_memory": 8}, "a requirement has no field 'min_memory'; did you mean 'min_memory_gb'?"),
        (
            {"min_memory_gb": -1},
            "a requirement cannot be read: Expected `float` >= 0.0 - at `$.min_memory_gb`",
        ),
        ({"min_quality": 2}, "a requirement cannot be read: Expected `float` <= 1.0 - at `$.min_quality`"),
        ({"latency_s": 0}, "a requirement cannot be read: Expected `float` > 0.0 - at `$.latency_s`"),
        (
            {"input_tokens": 1.5},
            "a requirement cannot be read: Expected `int`, got `float` - at `$.input_tokens`",
        ),
        ({"min_memory_gb": float("inf")}, "min_memory_gb is inf; write a number"),
        ({"max_price": float("inf")}, "max_price is inf; write a number"),
        ({"memory": {"base_gb": float("inf")}}, "base_gb is inf; write a number"),
        ({"min_quality": 0.8}, "min_quality 0.8 says nothing without a capability; add 'capability'"),
        ({"formats": "fp7"}, "there is no number format 'fp7'; did you mean 'fp8'?"),
        (
            {"classes": ["l4", "h100"], "excluded": "l4"},
            "'l4' stands in 'classes' and in 'excluded'; leave it in one of them",
        ),
        (
            {"memory": {"base_gb": 1, "gb_per_1k_tokens": 1}},
            "gb_per_1k_tokens says nothing without a length; add 'input_tokens', the longest to expect",
        ),
    ],
)
def test_what_cannot_be_read_is_told(asked: Any, expected: str) -> None:
    with pytest.raises(ValueError) as raised:
        read_requirement(asked)
    assert str(raised.value) == expected


def test_nan_is_no_number() -> None:
    with pytest.raises(ValueError):
        read_requirement({"min_memory_gb": float("nan")})


WISHES = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["llama", "gemma", "mini"]),
        "min_memory_gb": st.floats(0, 200),
        "architecture": st.lists(st.sampled_from(["hopper", "ada", "turing"]), max_size=2),
        "min_compute_capability": st.floats(0, 12),
        "formats": st.lists(st.sampled_from(["fp8", "bf16", "int4"]), max_size=2),
        "input_tokens": st.integers(0, 200_000),
        "latency_s": st.floats(0.01, 100),
        "max_price": st.floats(0, 1),
        "classes": st.lists(st.sampled_from(["l4", "t4", "h100", "api"]), max_size=2),
    },
)


@given(asked=WISHES)
def test_every_deployment_satisfies_or_misses_and_none_does_both(asked: dict[str, Any]) -> None:
    requirement = read_requirement(asked)
    result = match(requirement, POOL, EVERY)
    satisfying = {(each.gpu_class, each.model) for each in result.satisfying}
    missing = {(miss.gpu_class, miss.model) for miss in result.misses if miss.model}
    candidates = {
        (each.gpu_class, each.model) for each in POOL.deployments if requirement.model in ("", each.model)
    }
    assert satisfying | missing == candidates
    assert not satisfying & missing
    assert [miss.distance for miss in result.misses] == sorted(miss.distance for miss in result.misses)
    assert bool(problems(requirement, POOL, EVERY)) == (not satisfying)


@given(asked=WISHES, more=st.floats(0, 50))
def test_asking_for_more_never_finds_more(asked: dict[str, Any], more: float) -> None:
    harder = {**asked, "min_memory_gb": asked.get("min_memory_gb", 0) + more}
    assert set(names(harder)) <= set(names(asked))


@given(asked=WISHES)
def test_a_requirement_survives_a_plan(asked: dict[str, Any]) -> None:
    requirement = read_requirement(asked)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(requirement), type=Requirement) == requirement
    assert read_requirement(msgspec.to_builtins(requirement)) == requirement
