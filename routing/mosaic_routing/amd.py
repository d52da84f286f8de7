"""The AMD GPUs of this machine, as far as the kernel's files tell: name, memory, utilisation, temperature, power.

No library of AMD is asked. Slices and links (Infinity Fabric) are not seen. Each field may be unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mosaic_routing.classes import class_of
from mosaic_routing.gpus import Gpu, Gpus, formats_known
from mosaic_routing.kernel_files import number_of, text_of

_CARDS = Path("/sys/class/drm")
_VENDOR = "0x1002"
_LEAST_BYTES = 4 << 30
"""A GPU with less memory of its own draws the screen; no model fits into it."""
_NAMES = {
    "0x7408": "AMD Instinct MI250X",
    "0x740c": "AMD Instinct MI250X/MI250",
    "0x740f": "AMD Instinct MI210",
    "0x74a0": "AMD Instinct MI300A",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a5": "AMD Instinct MI325X",
    "0x75a0": "AMD Instinct MI350X",
    "0x75a3": "AMD Instinct MI355X",
}
"""By the PCI id of the device, where the card does not say its name itself."""


def amd_gpus(cards: Path = _CARDS) -> Gpus:
    """What there is now.

    Args:
        cards: the kernel's folder of them.
    """
    folders = sorted(cards.glob("card[0-9]*/device"), key=lambda folder: (len(str(folder)), str(folder)))
    ours = [each for each in folders if text_of(each / "vendor") == _VENDOR and _is_large(each)]
    if not ours:
        return Gpus(why="no AMD GPU")
    return Gpus(gpus=tuple(_gpu(folder, index) for index, folder in enumerate(ours)))


def _is_large(folder: Path) -> bool:
    return (number_of(folder / "mem_info_vram_total") or 0) >= _LEAST_BYTES


def _gpu(folder: Path, index: int) -> Gpu:
    device = text_of(folder / "device")
    name = _NAMES.get(device) or text_of(folder / "product_name") or f"AMD GPU {device}"
    total, used = number_of(folder / "mem_info_vram_total"), number_of(folder / "mem_info_vram_used")
    busy, temperature = number_of(folder / "gpu_busy_percent"), _sensor(folder, "temp1_input")
    power, limit = _sensor(folder, "power1_average", "power1_input"), _sensor(folder, "power1_cap")
    its_class = class_of(name, total)
    return Gpu(
        index=index,
        uuid=text_of(folder / "unique_id"),
        name=name,
        gpu_class=its_class,
        memory_bytes=total,
        free_bytes=None if total is None or used is None else max(0, total - used),
        use=None if busy is None else busy / 100,
        temperature_c=None if temperature is None else temperature / 1e3,
        power_w=None if power is None else power / 1e6,
        power_limit_w=None if limit is None else limit / 1e6,
        formats=formats_known(its_class, None),
    )


def _sensor(folder: Path, *names: str) -> int | None:
    """The first of these that some sensor of the card has."""
    return next(_sensors(folder, names), None)


def _sensors(folder: Path, names: tuple[str, ...]) -> Iterator[int]:
    for name in names:
        for file in sorted(folder.glob(f"hwmon/hwmon*/{name}")):
            if (value := number_of(file)) is not None:
                yield value


__all__ = ["amd_gpus"]
