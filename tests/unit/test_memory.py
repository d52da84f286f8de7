"""How much memory models need, against what their makers publish."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import ConfigurationError
from mosaic_routing.memory import GIB, kv_bytes, kv_bytes_per_token, parameters, plan, weight_bytes


def decoder(
    hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    """A config.json, as far as memory goes."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        **more,
    }


LLAMA_8B = decoder(4096, 32, 32, 8, 14336, 128256, model_type="llama", max_position_embeddings=131072)
LLAMA_70B = decoder(8192, 80, 64, 8, 28672, 128256, model_type="llama", max_position_embeddings=131072)
MIXTRAL = decoder(4096, 32, 32, 8, 14336, 32000, model_type="mixtral", num_local_experts=8)
SMOLLM2 = decoder(576, 30, 9, 3, 1536, 49152, tie_word_embeddings=True, max_position_embeddings=8192)
GEMMA2_9B = decoder(3584, 42, 16, 8, 14336, 256000, model_type="gemma2", head_dim=256)
del GEMMA2_9B["tie_word_embeddings"]  # its configuration does not say so
QWEN3_30B = decoder(
    2048,
    48,
    32,
    4,
    6144,
    151936,
    model_type="qwen3_moe",
    head_dim=128,
    num_experts=128,
    moe_intermediate_size=768,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)
DEEPSEEK_LITE = decoder(
    2048,
    27,
    16,
    16,
    10944,
    102400,
    model_type="deepseek_v2",
    q_lora_rank=None,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
    n_routed_experts=64,
    n_shared_experts=2,
    moe_intermediate_size=1408,
    first_k_dense_replace=1,
    moe_layer_freq=1,
)
DEEPSEEK_V3 = decoder(
    7168,
    61,
    128,
    128,
    18432,
    129280,
    model_type="deepseek_v3",
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
    n_routed_experts=256,
    n_shared_experts=1,
    moe_intermediate_size=2048,
    first_k_dense_replace=3,
    moe_layer_freq=1,
    quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
)
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
OPT_125M = decoder(768, 12, 12, 12, 3072, 50272, model_type="opt", max_position_embeddings=2048)
del OPT_125M["tie_word_embeddings"], OPT_125M["intermediate_size"]
OPT_125M["ffn_dim"] = 3072


@pytest.mark.parametrize(
    ("config", "published"),
    [
        pytest.param(LLAMA_8B, 8.03e9, id="Llama-3.1-8B"),
        pytest.param(LLAMA_70B, 70.6e9, id="Llama-3.1-70B"),
        pytest.param(decoder(3584, 28, 28, 4, 18944, 152064), 7.62e9, id="Qwen2.5-7B"),
        pytest.param(decoder(4096, 32, 32, 8, 14336, 32768), 7.25e9, id="Mistral-7B-v0.3"),
        pytest.param(decoder(3072, 32, 32, 32, 8192, 32064), 3.82e9, id="Phi-3-mini"),
        pytest.param(MIXTRAL, 46.7e9, id="Mixtral-8x7B"),
        pytest.param(QWEN3_30B, 30.5e9, id="Qwen3-30B-A3B"),
        pytest.param(DEEPSEEK_LITE, 15.7e9, id="DeepSeek-V2-Lite"),
        pytest.param(DEEPSEEK_V3, 671e9, id="DeepSeek-V3"),
        pytest.param(GEMMA2_9B, 9.24e9, id="Gemma-2-9B"),
        pytest.param(SMOLLM2, 134.5e6, id="SmolLM2-135M"),
        pytest.param(GPT2, 124.4e6, id="GPT-2"),
        pytest.param(OPT_125M, 125.2e6, id="OPT-125M"),
    ],
)
def test_the_parameters_are_those_that_were_published(config: dict[str, Any], published: float) -> None:
    assert parameters(config) == pytest.approx(published, rel=0.015)


def test_the_language_model_of_a_model_that_sees_is_counted() -> None:
    seeing = {"model_type": "gemma3", "text_config": LLAMA_8B, "vision_config": {"hidden_size": 1152}}
    assert parameters(seeing) == parameters(LLAMA_8B)


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        pytest.param(LLAMA_8B, {}, 131072, id="grouped queries: 2 x 32 layers x 8 heads x 128 x 2 bytes"),
        pytest.param(LLAMA_8B, {"kv_dtype": "fp8"}, 65536, id="a byte a value"),
        pytest.param(LLAMA_8B, {"dtype": "float32"}, 262144, id="as the model, where nothing is said"),
        pytest.param(LLAMA_8B, {"tensor_parallel": 4}, 32768, id="two heads on each of four"),
        pytest.param(LLAMA_8B, {"tensor_parallel": 16}, 16384, id="one head at least"),
        pytest.param(DEEPSEEK_V3, {}, 61 * 576 * 2, id="a latent and a rotated key"),
        pytest.param(DEEPSEEK_V3, {"tensor_parallel": 8}, 61 * 576 * 2, id="a latent is not shared out"),
        pytest.param(SMOLLM2, {}, 23040, id="2 x 30 layers x 3 heads x 64 x 2 bytes"),
    ],
)
def test_a_token_takes_in_the_cache(config: dict[str, Any], options: dict[str, Any], expected: int) -> None:
    assert kv_bytes_per_token(config, **options) == expected


def test_layers_that_slide_keep_their_window_and_linear_ones_nothing() -> None:
    kinds = ["full_attention", "sliding_attention", "linear_attention", "linear_attention"]
    config = decoder(512, 4, 8, 8, 1024, 1000, layer_types=kinds, sliding_window=100)
    each = 2 * 512 * 2
    assert kv_bytes(config, 60) == 2 * 60 * each
    assert kv_bytes(config, 1000) == (1000 + 100) * each


@pytest.mark.parametrize(
    ("config", "options", "gib"),
    [
        pytest.param(LLAMA_8B, {}, 14.96, id="bfloat16"),
        pytest.param(LLAMA_8B, {"dtype": "float32"}, 29.92, id="float32"),
        pytest.param(LLAMA_8B, {"tensor_parallel": 2}, 7.48, id="on two"),
        pytest.param(LLAMA_8B, {"quantization": "fp8"}, 8.46, id="fp8, embeddings as they are"),
        pytest.param({**LLAMA_8B, "torch_dtype": "float32"}, {}, 14.96, id="auto never takes float32"),
        pytest.param(
            {**LLAMA_8B, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
            {},
            5.34,
            id="gptq: published files have 5.7 GB",
        ),
        pytest.param(
            {
                **LLAMA_8B,
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 8, "group_size": None}}},
                },
            },
            {},
            8.46,
            id="compressed-tensors, 8 bits",
        ),
        pytest.param(LLAMA_8B, {"quantization": "bitsandbytes"}, 5.61, id="bitsandbytes"),
        pytest.param(LLAMA_8B, {"quantization": "mxfp4"}, 5.41, id="mxfp4"),
        pytest.param(DEEPSEEK_V3, {}, 626.8, id="DeepSeek-V3 in fp8"),
    ],
)
def test_weights_take(config: dict[str, Any], options: dict[str, Any], gib: float) -> None:
    assert weight_bytes(config, **options) / GIB == pytest.approx(gib, rel=0.015)


def test_a_plan_that_fits_says_its_arithmetic() -> None:
    found = plan(LLAMA_8B, available_bytes=20 * GIB, max_length=4096, running=4)
    assert found.fits
    assert found.message == (
        "weights 15.0 GiB + KV 2.00 GiB for 4,096 tokens x 4 = 17.0 GiB of 20.0 GiB available"
    )
    assert found.most_running == 10
    assert found.longest == 10328


def test_a_plan_that_does_not_fit_says_what_would() -> None:
    found = plan(LLAMA_8B, available_bytes=16 * GIB, max_length=16384, running=2)
    assert not found.fits
    assert found.message == (
        "weights 15.0 GiB + KV 4.00 GiB for 16,384 tokens x 2 = 19.0 GiB > 16.0 GiB available; "
        "the largest length that would fit: 4,272 tokens"
    )
    longest = plan(LLAMA_8B, available_bytes=16 * GIB, max_length=4272, running=2)
    assert longest.fits
    assert not plan(LLAMA_8B, available_bytes=16 * GIB, max_length=4273, running=2).fits


def test_fewer_at_once_are_offered_where_some_fit() -> None:
    found = plan(LLAMA_8B, available_bytes=16 * GIB, max_length=4096, running=8)
    assert found.message.endswith("the largest length that would fit: 1,068 tokens, or 2 at once")


@pytest.mark.parametrize(
    ("config", "tensor_parallel", "told"),
    [
        (LLAMA_70B, 1, "the weights alone do not fit; shared by 2 such GPUs (tensor_parallel) they would"),
        (DEEPSEEK_V3, 1, "the weights alone do not fit; shared by 8 such GPUs (tensor_parallel) they would"),
        (DEEPSEEK_V3, 4, "available on each GPU; the weights alone do not fit; shared by 8 such GPUs"),
        ({**DEEPSEEK_V3, "num_attention_heads": 127}, 1, "take a smaller model, or one that is quantised"),
    ],
)
def test_weights_that_do_not_fit_are_told(config: dict[str, Any], tensor_parallel: int, told: str) -> None:
    found = plan(config, available_bytes=80 * GIB, max_length=1024, tensor_parallel=tensor_parallel)
    assert not found.fits
    assert found.longest == found.most_running == 0
    assert told in found.message


def test_the_length_is_that_of_the_model_unless_told() -> None:
    assert plan(SMOLLM2, available_bytes=GIB).max_length == 8192


@given(available=st.integers(0, 200 * GIB), length=st.integers(1, 200_000), running=st.integers(1, 64))
def test_what_a_plan_offers_fits_and_no_more_does(available: int, length: int, running: int) -> None:
    found = plan(LLAMA_8B, available_bytes=available, max_length=length, running=running)
    assert found.fits == (found.most_running >= running)
    assert found.fits == (found.longest >= length)
    if found.longest:
        assert plan(LLAMA_8B, available_bytes=available, max_length=found.longest, running=running).fits
    if not found.fits:
        more = found.longest + 1
        assert not plan(LLAMA_8B, available_bytes=available, max_length=more, running=running).fits


@pytest.mark.parametrize(
    ("config", "options", "told"),
    [
        ({}, {}, "its config.json says 'hidden_size' is None"),
        ({**LLAMA_8B, "hidden_size": "4096"}, {}, "'hidden_size' is '4096', and a whole number from 1"),
        (LLAMA_8B, {"dtype": "bf16"}, "dtype is 'bf16'; choose auto, float32"),
        (LLAMA_8B, {"kv_dtype": "int3"}, "the KV cache's dtype is 'int3'; choose auto"),
    ],
)
def test_what_cannot_be_planned_is_told(config: dict[str, Any], options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        plan(config, available_bytes=GIB, max_length=10, **options)
    assert told in str(raised.value)
