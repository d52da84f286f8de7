"""What is wrong with a model's folder or an adapter's, as far as its files tell without loading them.

A safetensors file begins with the length of its header (8 bytes, little endian) and the header, JSON that gives each
tensor's shape and where its bytes lie: so a file that is cut off, and an adapter that does not fit, show at once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mosaic_queues.errors import ConfigurationError

Shapes = dict[str, tuple[int, ...]]
"""Shape of each tensor, by its name."""

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100 << 20
_ADAPTED = "base_model.model."
_LISTED = 6


def read_config(folder: Path) -> dict[str, Any]:
    """The model's `config.json`.

    Raises:
        ConfigurationError: the folder is not there, or holds no model.
    """
    if not folder.exists():
        raise ConfigurationError(f"there is no model folder {str(folder)!r}; correct the path")
    if not folder.is_dir():
        raise ConfigurationError(
            f"{str(folder)!r} is a file; give the model's folder, or a spec that ends in .yaml"
        )
    if not (folder / "config.json").is_file():
        names = sorted(entry.name for entry in folder.iterdir())[:_LISTED]
        held = f"it holds {', '.join(names)}" if names else "it is empty"
        raise ConfigurationError(f"{str(folder)!r} is no model folder: it has no config.json ({held})")
    return _json(folder / "config.json")


def check_model(folder: Path) -> dict[str, Any]:
    """The model's configuration, once its files were looked at.

    Raises:
        ConfigurationError: a file is missing, cut off or unreadable.
    """
    config = read_config(folder)
    if not any(True for pattern in _WEIGHTS for _ in folder.glob(pattern)):
        raise ConfigurationError(f"the model folder {str(folder)!r} holds no weights ({', '.join(_WEIGHTS)})")
    if (folder / _INDEX).is_file():
        for name in sorted(set(_json(folder / _INDEX).get("weight_map", {}).values())):
            if not (folder / name).is_file():
                raise ConfigurationError(
                    f"the model folder {str(folder)!r} lacks {name!r}, which its index names"
                )
    shapes(folder)
    return config


def check_adapter(name: str, adapter: Path, base: Path | None) -> int:
    """The rank of a LoRA adapter, once it was compared with the model that it shall sit on.

    Args:
        name: by which agents ask for it.
        adapter: its folder.
        base: folder of the model; None: a model that is not on this machine yet, so nothing can be compared.

    Raises:
        ConfigurationError: it is no adapter, or one for another model.
    """
    where = f"the adapter {name!r} ({str(adapter)!r})"
    if not (adapter / "adapter_config.json").is_file():
        raise ConfigurationError(f"{where} is no adapter folder: it has no adapter_config.json")
    config = _json(adapter / "adapter_config.json")
    if not isinstance(rank := config.get("r"), int):
        raise ConfigurationError(
            f"{where} says no rank 'r' in its adapter_config.json; is it a LoRA adapter?"
        )
    if base is not None and (wrong := _misfit(shapes(adapter), shapes(base))):
        made_for = config.get("base_model_name_or_path") or "a model that it does not name"
        raise ConfigurationError(
            f"{where} is for another model than {str(base)!r}: {wrong}; it was made for {made_for!r}"
        )
    return rank


def shapes(folder: Path) -> Shapes:
    """The shapes of all tensors in the folder's safetensors files.

    Raises:
        ConfigurationError: one is cut off or unreadable.
    """
    found: Shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= {name: tuple(tensor["shape"]) for name, tensor in _tensors(path).items()}
    return found


def _misfit(adapter: Shapes, base: Shapes) -> str:
    """The first of the adapter's matrices that does not fit the base's; empty: all do, or none can be compared."""
    if not base:
        return ""
    for name, own, weight in _pairs(adapter, base):
        module = name.rpartition(".lora_")[0]
        if weight is None:
            return f"that has no layer {module!r}"
        # A adapts the input (last dimension of the weight), B the output (first).
        side, mine = ("input", own[-1]) if ".lora_A." in name else ("output", own[0])
        theirs = weight[-1] if side == "input" else weight[0]
        if mine != theirs:
            return f"layer {module!r} has {theirs} {side}s there, {mine} in the adapter"
    return ""


def _pairs(adapter: Shapes, base: Shapes) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...] | None]]:
    for full, own in adapter.items():
        if ".lora_A." in full or ".lora_B." in full:
            name = full.removeprefix(_ADAPTED)
            yield name, own, base.get(f"{name.rpartition('.lora_')[0]}.weight")


def _tensors(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size, _LONGEST_HEADER):
            raise ConfigurationError(
                f"the weights {str(path)!r} are corrupt: they do not begin as safetensors do"
            )
        header = file.read(length)
    try:
        tensors: dict[str, Any] = json.loads(header)
        tensors.pop("__metadata__", None)
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigurationError(
            f"the weights {str(path)!r} are corrupt: their header cannot be read"
        ) from None
    if size != end:
        raise ConfigurationError(
            f"the weights {str(path)!r} are corrupt: {size:,} bytes, where the header says {end:,}; copy them again"
        )
    return tensors


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{str(path)!r} is corrupt: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{str(path)!r} is corrupt: it holds no JSON object")
    return value
