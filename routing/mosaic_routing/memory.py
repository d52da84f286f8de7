"""How much memory a model needs, from its Hugging Face `config.json`: pure arithmetic, before anything is loaded.

A decoder of L layers and width h has, with norms and biases (below 0.1 %) left out:

    embeddings        vocabulary x h, twice where the output is not tied to the input
    attention         h x d x (2 heads + 2 KV heads) a layer, d being the size of a head
    latent attention  (MLA, DeepSeek-V2 and later) the queries' and the shared latent's projections, down and up
    feed-forward      3 x h x intermediate a layer (2 x where there is no gate)
    experts           the same for each routed and shared expert, and h x experts of the router

A token passes through the experts that it is routed to and the shared ones, so fewer parameters are at work for it
(`active_parameters`) than lie in memory.

The KV cache keeps 2 x KV heads x d values for each token and layer, latent attention one latent and one rotated key
instead. Sliding layers keep no more than their window, where the configuration lists the layers' types. Layers without
attention keep nothing; their parameters are counted as those of attention, which is too little by some per cent.

With tensor parallelism each GPU holds its share of the weights and of the KV heads, one head at least; a latent cannot
be shared out. Quantised weights count their scales; embeddings stay as they are. What an engine needs beside
(activations, graphs) is not in here: leave it room in `available_bytes`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from mosaic_queues.errors import ConfigurationError

Config = Mapping[str, Any]

GIB = 1 << 30
_BITS = {"float32": 32, "float": 32, "float16": 16, "half": 16, "bfloat16": 16}
_CACHE_BITS = {"fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8, "int8": 8}
_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "kv_n_heads", "multi_query_group_num"),
    "head_dim": ("kv_channels",),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_top_k",),
}
"""What GPT-2, MPT, DBRX, ChatGLM, OPT and their kin call them."""
_PARTS = ("attn_config", "ffn_config")
"""Where DBRX and MPT keep some of their sizes."""
_UNGATED = frozenset(
    [
        "bloom",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gptj",
        "mpt",
        "nemotron",
        "opt",
        "phi",
        "starcoder2",
    ]
)
_LEARNED_POSITIONS = frozenset({"gpt2", "gpt_bigcode", "opt"})
_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text")
_TIED = frozenset(
    {
        "bloom",
        "cohere",
        "cohere2",
        "ernie4_5",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "minicpm3",
        "mpt",
        "opt",
        "smollm3",
    }
    | {"starcoder2", *_GEMMA}
)
"""Where the input's embeddings are the output's too, unless the configuration says otherwise."""
_NO_CACHE = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent"})
_LEAST_BITS = 4.0
_GROUP = 128
_PARALLEL = (2, 4, 8, 16, 32)


class Plan(msgspec.Struct, frozen=True):
    """What a model needs of one GPU, and whether that is there.

    Attributes:
        running: requests of `max_length` tokens that shall fit at once.
        kv_bytes: of all of them.
        longest: the most tokens a request may have so that `running` of them fit; 0: the weights alone do not.
        most_running: how many requests of `max_length` tokens fit.
        message: the arithmetic, and what would fit where this does not.
    """

    weight_bytes: int
    kv_bytes: int
    available_bytes: int
    max_length: int
    running: int
    longest: int
    most_running: int
    message: str

    @property
    def needed_bytes(self) -> int:
        """Weights and KV cache together."""
        return self.weight_bytes + self.kv_bytes

    @property
    def fits(self) -> bool:
        """Whether it can be hosted."""
        return self.needed_bytes <= self.available_bytes


def plan(
    config: Config,
    *,
    available_bytes: int,
    max_length: int | None = None,
    running: int = 1,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    quantization: str | None = None,
    tensor_parallel: int = 1,
) -> Plan:
    """Whether a model fits, with the arithmetic.

    Args:
        config: the model's `config.json`.
        available_bytes: memory of each GPU for weights and KV cache.
        max_length: tokens of a request, prompt and answer; default: the most that the model is made for.
        running: requests of that length at once.
        dtype, kv_dtype: as vLLM spells them; `auto`: as the configuration says, and half where it says float32.
        quantization: how weights are quantised on loading; default: as the configuration says.
        tensor_parallel: GPUs that share the model.

    Raises:
        ConfigurationError: the configuration lacks a size, or an argument means nothing.
    """
    text = _named(config)
    length = max_length or _longest(text)
    weights = weight_bytes(config, dtype=dtype, quantization=quantization, tensor_parallel=tensor_parallel)

    def cache(tokens: int) -> int:
        return kv_bytes(config, tokens, dtype=dtype, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel)

    free = available_bytes - weights
    longest = _most(lambda tokens: running * cache(tokens) <= free, upto=_longest(text, length))
    most_running = max(0, free // cache(length)) if cache(length) else running
    found = Plan(
        weights, running * cache(length), available_bytes, length, running, longest, most_running, ""
    )
    return msgspec.structs.replace(found, message=_message(found, config, tensor_parallel))


def parameters(config: Config) -> int:
    """How many parameters the model has, norms and biases left out.

    Raises:
        ConfigurationError: the configuration lacks a size.
    """
    text = _named(config)
    return _embedding_parameters(text) + _layer_parameters(text)


def active_parameters(config: Config) -> int:
    """How many of them are at work for one token: all, or those of the experts that a token passes through.

    Raises:
        ConfigurationError: the configuration lacks a size.
    """
    text = _named(config)
    experts = _experts(text)
    idle = experts - (text.get("num_experts_per_tok") or experts)
    return parameters(config) - (_expert_layers(text) * idle * _expert_size(text) if idle else 0)


def layers(config: Config) -> int:
    """How many layers the model has.

    Raises:
        ConfigurationError: the configuration does not say so.
    """
    return _size(_named(config), "num_hidden_layers")


def weight_bytes(
    config: Config, *, dtype: str = "auto", quantization: str | None = None, tensor_parallel: int = 1
) -> int:
    """Bytes of the weights on each of `tensor_parallel` GPUs.

    Raises:
        ConfigurationError: the configuration lacks a size, or `dtype` is unknown.
    """
    text = _named(config)
    plain = _bits_of(text, dtype)
    everything, quantised = parameters(config), _quantised_parameters(text, quantization)
    bits = (everything - quantised) * plain + quantised * _weight_bits(text, plain, quantization)
    return math.ceil(bits / 8 / tensor_parallel)


def kv_bytes(
    config: Config, tokens: int, *, dtype: str = "auto", kv_dtype: str = "auto", tensor_parallel: int = 1
) -> int:
    """Bytes of the KV cache of one request of so many tokens, on each of `tensor_parallel` GPUs.

    Raises:
        ConfigurationError: the configuration lacks a size, or a type is unknown.
    """
    text = _named(config)
    each = _cache_values(text, tensor_parallel) * _cache_bits(text, dtype, kv_dtype) // 8
    window = text.get("sliding_window") or tokens
    types = Counter(_layer_types(text))
    return each * sum(_kept(kind, tokens, window) * count for kind, count in types.items())


def kv_bytes_per_token(
    config: Config, *, dtype: str = "auto", kv_dtype: str = "auto", tensor_parallel: int = 1
) -> int:
    """Bytes of the KV cache that the first token takes; a later one takes no more.

    Raises:
        ConfigurationError: the configuration lacks a size, or a type is unknown.
    """
    return kv_bytes(config, 1, dtype=dtype, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel)


def _kept(kind: str, tokens: int, window: int) -> int:
    """Tokens that a layer keeps in the cache."""
    if kind in _NO_CACHE:
        return 0
    return min(tokens, window) if kind in ("sliding_attention", "chunked_attention") else tokens


def _named(config: Config) -> Config:
    """The sizes of the language model, by the names that most models give them; what sees or hears is small."""
    parts = [config.get(part) or {} for part in _PARTS]
    found = {**parts[0], **parts[1], **config, **(config.get("text_config") or {})}
    for name, others in _NAMES.items():
        if found.get(name) is None:
            found[name] = next((found[other] for other in others if found.get(other) is not None), None)
    return found


def _size(config: Config, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ConfigurationError(
            f"the memory of this model cannot be planned: its config.json says {name!r} is {value!r}, "
            "and a whole number from 1 is needed"
        )
    return value


def _longest(config: Config, least: int = 1) -> int:
    """The most tokens the model is made for, or `least` where that is more or nothing is said."""
    return max(config.get("max_position_embeddings") or 0, least)


def _heads(config: Config) -> tuple[int, int, int]:
    """Query heads, KV heads, and the size of a head."""
    heads = _size(config, "num_attention_heads")
    alone = config.get("multi_query") and not config.get("new_decoder_architecture")
    groups = 1 if alone else config.get("num_key_value_heads") or heads
    return heads, groups, config.get("head_dim") or _size(config, "hidden_size") // heads


def _embedding_parameters(config: Config) -> int:
    kind, width = config.get("model_type"), _size(config, "hidden_size")
    tied = config.get("tie_word_embeddings")
    tables = 1 if (kind in _TIED if tied is None else tied) else 2
    positions = _longest(config) if kind in _LEARNED_POSITIONS else 0
    return (tables * _size(config, "vocab_size") + positions) * width


def _layer_parameters(config: Config) -> int:
    count, experts = _size(config, "num_hidden_layers"), _expert_layers(config)
    dense = (count - experts) * _dense_parameters(config)
    sparse = experts * _expert_parameters(config) if experts else 0
    return count * _attention_parameters(config) + dense + sparse


def _attention_parameters(config: Config) -> int:
    heads, groups, size = _heads(config)
    width = _size(config, "hidden_size")
    if not config.get("kv_lora_rank"):
        return width * size * 2 * (heads + groups)
    latent, rotated = _size(config, "kv_lora_rank"), _size(config, "qk_rope_head_dim")
    plain, value = _size(config, "qk_nope_head_dim"), _size(config, "v_head_dim")
    asked, low = heads * (plain + rotated), config.get("q_lora_rank")
    queries = width * low + low * asked if low else width * asked
    return queries + width * (latent + rotated) + latent * heads * (plain + value) + heads * value * width


def _dense_parameters(config: Config) -> int:
    width = _size(config, "hidden_size")
    inner = config.get("intermediate_size_mlp") or config.get("intermediate_size") or 4 * width
    matrices = 2 if config.get("model_type") in _UNGATED else 3
    return matrices * width * int(inner)


def _experts(config: Config) -> int:
    """Routed experts of a layer that has experts."""
    return config.get("num_experts") or 0


def _expert_layers(config: Config) -> int:
    """How many layers have experts in the place of one feed-forward."""
    if not _experts(config):
        return 0
    return sum(_has_experts(config, layer) for layer in range(_size(config, "num_hidden_layers")))


def _has_experts(config: Config, layer: int) -> bool:
    period, step = config.get("expert_layer_period"), config.get("interleave_moe_layer_step")
    if period:
        return bool(layer % period == config.get("expert_layer_offset", 0))
    step, frequency = step or config.get("decoder_sparse_step") or 1, config.get("moe_layer_freq") or 1
    is_dense = layer < (config.get("first_k_dense_replace") or 0) or layer in (
        config.get("mlp_only_layers") or ()
    )
    return not is_dense and (layer + 1) % step == 0 and layer % frequency == 0


def _expert_size(config: Config) -> int:
    """Parameters of one routed expert."""
    inner = config.get("moe_intermediate_size") or _size(config, "intermediate_size")
    return 3 * _size(config, "hidden_size") * inner


def _expert_parameters(config: Config) -> int:
    """Of all experts of a layer, with what routes to them."""
    count = _experts(config)
    return count * (_expert_size(config) + _size(config, "hidden_size")) + _shared_parameters(config)


def _shared_parameters(config: Config) -> int:
    """Of the experts of a layer that every token passes through."""
    if config.get("shared_expert_intermediate_size"):
        return 3 * _size(config, "hidden_size") * _size(config, "shared_expert_intermediate_size")
    shared = 1 if config.get("model_type") == "llama4_text" else config.get("n_shared_experts") or 0
    return shared * _expert_size(config) if shared else 0


def _layer_types(config: Config) -> list[str]:
    """How each layer remembers what it has read."""
    count, period = _size(config, "num_hidden_layers"), config.get("attn_layer_period")
    if not period:
        return config.get("layer_types") or ["full_attention"] * count
    place = config.get("attn_layer_offset", 0)
    return ["full_attention" if layer % period == place else "mamba" for layer in range(count)]


def _bits_of(config: Config, dtype: str) -> int:
    if dtype == "auto":
        told = str(config.get("torch_dtype") or config.get("dtype") or "float16")
        return min(_BITS.get(told, 16), 16)
    if dtype not in _BITS:
        raise ConfigurationError(f"dtype is {dtype!r}; choose auto, {', '.join(_BITS)}")
    return _BITS[dtype]


def _cache_bits(config: Config, dtype: str, kv_dtype: str) -> int:
    if kv_dtype == "auto":
        return _bits_of(config, dtype)
    known = _BITS | _CACHE_BITS
    if kv_dtype not in known:
        raise ConfigurationError(f"the KV cache's dtype is {kv_dtype!r}; choose auto, {', '.join(known)}")
    return known[kv_dtype]


def _cache_values(config: Config, tensor_parallel: int) -> int:
    """Numbers that a layer keeps of a token, on each GPU."""
    if config.get("kv_lora_rank"):
        return _size(config, "kv_lora_rank") + _size(config, "qk_rope_head_dim")
    _, groups, size = _heads(config)
    return 2 * size * math.ceil(groups / tensor_parallel)


def _quantised_parameters(config: Config, quantization: str | None) -> int:
    """Those that a quantisation changes: the layers; of a mixture in mxfp4 its experts alone."""
    told: Config = config.get("quantization_config") or {}
    method = quantization or told.get("quant_method")
    if method == "mxfp4" and _experts(config):
        return _expert_layers(config) * _experts(config) * _expert_size(config)
    return _layer_parameters(config)


def _weight_bits(config: Config, plain: int, quantization: str | None) -> float:
    """Bits of a quantised weight, its share of the scales included; the least, where that is not told."""
    told: Config = config.get("quantization_config") or {}
    method = quantization or told.get("quant_method") or ""
    if not method:
        return plain
    bits, group = _told_bits(told), _told_group(told)
    if method == "bitsandbytes":
        double = told.get("bnb_4bit_use_double_quant")
        return 8.0 if told.get("load_in_8bit") else 4.127 if double else 4.5
    if "fp4" in method:
        return 4.25 if method == "mxfp4" else 4.5
    if bits is None:
        return 8.0 if "8" in method else _LEAST_BITS
    return bits + (16 + bits) / group if bits < 8 else bits


def _told_bits(told: Config) -> float | None:
    bits = told.get("bits") or told.get("w_bit") or _compressed(told).get("num_bits")
    return None if bits is None else float(bits)


def _told_group(told: Config) -> int:
    group = told.get("group_size") or told.get("q_group_size") or _compressed(told).get("group_size")
    return group if group and group > 0 else _GROUP


def _compressed(told: Config) -> Config:
    """How compressed-tensors says it: the weights of its first group of layers."""
    groups = list((told.get("config_groups") or {}).values())
    return (groups[0].get("weights") or {}) if groups else {}


def _most(fits: Any, *, upto: int) -> int:
    """The largest number from 0 to `upto` for which `fits` holds, given that it holds for all smaller ones."""
    low, high = 0, upto
    if not fits(0):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _message(found: Plan, config: Config, tensor_parallel: int) -> str:
    weights, cache = _gib(found.weight_bytes), _gib(found.kv_bytes)
    each = " on each GPU" if tensor_parallel > 1 else ""
    sum_of = (
        f"weights {weights} + KV {cache} for {found.max_length:,} tokens x {found.running} = "
        f"{_gib(found.needed_bytes)}"
    )
    if found.fits:
        return f"{sum_of} of {_gib(found.available_bytes)} available{each}"
    return (
        f"{sum_of} > {_gib(found.available_bytes)} available{each}; {_remedy(found, config, tensor_parallel)}"
    )


def _remedy(found: Plan, config: Config, tensor_parallel: int) -> str:
    if found.longest:
        fewer = f", or {found.most_running} at once" if 0 < found.most_running < found.running else ""
        return f"the largest length that would fit: {found.longest:,} tokens{fewer}"
    whole, heads = found.weight_bytes * tensor_parallel, _heads(_named(config))[0]
    enough = [
        count
        for count in _PARALLEL
        if count > tensor_parallel and heads % count == 0 and whole / count < found.available_bytes
    ]
    if enough:
        return f"the weights alone do not fit; shared by {enough[0]} such GPUs (tensor_parallel) they would"
    return "the weights alone do not fit; take a smaller model, or one that is quantised"


def _gib(count: int) -> str:
    """A number of bytes as people read it: three digits count."""
    value = count / GIB
    return f"{value:.2f} GiB" if value < 10 else f"{value:.1f} GiB"


__all__ = [
    "GIB",
    "Config",
    "Plan",
    "active_parameters",
    "kv_bytes",
    "kv_bytes_per_token",
    "layers",
    "parameters",
    "plan",
    "weight_bytes",
]
