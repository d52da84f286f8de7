"""From a model spec to vLLM: the environment that it reads and the arguments that its engine takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mosaic_queues.errors import ConfigurationError
from mosaic_tasks.engines.vllm.spec import ModelSpec, check_options

GIB = 1 << 30

_EVERYWHERE = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    # What it warns of at each start is nothing that a user could mend; what it fails by is told by us.
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Not `sys.stderr`, which Celery replaces by a logger.
    "VLLM_LOGGING_STREAM": "ext://sys.__stderr__",
    # A fork of a process with threads and a loop is no good, and would keep its files.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_ON_CPU = {
    # The model in EngineCore itself rather than in a child of it: half the memory.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # More threads fight for the processors unless Intel's OpenMP is preloaded.
    "OMP_NUM_THREADS": "1",
}
_OFFLINE = "HF_HUB_OFFLINE"
_QUIET = {"PYTHONWARNINGS": "ignore", "TORCH_LOGS": "-all", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""What Python, torch and its C++ part warn of in EngineCore is of their own matters, and in a form of its own."""
_CPU_CACHE_GB = 1.0
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM can be set up for."""


def prepare_environment(spec: ModelSpec, *, cpu: bool | None = None) -> None:
    """Sets what vLLM reads from the environment, where the user did not set it.

    Args:
        spec: of the model.
        cpu: whether vLLM runs without a GPU; None before it is imported.
    """
    wanted = dict(_EVERYWHERE)
    if cpu and spec.tensor_parallel == 1:
        wanted |= _ON_CPU
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def core_variables(spec: ModelSpec) -> Mapping[str, str]:
    """What the processes of an engine alone find in their environment, where the user did not set it.

    A model that lies in a folder shall not ask the hub; another one in this process may have to be fetched.
    """
    wanted = _QUIET if spec.folder is None else {**_QUIET, _OFFLINE: "1"}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def tracker_variables() -> Mapping[str, str]:
    """As `core_variables`, for the process that frees what killed engines leave: that it does is no news."""
    filters = os.environ.get("PYTHONWARNINGS")
    ours = "ignore:resource_tracker:UserWarning"
    return {"PYTHONWARNINGS": f"{filters},{ours}" if filters else ours}


def engine_arguments(
    spec: ModelSpec, *, cpu: bool, gpu_gb: float | None = None, lora_rank: int = 0
) -> dict[str, Any]:
    """The arguments of `AsyncEngineArgs` for a spec.

    Args:
        spec: of the model.
        cpu: whether vLLM runs without a GPU.
        gpu_gb: memory of one GPU; needed where the spec says `memory_gb`.
        lora_rank: the largest of the adapters' ranks.
    """
    chosen = {
        "model": str(spec.folder or spec.model),
        "revision": spec.revision,
        "dtype": "float32" if cpu and spec.dtype == "auto" else spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel,
        "max_model_len": spec.max_length,
        "max_num_seqs": spec.max_running,
        "quantization": spec.quantization,
        "device_ids": list(spec.gpus) or None,
        "scheduling_policy": "priority",
        "use_tqdm_on_load": False,
        "disable_log_stats": True,  # vLLM's own loggers; ours are given
        **_memory(spec, cpu, gpu_gb),
        **_adapters(spec, lora_rank),
        **({"enforce_eager": True} if cpu else {}),
        **spec.options,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def known_arguments() -> frozenset[str]:
    """The names of the arguments that the installed vLLM takes."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    return frozenset(field.name for field in fields(AsyncEngineArgs))


def checked_arguments(spec: ModelSpec, **given: Any) -> dict[str, Any]:
    """`engine_arguments`, once the spec's options were compared with those that vLLM has.

    Raises:
        ConfigurationError: vLLM has no such option.
    """
    check_options(spec.options, known_arguments())
    return engine_arguments(spec, **given)


def _memory(spec: ModelSpec, cpu: bool, gpu_gb: float | None) -> Mapping[str, Any]:
    if spec.kv_memory_gb is not None:
        return {"kv_cache_memory_bytes": int(spec.kv_memory_gb * GIB)}
    if cpu:
        # vLLM's own rule takes a share of the whole machine's memory.
        return {"kv_cache_memory_bytes": int((spec.memory_gb or _CPU_CACHE_GB) * GIB)}
    if spec.memory_gb is None:
        return {}
    if gpu_gb is None or spec.memory_gb > gpu_gb:
        raise ConfigurationError(
            f"model {spec.alias!r}: memory_gb {spec.memory_gb:g} is more than the GPU has ({gpu_gb or 0:.1f} GiB)"
        )
    return {"gpu_memory_utilization": spec.memory_gb / gpu_gb}


def _adapters(spec: ModelSpec, rank: int) -> Mapping[str, Any]:
    if not spec.adapters:
        return {}
    rooms = next((room for room in _RANKS if room >= rank), None)
    if rooms is None:
        raise ConfigurationError(
            f"model {spec.alias!r}: an adapter has rank {rank}; vLLM takes {_RANKS[-1]} at most"
        )
    return {"enable_lora": True, "max_loras": len(spec.adapters), "max_lora_rank": rooms}
