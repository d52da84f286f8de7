"""Folders of tiny models for tests: random weights, and a real tokenizer and chat template. Written in a second.

The same seed gives the same bytes, so that tests may compare answers.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BEGIN, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = """\
The team merged nine changes this week and closed four tickets. The report names what was done, what is late, and what
comes next. A worker takes a call from its queue, asks the engine, and records the answer; when it dies in the middle,
another one goes on from there. {"title": "Weekly report", "count": 12, "items": ["one", "two", "three"], "done": true}
Users see a system and its assistant: user, assistant, system. Numbers such as 0, 1, 17, 365 and 2048 are ordinary.
"""
WEIGHTS, ADAPTER_WEIGHTS = "model.safetensors", "adapter_model.safetensors"


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama-like model."""

    hidden: int = 128
    layers: int = 2
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    vocabulary: int = 448
    positions: int = 2048


TINY = Shape()


def write_model(folder: Path, *, seed: int = 0, shape: Shape = TINY) -> Path:
    """Writes a model folder as Hugging Face lays them out; vLLM and transformers load it."""
    folder.mkdir(parents=True)
    _write_tokenizer(folder, shape)
    _write(folder / "config.json", _config(shape))
    _write(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0})
    save_file(_weights(shape, seed), folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def write_adapter(folder: Path, *, base: str, seed: int = 0, shape: Shape = TINY, rank: int = 8) -> Path:
    """Writes a LoRA adapter, strong enough to change every answer of the model `base` of that shape."""
    folder.mkdir(parents=True)
    outputs = {"q_proj": shape.heads * shape.head_dim, "v_proj": shape.kv_heads * shape.head_dim}
    _write(folder / "adapter_config.json", _adapter_config(base, rank, sorted(outputs)))
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(shape.layers):
        for name, output in outputs.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{key}.lora_A.weight"] = _normal(random, rank, shape.hidden, scale=0.5)
            tensors[f"{key}.lora_B.weight"] = _normal(random, output, rank, scale=0.5)
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    return folder


def without_config(model: Path, folder: Path) -> Path:
    """A copy that lacks its config.json."""
    shutil.copytree(model, folder)
    (folder / "config.json").unlink()
    return folder


def with_truncated_weights(model: Path, folder: Path) -> Path:
    """A copy whose weights end in the middle, as after a download that broke off."""
    shutil.copytree(model, folder)
    weights = folder / WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    return folder


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_tokenizer(folder: Path, shape: Shape) -> None:
    """Byte-level BPE, which can write any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=[BEGIN, TURN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    if tokenizer.get_vocab_size() != shape.vocabulary:
        found = tokenizer.get_vocab_size()
        raise ValueError(f"TEXT gives {found} tokens, not {shape.vocabulary}; give a smaller vocabulary")
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": BEGIN, "eos_token": END, "pad_token": BEGIN}
    more = {"model_max_length": shape.positions, "clean_up_tokenization_spaces": False}
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE, **tokens, **more},
    )


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.hidden * 4,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _weights(shape: Shape, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    matrices = {
        "self_attn.q_proj": (query, shape.hidden),
        "self_attn.k_proj": (key, shape.hidden),
        "self_attn.v_proj": (key, shape.hidden),
        "self_attn.o_proj": (shape.hidden, query),
        "mlp.gate_proj": (shape.hidden * 4, shape.hidden),
        "mlp.up_proj": (shape.hidden * 4, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.hidden * 4),
    }
    ones = np.ones(shape.hidden, np.float32)
    tensors = {"model.embed_tokens.weight": _normal(random, shape.vocabulary, shape.hidden)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        for name, size in matrices.items():
            tensors[f"{prefix}.{name}.weight"] = _normal(random, *size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = ones
    return {**tensors, "model.norm.weight": ones}


def _normal(
    random: np.random.Generator, rows: int, columns: int, *, scale: float = 0.08
) -> np.ndarray[Any, Any]:
    return (random.standard_normal((rows, columns)) * scale).astype(np.float32)


def _adapter_config(base: str, rank: int, modules: list[str]) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank * 2,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
    }
