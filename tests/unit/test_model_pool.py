"""The model pool: what its file may say, what is told of mistakes, and that the pool which ships holds together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mosaic_queues.errors import ConfigurationError
from mosaic_queues.settings import settings
from mosaic_routing.classes import CLASSES, CPU, gpu_class
from mosaic_routing.memory import GIB, kv_bytes_per_token, plan
from mosaic_routing.pool import Deployment, Hosting, ModelPool, Price, Speed, pool, pool_path
from mosaic_routing.speeds import estimated_speed, speed_of
from mosaic_tasks.engines.vllm.spec import ModelSpec

SHIPPED = pool(Path(__file__).resolve().parents[2] / "routing" / "models.yaml")
HOSTED = [deployment for deployment in SHIPPED.deployments if deployment.is_hosted]

SMALL = """
version: 1
models:
  llama-8b:
    capabilities: {math: 0.85, code: 0.7}
    context_tokens: 131072
    price: {input: 0.1, output: 0.2}
    formats: [bf16]
    hosting:
      spec: {model: /models/llama-8b, dtype: bfloat16}
      classes:
        l4: {speed: {prefill_tokens_s: 4000, decode_tokens_s: 16}}
        h100: {tensor_parallel: 2, price: {input: 0.3, output: 0.4}}
    providers:
      - {provider: groq, model: llama-3.1-8b-instant}
  mini:
    capabilities: {math: 0.94}
    context_tokens: 128000
    price: {input: 0.15, output: 0.6, cached: 0.075}
    providers:
      - {provider: openai, model: gpt-4o-mini}
"""


def written(tmp_path: Path, text: str) -> Path:
    """A file of a pool."""
    path = tmp_path / "models.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def small(tmp_path: Path) -> ModelPool:
    """Two models, one of which workers may host."""
    return pool(written(tmp_path, SMALL))


def test_a_model_on_a_class_or_at_a_provider_is_a_deployment(small: ModelPool) -> None:
    assert [deployment.name for deployment in small.deployments] == [
        "l4/llama-8b",
        "h100/llama-8b",
        "api.groq/llama-8b",
        "api.openai/mini",
    ]
    assert small.deployments[0] == Deployment(
        name="l4/llama-8b",
        model="llama-8b",
        gpu_class="l4",
        engine="vllm:llama-8b",
        price=Price(input=0.1, output=0.2),
        speed=Speed(prefill_tokens_s=4000, decode_tokens_s=16),
    )
    assert small.deployments[3] == Deployment(
        name="api.openai/mini",
        model="mini",
        gpu_class="api.openai",
        engine="openai:gpt-4o-mini",
        price=Price(input=0.15, output=0.6, cached=0.075),
    )


def test_a_deployment_has_its_own_price_or_its_models(small: ModelPool) -> None:
    assert [deployment.price.output for deployment in small.deployments] == [0.2, 0.4, 0.2, 0.6]


def test_models_are_found_by_name_and_by_what_they_can(small: ModelPool) -> None:
    assert small.model("mini").context_tokens == 128000
    assert small.capabilities == ("code", "math")
    assert small.capable("math") == ["mini", "llama-8b"]
    assert small.capable("math", min_quality=0.9) == ["mini"]
    assert small.capable("poetry") == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("llama-8", "the model pool has no model 'llama-8'; did you mean 'llama-8b'?"),
        ("gpt-9", "the model pool has no model 'gpt-9'; there are: llama-8b, mini"),
    ],
)
def test_a_model_that_is_not_there_is_told(small: ModelPool, name: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        small.model(name)
    assert str(raised.value) == told


def test_an_empty_pool_says_so() -> None:
    with pytest.raises(ConfigurationError, match="the model pool has no model 'x'; there are none"):
        ModelPool().model("x")
    assert ModelPool().deployments == ()


def test_a_deployment_tells_a_worker_its_spec(small: ModelPool) -> None:
    assert small.spec(small.deployments[1]) == {
        "model": "/models/llama-8b",
        "dtype": "bfloat16",
        "alias": "llama-8b",
        "tensor_parallel": 2,
    }
    with pytest.raises(
        ConfigurationError, match=r"'api\.openai/mini' is a provider's; no worker can host it"
    ):
        small.spec(small.deployments[3])


def replaced(old: str, new: str) -> str:
    """The small pool with a mistake."""
    assert SMALL.count(old) == 1
    return SMALL.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "field", "told"),
    [
        (
            replaced("math: 0.85", "math: 85"),
            5,
            "models.llama-8b.capabilities.math",
            "less than or equal to 1",
        ),
        (
            replaced("math: 0.94", "math: .nan"),
            17,
            "models.mini.capabilities.math",
            "and it is nan",
        ),
        (replaced("131072", "0"), 6, "models.llama-8b.context_tokens", "greater than or equal to 1"),
        (replaced("input: 0.15", "input: -1"), 19, "models.mini.price.input", "greater than or equal to 0"),
        (replaced("input: 0.15", "input: .inf"), 19, "models.mini.price.input", "finite number"),
        (replaced("[bf16]", "[bf61]"), 8, "models.llama-8b.formats[0]", "'bf16'"),
        (
            replaced("price: {input: 0.1,", "prize: {input: 0.1,"),
            7,
            "models.llama-8b.prize",
            "did you mean 'price'?",
        ),
        (replaced("version: 1", "version: 2"), 2, "version", "should be 1"),
        (replaced("decode_tokens_s: 16", "decode_tokens_s: 0"), 12, "decode_tokens_s", "greater than 0"),
        (
            replaced("tensor_parallel: 2", "tensor_parallel: 0"),
            13,
            "tensor_parallel",
            "greater than or equal to 1",
        ),
        (replaced("l4:", "L4:"), 12, "hosting.classes.L4", "should match pattern"),
        (
            replaced("model: /models/llama-8b", "folder: /models/llama-8b"),
            10,
            "models.llama-8b.hosting.spec",
            "it names no model; write at least 'model: <path or name>'",
        ),
        (
            replaced("dtype: bfloat16", "alias: l"),
            10,
            "models.llama-8b.hosting.spec",
            "'alias' does not belong here: the model's name in the pool is its alias",
        ),
        (
            replaced("dtype: bfloat16}", "dtype: bfloat16}\n      config: {hidden_size: 4096}"),
            11,
            "models.llama-8b.hosting.config",
            "its config.json says 'vocab_size' is None",
        ),
        (
            SMALL + "      - {provider: openai, model: other}\n",
            16,
            "models.mini",
            "the provider 'openai' is there twice; leave one",
        ),
        (
            SMALL + "  lost: {context_tokens: 10}\n",
            22,
            "models.lost",
            "it runs nowhere; name GPU classes under 'hosting', or 'providers'",
        ),
        (
            SMALL + "limits: {providers: {openai: {requests_per_minute: 5}}}\n",
            22,
            "limits",
            "'providers' has 'openai'; did you mean 'api.openai'?",
        ),
        (
            SMALL + "limits: {deployments: {h100/llama: {concurrency: 5}}}\n",
            22,
            "limits",
            "'deployments' has 'h100/llama'; did you mean 'h100/llama-8b'?",
        ),
        (
            SMALL + "limits: {models: {minis: {concurrency: 5}}}\n",
            22,
            "limits",
            "'models' has 'minis'; did you mean 'mini'?",
        ),
        (
            SMALL + "degrading: [{kind: cheaper_model, model: minis}]\n",
            22,
            "degrading",
            "the pool has no model 'minis'; did you mean 'mini'?",
        ),
    ],
)
def test_a_mistake_is_told_with_file_line_and_field(
    tmp_path: Path, text: str, line: int, field: str, told: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as raised:
        pool(path)
    message = str(raised.value)
    assert f"{path}:{line}: " in message
    assert field in message
    assert told in message


def test_a_pool_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigurationError) as raised:
        pool(path)
    assert str(raised.value) == f"the model pool cannot be read: {path}: No such file or directory"


def test_a_pool_that_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the model pool cannot be read: .*File name too long"):
        pool(tmp_path / ("x" * 300))


def test_limits_may_be_of_all_there_is(tmp_path: Path) -> None:
    one = "{concurrency: 1}"
    limits = f"{{deployments: {{h100/llama-8b: {one}, '*': {one}}}, providers: {{api.groq: {one}}}}}"
    assert pool(written(tmp_path, f"{SMALL}limits: {limits}\n")).limits.providers["api.groq"].concurrency == 1


def test_a_pool_is_read_again_when_its_file_was_written(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    first = pool(path)
    assert pool(path) is first
    path.write_text(replaced("0.94", "0.95"), encoding="utf-8")
    os.utime(path, ns=(1, 1))
    assert pool(path).capable("math", min_quality=0.95) == ["mini"]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("models: [\n")])
def test_a_pool_that_becomes_unusable_stays_as_it_was_where_it_was_read(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    path = written(tmp_path, SMALL)
    first = pool(path)
    spoil(path)
    assert pool(path) is first
    path.write_text(replaced("0.94", "0.95"), encoding="utf-8")
    os.utime(path, ns=(1, 1))
    assert pool(path).capable("math", min_quality=0.95) == ["mini"]


@pytest.fixture
def fresh_settings() -> Iterator[None]:
    """Settings are read from the environment of the test."""
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.usefixtures("fresh_settings")
def test_a_setting_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, SMALL)
    monkeypatch.setenv("MOSAIC_MODELS", str(path))
    assert pool_path() == path
    assert pool() is pool(path)


@pytest.mark.usefixtures("fresh_settings")
def test_without_it_the_pool_is_the_one_that_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOSAIC_MODELS", raising=False)
    assert pool() == SHIPPED


# The pool that ships.

PUBLISHED = {
    # parameters in billions, bytes of KV cache a token
    "smollm2-135m": (0.1345, 23_040),
    "gemma-2-2b": (2.614, 106_496),
    "phi-3.5-mini": (3.821, 393_216),
    "qwen2-7b": (7.616, 57_344),
    "llama-3.1-8b": (8.03, 131_072),
    "yi-1.5-9b": (8.829, 98_304),
    "gemma-2-9b": (9.242, 344_064),
    "mistral-nemo": (12.248, 163_840),
    "mixtral-8x7b": (46.703, 131_072),
    "llama-3.1-70b": (70.554, 327_680),
    "llama-3.1-70b-awq": (70.554, 327_680),
    "qwen2-72b": (72.706, 327_680),
    "qwen2.5-72b": (72.706, 327_680),
    "gpt-oss-20b": (20.91, 49_152),
    "gpt-oss-120b": (116.83, 73_728),
    "deepseek-v3": (671.03, 70_272),
}
MATH = {
    "gpt-4o-mini": 0.942,
    "llama-3.1-70b": 0.926,
    "qwen2-72b": 0.923,
    "claude-3-haiku": 0.889,
    "gemma-2-9b": 0.871,
    "llama-3.1-8b": 0.850,
    "phi-3.5-mini": 0.847,
    "mistral-nemo": 0.839,
    "qwen2-7b": 0.806,
    "yi-1.5-9b": 0.791,
    "mixtral-8x7b": 0.726,
    "gemma-2-2b": 0.532,
}


def hosting_of(name: str) -> Hosting:
    """How a model that ships is hosted."""
    hosting = SHIPPED.model(name).hosting
    assert hosting is not None
    return hosting


def test_every_model_that_can_be_hosted_has_a_published_size() -> None:
    assert set(PUBLISHED) == {deployment.model for deployment in HOSTED}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_sizes_of_what_ships_are_the_published_ones(name: str) -> None:
    billions, cache = PUBLISHED[name]
    hosting = hosting_of(name)
    assert hosting.size is not None
    assert hosting.size.parameters == pytest.approx(billions * 1e9, rel=0.001)
    assert kv_bytes_per_token(hosting.config) == cache


def test_what_ships_is_as_good_at_mathematics_as_was_measured() -> None:
    assert {name: SHIPPED.model(name).capabilities["math"] for name in MATH} == MATH
    assert SHIPPED.capable("math")[: len(MATH)] == list(MATH)


@pytest.mark.parametrize("deployment", HOSTED, ids=lambda deployment: deployment.name)
def test_what_ships_fits_where_it_may_run(deployment: Deployment) -> None:
    ModelSpec.model_validate(SHIPPED.spec(deployment))
    gpu, model = gpu_class(deployment.gpu_class), SHIPPED.model(deployment.model)
    if deployment.gpu_class == CPU:
        return
    assert gpu is not None
    assert gpu.formats.intersection(model.formats)
    found = plan(
        hosting_of(deployment.model).config,
        available_bytes=int(0.9 * gpu.memory_gb * GIB),
        max_length=min(model.context_tokens, 8192),
        tensor_parallel=deployment.tensor_parallel,
    )
    assert found.fits, found.message


# Speeds.


def test_the_estimate_is_what_was_measured() -> None:
    size = hosting_of("llama-3.1-8b").size
    assert size is not None
    assert estimated_speed(size, CLASSES["a100-40"]).decode_tokens_s == pytest.approx(75, rel=0.02)


def test_a_bigger_gpu_is_faster_and_so_are_two() -> None:
    size = hosting_of("llama-3.1-8b").size
    assert size is not None
    l4, h100, two = (
        estimated_speed(size, CLASSES[name], tensor_parallel=count)
        for name, count in (("l4", 1), ("h100", 1), ("h100", 2))
    )
    assert l4.decode_tokens_s < h100.decode_tokens_s < two.decode_tokens_s
    assert l4.prefill_tokens_s < h100.prefill_tokens_s < two.prefill_tokens_s


def test_a_mixture_of_experts_reads_the_experts_of_a_token_alone() -> None:
    dense, sparse = hosting_of("llama-3.1-70b").size, hosting_of("gpt-oss-120b").size
    assert dense is not None
    assert sparse is not None
    assert sparse.parameters > dense.parameters
    h200 = CLASSES["h200"]
    assert estimated_speed(sparse, h200).decode_tokens_s > 4 * estimated_speed(dense, h200).decode_tokens_s


def test_what_the_pool_says_goes_before_an_estimate(small: ModelPool) -> None:
    told, nothing, api, _ = small.deployments
    assert speed_of(told, small, CLASSES["l4"]) == told.speed
    assert speed_of(nothing, small, CLASSES["h100"]) is None
    assert speed_of(api, small, None) is None
    shipped = next(each for each in HOSTED if each.name == "h100/llama-3.1-8b")
    estimated = speed_of(shipped, SHIPPED, CLASSES["h100"])
    assert estimated is not None
    assert estimated.estimated
    assert speed_of(shipped, SHIPPED, None) is None


def test_a_latency_adds_up() -> None:
    speed = Speed(prefill_tokens_s=1000, decode_tokens_s=50, first_token_s=0.1)
    assert speed.latency_s(input_tokens=500, output_tokens=100) == pytest.approx(2.6)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"model": "m"}, ("auto", "auto", None)),
        (
            {"model": "m", "dtype": "float16", "quantization": "fp8", "options": {"kv_cache_dtype": "fp8"}},
            ("float16", "fp8", "fp8"),
        ),
    ],
)
def test_memory_is_told_from_the_spec(spec: dict[str, Any], expected: tuple[str, str, str | None]) -> None:
    hosting = Hosting(spec=spec, classes={})
    assert (hosting.dtype, hosting.kv_dtype, hosting.quantization) == expected
    assert hosting.size is None
