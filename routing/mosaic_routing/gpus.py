"""The NVIDIA GPUs of this machine, through NVML, NVIDIA's management library (`pip install nvidia-ml-py`).

Nothing here is sure to answer: the library may not be installed, the driver may not run, a GPU may be lost while others
work, and of what there is to ask each model and version knows a part. So each field may be unknown, and whatever is
wrong is told as a sentence. A call may even hang: call `read` from a thread that nobody waits for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, Literal

import msgspec

from mosaic_routing.classes import FORMATS, Format, class_of, formats_of, gpu_class

PciPath = Literal["board", "pix", "pxb", "phb", "node", "sys"]
"""What lies between two GPUs on the PCIe bus, from near to far, as `nvidia-smi topo -m` calls it: they share a board,
one switch, several switches, a host bridge, a socket; or there is a link between sockets."""
NO_DRIVER = "where there are NVIDIA GPUs, install their driver, until nvidia-smi shows them"
NO_LIBRARY = "nvidia-ml-py is not installed; where there are NVIDIA GPUs: pip install 'mosaic-tasks[gpu]'"
LINKS_EVERY = 30
"""Links change with the GPUs, and when one breaks: they are read again after so many readings."""
_PATHS: dict[int, PciPath] = {0: "board", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}
"""By `NVML_TOPOLOGY_*`."""
_SWITCH = 2
"""`NVML_NVLINK_DEVICE_TYPE_SWITCH`"""
_CANNOT_TELL = frozenset({2, 3, 4, 6, 13})
"""Invalid argument (no such link), not supported, no permission, not found, function not found: no sign of trouble."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU, or one slice (MIG) of one, at one moment. What is not known is None or empty.

    Attributes:
        index: of the GPU on its machine, as the driver counts them; slices have that of the whole.
        name: as the driver says it.
        gpu_class: see `mosaic_routing.classes`.
        free_bytes: what no process has, of this worker or another.
        use: part of the last moments in which it worked, 0 to 1.
        formats: numbers that its matrix units compute with.
        slice_of: the uuid of the whole GPU, where this is a slice.
        is_sliced: its slices can be used, it cannot.
        problem: what is wrong with it; a GPU with a problem is not to be counted on.
    """

    index: int
    uuid: str = ""
    name: str = ""
    gpu_class: str = ""
    memory_bytes: int | None = None
    free_bytes: int | None = None
    use: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    driver: str = ""
    compute_capability: tuple[int, int] | None = None
    formats: tuple[Format, ...] = ()
    slice_of: str = ""
    is_sliced: bool = False
    problem: str = ""


class GpuLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What connects two GPUs of a machine.

    Attributes:
        a, b: their indices.
        nvlinks: how many NVLinks lead from one to the other, or from each to the switch that they share.
        is_switched: they meet in an NVSwitch.
        path: the way over the PCIe bus; None: not known.
    """

    a: int
    b: int
    nvlinks: int = 0
    is_switched: bool = False
    path: PciPath | None = None


class Gpus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPUs of a machine.

    Attributes:
        why: why there are none, or why they are not known, in one line.
    """

    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    why: str = ""


def formats_known(name: str, compute_capability: tuple[int, int] | None) -> tuple[Format, ...]:
    """The formats of a GPU: those of its class, else those of its compute capability, in a fixed order."""
    known = gpu_class(name)
    if known is not None:
        found = known.formats
    else:
        found = formats_of(compute_capability) if compute_capability else frozenset()
    return tuple(each for each in FORMATS if each in found)


def pynvml() -> Any:
    """NVIDIA's library.

    Raises:
        ImportError: it is not installed.
    """
    return importlib.import_module("pynvml")


class Nvml:
    """Reads NVIDIA's GPUs. The library stays open between readings, and is opened again after trouble.

    Args:
        load: imports the library.
    """

    def __init__(self, load: Callable[[], Any] = pynvml) -> None:
        self._load = load
        self._library: Any = None
        self._readings = 0
        self._linked: tuple[tuple[str, ...], tuple[GpuLink, ...]] = ((), ())

    def read(self) -> Gpus:
        """What there is now."""
        try:
            library = self._load()
        except ImportError:
            return Gpus(why=NO_LIBRARY)
        try:
            if self._library is None:
                library.nvmlInit()
                self._library, self._readings = library, 0
            found = self._read(library)
        except library.NVMLError as error:
            self.close()
            return Gpus(why=f"NVML does not answer: {error}; {NO_DRIVER}")
        if any(gpu.problem for gpu in found.gpus):
            self.close()  # a GPU that was reset is seen by a new session only
        return found

    def close(self) -> None:
        """Ends the session; the next reading begins another."""
        if (library := self._library) is None:
            return
        self._library = None
        try:
            library.nvmlShutdown()
        except library.NVMLError:
            return  # there was no session any more

    def _read(self, library: Any) -> Gpus:
        driver = _Asking(library).ask("nvmlSystemGetDriverVersion") or ""
        count = library.nvmlDeviceGetCount()
        found = [each for index in range(count) for each in _gpus(library, index, driver)]
        if not found:
            return Gpus(
                why=f"NVIDIA's driver {driver} finds no GPU; where there is one, nvidia-smi tells what is wrong"
            )
        return Gpus(gpus=tuple(found), links=self._links(library, found))

    def _links(self, library: Any, gpus: Sequence[Gpu]) -> tuple[GpuLink, ...]:
        whole = [gpu for gpu in gpus if not gpu.slice_of and gpu.uuid]
        uuids, is_due = tuple(gpu.uuid for gpu in whole), self._readings % LINKS_EVERY == 0
        self._readings += 1
        if is_due or uuids != self._linked[0]:
            self._linked = uuids, tuple(_links(library, [gpu.index for gpu in whole]))
        return self._linked[1]


class _Asking:
    """Asks about one GPU, and remembers the first answer that means trouble."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.problem = ""

    def ask(self, function: str, *arguments: Any) -> Any:
        """What NVML answers; None where this GPU, driver or version of the library cannot tell."""
        asked = getattr(self._library, function, None)
        if asked is None:
            return None
        try:
            return asked(*arguments)
        except self._library.NVMLError as error:
            if error.value not in _CANNOT_TELL:
                self.problem = self.problem or f"{error} ({function})"
            return None


def _gpus(library: Any, index: int, driver: str) -> Iterator[Gpu]:
    """A GPU and its slices."""
    asking = _Asking(library)
    handle = asking.ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        yield Gpu(index=index, driver=driver, problem=asking.problem or "the driver does not open it")
        return
    whole = _whole(asking, handle, Gpu(index=index, driver=driver))
    yield whole
    if whole.is_sliced:
        yield from _slices(asking, handle, whole)


def _whole(asking: _Asking, handle: Any, known: Gpu) -> Gpu:
    capability = asking.ask("nvmlDeviceGetCudaComputeCapability", handle)
    modes, use = (
        asking.ask("nvmlDeviceGetMigMode", handle),
        asking.ask("nvmlDeviceGetUtilizationRates", handle),
    )
    power = asking.ask("nvmlDeviceGetPowerUsage", handle)
    limit = asking.ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    temperature = asking.ask("nvmlDeviceGetTemperature", handle, 0)
    named = _named(asking, handle, known, tuple(capability) if capability else None, None)
    return msgspec.structs.replace(
        named,
        use=None if use is None else use.gpu / 100,
        temperature_c=temperature,
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        is_sliced=bool(modes and modes[0]),
        problem=asking.problem,
    )


def _named(
    asking: _Asking,
    handle: Any,
    known: Gpu,
    compute_capability: tuple[int, int] | None,
    whole_bytes: int | None,
) -> Gpu:
    """What both a GPU and a slice tell of themselves."""
    name = asking.ask("nvmlDeviceGetName", handle) or ""
    memory = asking.ask("nvmlDeviceGetMemoryInfo", handle)
    total = None if memory is None else memory.total
    its_class = class_of(name, whole_bytes or total) if name else ""
    return msgspec.structs.replace(
        known,
        uuid=asking.ask("nvmlDeviceGetUUID", handle) or "",
        name=name,
        gpu_class=its_class,
        memory_bytes=total,
        free_bytes=None if memory is None else memory.free,
        compute_capability=compute_capability,
        formats=formats_known(its_class, compute_capability),
    )


def _slices(asking: _Asking, whole_handle: Any, whole: Gpu) -> Iterator[Gpu]:
    known = Gpu(index=whole.index, driver=whole.driver, slice_of=whole.uuid)
    for place in range(asking.ask("nvmlDeviceGetMaxMigDeviceCount", whole_handle) or 0):
        handle = asking.ask("nvmlDeviceGetMigDeviceHandleByIndex", whole_handle, place)
        if handle is not None:
            yield _named(asking, handle, known, whole.compute_capability, whole.memory_bytes)


def _links(library: Any, indices: Sequence[int]) -> Iterator[GpuLink]:
    asking = _Asking(library)
    handles = {index: asking.ask("nvmlDeviceGetHandleByIndex", index) for index in indices}
    places = {index: _place(asking.ask("nvmlDeviceGetPciInfo", handle)) for index, handle in handles.items()}
    ends = {
        index: list(_nvlink_ends(asking, handle, _most_links(library))) for index, handle in handles.items()
    }
    for a, b in combinations(indices, 2):
        direct = ends[a].count(places[b]) if places[b] else 0
        switched = min(ends[a].count(_SWITCH), ends[b].count(_SWITCH))
        level = asking.ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
        yield GpuLink(
            a=a,
            b=b,
            nvlinks=direct or switched,
            is_switched=switched > 0 and not direct,
            path=_PATHS.get(level) if level is not None else None,
        )


def _most_links(library: Any) -> int:
    return int(getattr(library, "NVML_NVLINK_MAX_LINKS", 0))


_Place = tuple[int, int, int]


def _place(pci: Any) -> _Place | None:
    """Where something is on the PCIe bus."""
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _nvlink_ends(asking: _Asking, handle: Any, most: int) -> Iterator[_Place | int | None]:
    """What is at the other end of each link that is up: `_SWITCH`, or its place."""
    for link in range(most):
        if asking.ask("nvmlDeviceGetNvLinkState", handle, link) == 1:
            kind = asking.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            remote = None if kind == _SWITCH else asking.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            yield _SWITCH if kind == _SWITCH else _place(remote)


__all__ = [
    "LINKS_EVERY",
    "NO_LIBRARY",
    "Gpu",
    "GpuLink",
    "Gpus",
    "Nvml",
    "PciPath",
    "formats_known",
    "pynvml",
]
