"""How fast a model would be on a GPU class, by what the data sheet says: an estimate for what nobody measured.

Writing one token reads every weight that is at work once, at nine tenths of the memory's bandwidth, and each layer
costs some 60 us beside that (kernels that wait for each other; twice that where GPUs exchange their parts). For
Llama-3.1-8B on an A100 with 40 GB that makes 75 tokens a second, which is what a published sweep of vLLM 0.23 measured
(johnmusgrave.com/p/vllm-throughput-latency-sweep-on). Reading a prompt multiplies each of its tokens with those
weights, two operations a weight, at half of the arithmetic that the data sheet promises.
"""

from __future__ import annotations

from mosaic_routing.classes import GpuClass
from mosaic_routing.pool import Deployment, ModelPool, Size, Speed

_BANDWIDTH_SHARE = 0.9
_ARITHMETIC_SHARE = 0.5
_LAYER_S = 60e-6
_EXCHANGE_S = 60e-6
_FIRST_TOKEN_S = 0.02
"""Tokenising, scheduling, one step."""
_GIGA, _TERA = 1e9, 1e12


def speed_of(deployment: Deployment, pool: ModelPool, gpu: GpuClass | None) -> Speed | None:
    """What the pool says, or else an estimate; None: nothing is known.

    Args:
        gpu: of the deployment's class; None: nothing is known of it.
    """
    hosting = pool.model(deployment.model).hosting
    if deployment.speed or gpu is None or hosting is None or hosting.size is None:
        return deployment.speed
    return estimated_speed(hosting.size, gpu, tensor_parallel=deployment.tensor_parallel)


def estimated_speed(size: Size, gpu: GpuClass, *, tensor_parallel: int = 1) -> Speed:
    """How fast `tensor_parallel` GPUs of a class would be together, for one request alone."""
    read = size.weight_bytes * size.active / size.parameters / tensor_parallel
    each_layer_s = _LAYER_S + (_EXCHANGE_S if tensor_parallel > 1 else 0.0)
    step_s = read / (gpu.bandwidth_gb_s * _GIGA * _BANDWIDTH_SHARE) + size.layers * each_layer_s
    arithmetic = gpu.tflops * _TERA * _ARITHMETIC_SHARE * tensor_parallel
    return Speed(
        prefill_tokens_s=arithmetic / (2 * size.active),
        decode_tokens_s=1 / step_s,
        first_token_s=_FIRST_TOKEN_S,
        estimated=True,
    )


__all__ = ["estimated_speed", "speed_of"]
