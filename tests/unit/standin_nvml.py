"""In the place of NVIDIA's `pynvml`: GPUs as a test makes them up, which answer as NVML documents it, or fail.

It is no simulation of a driver: it has the functions that `mosaic_routing.gpus` asks, and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20
UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 3, 4, 6
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 9, 12, 13, 15, 999
_TEXTS = {
    UNINITIALIZED: "Uninitialized",
    NOT_SUPPORTED: "Not Supported",
    NO_PERMISSION: "Insufficient Permissions",
    NOT_FOUND: "Not Found",
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    FUNCTION_NOT_FOUND: "Function Not Found",
    GPU_IS_LOST: "GPU is lost",
    UNKNOWN: "Unknown Error",
}
HOST_BRIDGE, SYSTEM = 30, 50
TO_GPU, TO_SWITCH = 0, 2


class NVMLError(Exception):
    """As that of pynvml: the number is its `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(_TEXTS[value])
        self.value = value


@dataclass
class StandinGpu:
    """What a GPU of the stand-in answers.

    Attributes:
        links: where each NVLink that is up leads: the bus number of a GPU, or None for a switch.
        fails: by function, the error with which this GPU answers it.
    """

    name: str
    uuid: str
    total_mib: int
    bus: int
    capability: tuple[int, int] = (9, 0)
    used_mib: int = 0
    gpu_use: int = 0
    temperature: int = 40
    power_mw: int = 70_000
    limit_mw: int = 700_000
    links: list[int | None] = field(default_factory=list)
    slices: list[StandinGpu] = field(default_factory=list)
    level: int = HOST_BRIDGE
    fails: dict[str, int] = field(default_factory=dict)


def h100s(count: int = 2, *, links: int = 18) -> list[StandinGpu]:
    """As in an HGX machine: each with 18 NVLinks to the switch."""
    return [
        StandinGpu("NVIDIA H100 80GB HBM3", f"GPU-h{n}", 81_559, 0x10 + n, links=[None] * links)
        for n in range(count)
    ]


def l4s(count: int = 2) -> list[StandinGpu]:
    """Cards on PCIe, without NVLink."""
    return [
        StandinGpu(
            "NVIDIA L4", f"GPU-l{n}", 23_034, 0x20 + n, (8, 9), limit_mw=72_000, fails={"NvLinkState": 3}
        )
        for n in range(count)
    ]


def sliced_h100() -> StandinGpu:
    """An H100 in MIG mode, with two slices; its utilisation is not told then."""
    name = "NVIDIA H100 80GB HBM3"
    slices = [
        StandinGpu(f"{name} MIG 1g.10gb", "MIG-a", 9_984, 0),
        StandinGpu(f"{name} MIG 3g.40gb", "MIG-b", 40_448, 0, used_mib=448),
    ]
    return StandinGpu(name, "GPU-m", 81_559, 0x30, slices=slices, fails={"UtilizationRates": NOT_SUPPORTED})


class StandinNvml:
    """The library.

    Attributes:
        gpus: what there is; a test may change it between readings.
        fails: by function, the error with which it answers for every GPU.
        sessions: how many `nvmlInit` have had no `nvmlShutdown` yet.
        inits: how often it was opened.
        called: how often each function was asked.
    """

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, gpus: list[StandinGpu], fails: dict[str, int] | None = None) -> None:
        self.gpus, self.fails = gpus, fails or {}
        self.sessions = self.inits = 0
        self.called: dict[str, int] = {}

    def __getattr__(self, function: str) -> Callable[..., Any]:
        if not function.startswith("nvml"):
            raise AttributeError(function)
        name = function.removeprefix("nvml").removeprefix("DeviceGet")
        answer = getattr(type(self), f"_{name}")
        return lambda *arguments: self._asked(name, answer, *arguments)

    def _asked(self, name: str, answer: Callable[..., Any], *arguments: Any) -> Any:
        self.called[name] = self.called.get(name, 0) + 1
        if self.sessions == 0 and name != "Init":
            raise NVMLError(UNINITIALIZED)
        for fails in (self.fails, *(each.fails for each in arguments if isinstance(each, StandinGpu))):
            if name in fails:
                raise NVMLError(fails[name])
        return answer(self, *arguments)

    def _Init(self) -> None:
        self.inits += 1
        self.sessions += 1

    def _Shutdown(self) -> None:
        self.sessions -= 1

    def _SystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def _Count(self) -> int:
        return len(self.gpus)

    def _HandleByIndex(self, index: int) -> StandinGpu:
        gpu = self.gpus[index]
        if "HandleByIndex" in gpu.fails:
            raise NVMLError(gpu.fails["HandleByIndex"])
        return gpu

    def _Name(self, gpu: StandinGpu) -> str:
        return gpu.name

    def _UUID(self, gpu: StandinGpu) -> str:
        return gpu.uuid

    def _MemoryInfo(self, gpu: StandinGpu) -> Any:
        return SimpleNamespace(total=gpu.total_mib * MIB, free=(gpu.total_mib - gpu.used_mib) * MIB)

    def _UtilizationRates(self, gpu: StandinGpu) -> Any:
        return SimpleNamespace(gpu=gpu.gpu_use, memory=0)

    def _Temperature(self, gpu: StandinGpu, sensor: int) -> int:
        assert sensor == 0
        return gpu.temperature

    def _CudaComputeCapability(self, gpu: StandinGpu) -> list[int]:
        return list(gpu.capability)

    def _PowerUsage(self, gpu: StandinGpu) -> int:
        return gpu.power_mw

    def _EnforcedPowerLimit(self, gpu: StandinGpu) -> int:
        return gpu.limit_mw

    def _MigMode(self, gpu: StandinGpu) -> list[int]:
        return [int(bool(gpu.slices)), int(bool(gpu.slices))]

    def _MaxMigDeviceCount(self, gpu: StandinGpu) -> int:
        return 7

    def _MigDeviceHandleByIndex(self, gpu: StandinGpu, place: int) -> StandinGpu:
        if place >= len(gpu.slices):
            raise NVMLError(NOT_FOUND)
        return gpu.slices[place]

    def _PciInfo(self, gpu: StandinGpu) -> Any:
        return SimpleNamespace(domain=0, bus=gpu.bus, device=0)

    def _NvLinkState(self, gpu: StandinGpu, link: int) -> int:
        return int(link < len(gpu.links))

    def _NvLinkRemoteDeviceType(self, gpu: StandinGpu, link: int) -> int:
        return TO_SWITCH if gpu.links[link] is None else TO_GPU

    def _NvLinkRemotePciInfo(self, gpu: StandinGpu, link: int) -> Any:
        return SimpleNamespace(domain=0, bus=gpu.links[link], device=0)

    def _TopologyCommonAncestor(self, a: StandinGpu, b: StandinGpu) -> int:
        return max(a.level, b.level)


FUNCTIONS = sorted(name[1:] for name in vars(StandinNvml) if name[0] == "_" and name[1].isupper())
"""All that it answers."""
