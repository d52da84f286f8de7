"""Whether this machine has a GPU; asks its driver, since vLLM and torch take seconds to import."""

from __future__ import annotations

import ctypes
from pathlib import Path

_NVML = "libnvidia-ml.so.1"
_AMD = Path("/dev/kfd")
"""The device of AMD's driver, through which its GPUs compute."""


def why_none() -> str:
    """Why no GPU can be used here; empty where one can."""
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return "" if _AMD.exists() else f"its driver is not installed ({_NVML})"
    if failed := nvml.nvmlInit_v2():
        return f"its driver does not answer (NVML error {failed})"
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    return "" if count.value else "its driver finds none"
