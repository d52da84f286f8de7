"""Whether a model fits into the memory that is free, before its weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from mosaic_queues.errors import ConfigurationError
from mosaic_routing.memory import Plan, plan, weight_bytes
from mosaic_tasks.engines.vllm.spec import ModelSpec

log = structlog.get_logger(__name__)


def check_fit(spec: ModelSpec, config: Any, *, cpu: bool) -> None:
    """Compares what the model needs with what is free.

    Args:
        spec: of the model.
        config: vLLM's `VllmConfig` for it.
        cpu: whether it runs without a GPU.

    Raises:
        ConfigurationError: it does not fit; with the arithmetic, and with what would fit.
    """
    try:
        found = planned(
            spec,
            config.model_config.hf_config.to_dict(),
            free_bytes=_free_on_cpu()
            if cpu
            else _free_on_gpus(spec, config.cache_config.gpu_memory_utilization),
            cache_bytes=config.cache_config.kv_cache_memory_bytes,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
        )
    except ConfigurationError as error:  # a kind of model that nobody has done the sums of
        log.warning(
            "engine.memory_unplanned", what="the memory was not checked", model=spec.alias, error=str(error)
        )
        return
    if not found.fits:
        raise ConfigurationError(f"model {spec.alias!r} does not fit: {found.message}")


def planned(
    spec: ModelSpec, config: dict[str, Any], *, free_bytes: int, cache_bytes: int | None, dtype: str
) -> Plan:
    """The arithmetic for one request of the greatest length.

    Args:
        spec: of the model.
        config: the model's `config.json`.
        free_bytes: of each GPU, or of the machine.
        cache_bytes: what the KV cache may take, or None for all that the weights leave.
        dtype: of the weights once they are loaded.
    """
    sizes = {"quantization": spec.quantization, "tensor_parallel": spec.tensor_parallel, "dtype": dtype}
    available = free_bytes
    if cache_bytes is not None:
        available = min(free_bytes, weight_bytes(config, **sizes) + cache_bytes)  # type: ignore[arg-type]
    return plan(config, available_bytes=available, max_length=spec.max_length, **sizes)  # type: ignore[arg-type]


def _free_on_cpu() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _free_on_gpus(spec: ModelSpec, share: float) -> int:
    """Of the fullest GPU, at most the share of it that vLLM may take."""
    from vllm.platforms import current_platform

    wanted: Sequence[int] = spec.gpus or range(spec.tensor_parallel)
    return min(_free_on_gpu(current_platform.device_id_to_physical_device_id(gpu), share) for gpu in wanted)


def _free_on_gpu(gpu: int, share: float) -> int:
    # NVML, since asking CUDA would make a context in this process, which costs memory of the GPU.
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(gpu))
    finally:
        pynvml.nvmlShutdown()
    return min(int(memory.free), int(memory.total * share))
