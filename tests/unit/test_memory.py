"""How much memory models need, against what their makers publish."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import ConfigurationError
from mosaic_routing.memory import (
    GIB,
    active_parameters,
    kv_bytes,
    kv_bytes_per_token,
    layers,
    parameters,
    plan,
    weight_bytes,
)


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
DEEPSEEK_V2 = decoder(
    5120,
    60,
    128,
    128,
    12288,
    102400,
    model_type="deepseek_v2",
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
    n_routed_experts=160,
    num_experts_per_tok=6,
    n_shared_experts=2,
    moe_intermediate_size=1536,
    first_k_dense_replace=1,
    moe_layer_freq=1,
)
GPT_OSS = decoder(
    2880,
    24,
    64,
    8,
    2880,
    201088,
    model_type="gpt_oss",
    head_dim=64,
    num_local_experts=32,
    num_experts_per_tok=4,
    quantization_config={"quant_method": "mxfp4"},
)
LLAMA4 = decoder(
    5120,
    48,
    40,
    8,
    8192,
    202048,
    model_type="llama4_text",
    head_dim=128,
    num_local_experts=128,
    num_experts_per_tok=1,
    interleave_moe_layer_step=2,
    intermediate_size_mlp=16384,
)
COMMAND_R = decoder(8192, 40, 64, 64, 22528, 256000, model_type="cohere")
del COMMAND_R["tie_word_embeddings"]
FALCON_7B = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "num_kv_heads": 71,
    "multi_query": True,
    "new_decoder_architecture": False,
    "vocab_size": 65024,
    "torch_dtype": "bfloat16",
}
FALCON_40B = {
    **FALCON_7B,
    "hidden_size": 8192,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
}
MPT_7B = {
    "model_type": "mpt",
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "expansion_ratio": 4,
    "max_seq_len": 2048,
    "vocab_size": 50432,
    "torch_dtype": "bfloat16",
}
DBRX = {
    "model_type": "dbrx",
    "d_model": 6144,
    "n_layers": 40,
    "n_heads": 48,
    "vocab_size": 100352,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "attn_config": {"model_type": "", "kv_n_heads": 8},
    "ffn_config": {"model_type": "", "ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}
CHATGLM3 = {
    "model_type": "chatglm",
    "hidden_size": 4096,
    "num_layers": 28,
    "num_attention_heads": 32,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "kv_channels": 128,
    "ffn_hidden_size": 13696,
    "padded_vocab_size": 65024,
    "torch_dtype": "float16",
}
JAMBA = decoder(
    4096,
    32,
    32,
    8,
    14336,
    65536,
    model_type="jamba",
    num_experts=16,
    num_experts_per_tok=2,
    attn_layer_period=8,
    attn_layer_offset=4,
    expert_layer_period=2,
    expert_layer_offset=1,
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
        pytest.param(decoder(16384, 126, 128, 8, 53248, 128256), 405.85e9, id="Llama-3.1-405B"),
        pytest.param(decoder(8192, 80, 64, 8, 29568, 152064), 72.7e9, id="Qwen2-72B"),
        pytest.param(
            decoder(6144, 56, 48, 8, 16384, 32768, num_local_experts=8), 140.6e9, id="Mixtral-8x22B"
        ),
        pytest.param(DEEPSEEK_V2, 235.7e9, id="DeepSeek-V2"),
        pytest.param(decoder(5120, 40, 32, 8, 14336, 131072, head_dim=128), 12.25e9, id="Mistral-Nemo"),
        pytest.param(decoder(4096, 48, 32, 4, 11008, 64000), 8.83e9, id="Yi-1.5-9B"),
        pytest.param(decoder(4096, 32, 32, 8, 6400, 32064, num_local_experts=16), 41.9e9, id="Phi-3.5-MoE"),
        pytest.param(
            decoder(3072, 32, 24, 8, 9216, 256000, model_type="nemotron", head_dim=128), 4.19e9, id="Minitron"
        ),
        pytest.param(GPT_OSS, 20.9e9, id="gpt-oss-20b"),
        pytest.param(LLAMA4, 400.7e9, id="Llama-4-Maverick"),
        pytest.param(
            {"text_config": LLAMA4, "model_type": "llama4"}, 400.7e9, id="the same, as it is published"
        ),
        pytest.param(COMMAND_R, 34.98e9, id="Command-R"),
        pytest.param(FALCON_7B, 6.92e9, id="Falcon-7B"),
        pytest.param(FALCON_40B, 41.3e9, id="Falcon-40B"),
        pytest.param(MPT_7B, 6.65e9, id="MPT-7B"),
        pytest.param(DBRX, 131.6e9, id="DBRX"),
        pytest.param(CHATGLM3, 6.24e9, id="ChatGLM3-6B"),
    ],
)
def test_the_parameters_are_those_that_were_published(config: dict[str, Any], published: float) -> None:
    assert parameters(config) == pytest.approx(published, rel=0.011)


@pytest.mark.parametrize(
    ("config", "published"),
    [
        pytest.param(LLAMA_8B, 8.03e9, id="all of a dense one"),
        pytest.param({**MIXTRAL, "num_experts_per_tok": 2}, 12.9e9, id="Mixtral-8x7B"),
        pytest.param(DEEPSEEK_V2, 21.4e9, id="DeepSeek-V2"),
        pytest.param({**DEEPSEEK_V3, "num_experts_per_tok": 8}, 37.5e9, id="DeepSeek-V3"),
        pytest.param({**QWEN3_30B, "num_experts_per_tok": 8}, 3.35e9, id="Qwen3-30B-A3B"),
        pytest.param(DBRX, 36e9, id="DBRX"),
    ],
)
def test_so_many_parameters_are_at_work_for_a_token(config: dict[str, Any], published: float) -> None:
    assert active_parameters(config) == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("config", "published"),
    [
        pytest.param(LLAMA_70B, 327_680, id="Llama-3.1-70B"),
        pytest.param(decoder(16384, 126, 128, 8, 53248, 128256), 516_096, id="Llama-3.1-405B"),
        pytest.param(decoder(3584, 28, 28, 4, 18944, 152064), 57_344, id="Qwen2-7B"),
        pytest.param(MIXTRAL, 131_072, id="Mixtral-8x7B"),
        pytest.param(DEEPSEEK_V2, 69_120, id="DeepSeek-V2: 60 layers x 576 x 2 bytes"),
        pytest.param(DEEPSEEK_V3, 70_272, id="DeepSeek-V3"),
        pytest.param(GEMMA2_9B, 344_064, id="Gemma-2-9B"),
        pytest.param(decoder(3072, 32, 32, 32, 8192, 32064), 393_216, id="Phi-3.5-mini"),
        pytest.param(decoder(5120, 40, 32, 8, 14336, 131072, head_dim=128), 163_840, id="Mistral-Nemo"),
        pytest.param(decoder(4096, 48, 32, 4, 11008, 64000), 98_304, id="Yi-1.5-9B"),
        pytest.param(FALCON_7B, 8_192, id="Falcon-7B: one head for all queries"),
        pytest.param(FALCON_40B, 122_880, id="Falcon-40B"),
        pytest.param(DBRX, 163_840, id="DBRX"),
        pytest.param(CHATGLM3, 28_672, id="ChatGLM3-6B"),
        pytest.param(JAMBA, 16_384, id="Jamba: attention in 4 of 32 layers"),
    ],
)
def test_a_token_keeps_so_much(config: dict[str, Any], published: int) -> None:
    assert kv_bytes_per_token(config) == published


def test_layers_are_counted_under_any_name() -> None:
    assert [layers(config) for config in (LLAMA_8B, GPT2, MPT_7B, CHATGLM3)] == [32, 12, 32, 28]


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
        pytest.param(GPT_OSS, {}, 12.8, id="gpt-oss-20b: its experts alone in mxfp4, 12.8 GiB published"),
        pytest.param(
            {
                **LLAMA_8B,
                "quantization_config": {"quant_method": "bitsandbytes", "bnb_4bit_use_double_quant": True},
            },
            {},
            5.31,
            id="bitsandbytes with scales that are quantised too: published files have 5.7 GB",
        ),
        pytest.param(
            {
                **decoder(8192, 80, 64, 8, 28672, 128256),
                "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
            },
            {},
            37.0,
            id="awq: published files of Llama-3.1-70B have 39.8 GB",
        ),
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
