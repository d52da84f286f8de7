"""The GPU classes: what the data sheets say of each, and which class a GPU belongs to, by its name and memory.

Figures are those of the manufacturers' data sheets: memory as sold, bandwidth of that memory, and half-precision
arithmetic of the matrix units without sparsity (data sheets of NVIDIA often tell twice that, "with sparsity"; of
GeForce cards the figure with FP32 accumulation). Of what is sold in several forms the fastest one counts, unless they
differ so much that they are classes of their own (`h100`, `h100-pcie`, `h100-nvl`).

A slice of a GPU (MIG) is a class too, `h100-1g-10gb`: its arithmetic is so many sevenths of the whole, its bandwidth
the share of the memory that it has.

A class's name is a part of queue names: small letters, digits and `-` only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

Vendor = Literal["nvidia", "amd"]
Format = Literal["fp32", "fp16", "bf16", "int8", "int4", "fp8", "fp4"]

CPU = "cpu"
"""The class of a worker without a GPU; it has no figures."""
FORMATS: tuple[Format, ...] = ("fp32", "fp16", "bf16", "int8", "int4", "fp8", "fp4")
_GIB = 1 << 30
_SEVENTHS = 7
_FORMATS: tuple[tuple[tuple[int, int], tuple[Format, ...]], ...] = (
    ((10, 0), ("fp32", "fp16", "bf16", "int8", "fp8", "fp4")),
    ((9, 0), ("fp32", "fp16", "bf16", "int8", "fp8")),
    ((8, 9), ("fp32", "fp16", "bf16", "int8", "int4", "fp8")),
    ((8, 0), ("fp32", "fp16", "bf16", "int8", "int4")),
    ((7, 5), ("fp32", "fp16", "int8", "int4")),
    ((7, 0), ("fp32", "fp16")),
    ((0, 0), ("fp32",)),
)
"""From so high a compute capability on; the matrix units of Hopper gave up INT4."""
_ARCHITECTURES = {
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
}
_AMD_FORMATS: Mapping[str, tuple[Format, ...]] = {
    "cdna2": ("fp32", "fp16", "bf16", "int8"),
    "cdna3": ("fp32", "fp16", "bf16", "int8", "fp8"),
    "cdna4": ("fp32", "fp16", "bf16", "int8", "fp8", "fp4"),
}
ARCHITECTURES = (*_ARCHITECTURES, *_AMD_FORMATS)
"""Those that a GPU may be of."""


class GpuClass(msgspec.Struct, frozen=True):
    """What the GPUs of a class have in common.

    Attributes:
        memory_gb: as sold.
        architecture: such as `hopper`, `cdna3`.
        compute_capability: NVIDIA's; None: has none.
        formats: numbers that its matrix units compute with.
        bandwidth_gb_s: of its memory.
        tflops: half precision, dense.
    """

    name: str
    vendor: Vendor
    memory_gb: float
    architecture: str
    compute_capability: tuple[int, int] | None
    formats: frozenset[Format]
    bandwidth_gb_s: float
    tflops: float


def formats_of(compute_capability: tuple[int, int]) -> frozenset[Format]:
    """What the matrix units of an NVIDIA GPU compute with."""
    found = (formats for least, formats in _FORMATS if compute_capability >= least)
    return frozenset(next(found))


def architecture_of(compute_capability: tuple[int, int]) -> str:
    """The architecture of an NVIDIA GPU; empty: older than Volta."""
    found = [name for name, least in _ARCHITECTURES.items() if compute_capability >= least]
    return found[-1] if found else ""


def _nvidia(
    name: str, memory_gb: float, capability: tuple[int, int], bandwidth_gb_s: float, tflops: float
) -> GpuClass:
    architecture, formats = architecture_of(capability), formats_of(capability)
    return GpuClass(name, "nvidia", memory_gb, architecture, capability, formats, bandwidth_gb_s, tflops)


def _amd(name: str, memory_gb: float, architecture: str, bandwidth_gb_s: float, tflops: float) -> GpuClass:
    formats = frozenset(_AMD_FORMATS[architecture])
    return GpuClass(name, "amd", memory_gb, architecture, None, formats, bandwidth_gb_s, tflops)


_TABLE = (
    _nvidia("v100-16", 16, (7, 0), 900, 125),
    _nvidia("v100-32", 32, (7, 0), 900, 125),
    _nvidia("t4", 16, (7, 5), 300, 65),
    _nvidia("a2", 16, (8, 6), 200, 18),
    _nvidia("a10", 24, (8, 6), 600, 125),
    _nvidia("a10g", 24, (8, 6), 600, 70),
    _nvidia("a16", 16, (8, 6), 200, 17.9),
    _nvidia("a30", 24, (8, 0), 933, 165),
    _nvidia("a40", 48, (8, 6), 696, 149.7),
    _nvidia("a100-40", 40, (8, 0), 1555, 312),
    _nvidia("a100-80", 80, (8, 0), 2039, 312),
    _nvidia("rtx-a4000", 16, (8, 6), 448, 76.7),
    _nvidia("rtx-a5000", 24, (8, 6), 768, 111.1),
    _nvidia("rtx-a6000", 48, (8, 6), 768, 154.8),
    _nvidia("rtx-3090", 24, (8, 6), 936, 71),
    _nvidia("l4", 24, (8, 9), 300, 121),
    _nvidia("l40", 48, (8, 9), 864, 181),
    _nvidia("l40s", 48, (8, 9), 864, 362),
    _nvidia("rtx-6000-ada", 48, (8, 9), 960, 364.2),
    _nvidia("rtx-4090", 24, (8, 9), 1008, 165.2),
    _nvidia("h20", 96, (9, 0), 4000, 148),
    _nvidia("h100", 80, (9, 0), 3350, 989),
    _nvidia("h100-pcie", 80, (9, 0), 2000, 756),
    _nvidia("h100-nvl", 94, (9, 0), 3900, 835),
    _nvidia("gh200", 96, (9, 0), 4000, 989),
    _nvidia("gh200-144", 144, (9, 0), 4900, 989),
    _nvidia("h200", 141, (9, 0), 4800, 989),
    _nvidia("h200-nvl", 141, (9, 0), 4800, 835),
    _nvidia("b200", 180, (10, 0), 8000, 2250),
    _nvidia("gb200", 186, (10, 0), 8000, 2500),
    _nvidia("b300", 288, (10, 3), 8000, 2250),
    _nvidia("gb300", 288, (10, 3), 8000, 2500),
    _nvidia("rtx-5090", 32, (12, 0), 1792, 209.5),
    _nvidia("rtx-pro-6000", 96, (12, 0), 1792, 503.8),
    _amd("mi210", 64, "cdna2", 1638, 181),
    _amd("mi250x", 64, "cdna2", 1638, 191.5),  # of one of its two dies, which are GPUs to every program
    _amd("mi300a", 128, "cdna3", 5300, 980.6),
    _amd("mi300x", 192, "cdna3", 5300, 1307.4),
    _amd("mi325x", 256, "cdna3", 6000, 1307.4),
    _amd("mi350x", 288, "cdna4", 8000, 2306.9),
    _amd("mi355x", 288, "cdna4", 8000, 2516.6),
)
CLASSES: Mapping[str, GpuClass] = MappingProxyType({each.name: each for each in _TABLE})
"""All known classes, by name, without slices; `gpu_class` knows those too."""

_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"GH200 144G", ("gh200-144",)),
    (r"GH200", ("gh200",)),
    (r"GB300", ("gb300",)),
    (r"GB200", ("gb200",)),
    (r"B300", ("b300",)),
    (r"B200", ("b200",)),
    (r"H200 NVL", ("h200-nvl",)),
    (r"H200", ("h200",)),
    (r"H100 NVL", ("h100-nvl",)),
    (r"H100 PCIe", ("h100-pcie",)),
    (r"H100", ("h100", "h100-nvl")),
    (r"H20", ("h20",)),
    (r"A100", ("a100-40", "a100-80")),
    (r"V100S?", ("v100-16", "v100-32")),
    (r"(?:RTX )?6000 Ada Generation", ("rtx-6000-ada",)),
    (r"RTX PRO 6000", ("rtx-pro-6000",)),
    (r"RTX A(?P<number>[456]000)", ("rtx-a{number}",)),
    (r"GeForce RTX (?P<number>3090|4090|5090)(?! (?:Ti|D|Laptop))", ("rtx-{number}",)),
    (r"(?:Tesla )?(?P<number>T4|A2|A10|A10G|A16|A30|A40|L4|L40|L40S)", ("{number}",)),
    (r"MI250X?", ("mi250x",)),
    (r"(?P<number>MI(?:210|300A|300X|325X|350X|355X))", ("{number}",)),
)
"""How the drivers name GPUs; the first that fits counts, and of several classes the one with the nearest memory."""
_SLICE = re.compile(r"MIG (?P<compute>\d+)[cg]\.(?:\d+g\.)?(?P<memory>\d+)gb", re.IGNORECASE)
_SLICED = re.compile(r"(?P<whole>.+)-(?P<compute>\d)g-(?P<memory>\d+)gb")


def class_of(name: str, memory_bytes: int | None = None) -> str:
    """The class of a GPU: one of `CLASSES`, a slice of one, or a name made of the GPU's, when nothing is known of it.

    Args:
        name: as the driver says it: `NVIDIA A100-SXM4-80GB`, `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
        memory_bytes: of the whole GPU, also where `name` is that of a slice; None: not known.
    """
    slice_of = _SLICE.search(name)
    whole = _whole(name[: slice_of.start()] if slice_of else name, memory_bytes)
    return f"{whole}-{slice_of['compute']}g-{slice_of['memory']}gb" if slice_of else whole


def _whole(name: str, memory_bytes: int | None) -> str:
    for pattern, classes in _NAMES:
        if found := re.search(rf"(?<![A-Z0-9]){pattern}(?![A-Z0-9])", name, re.IGNORECASE):
            named = [each.format(**found.groupdict()).lower() for each in classes]
            return _nearest(named, _memory_gb(name, memory_bytes))
    return _slug(name)


def _memory_gb(name: str, memory_bytes: int | None) -> float:
    """What is not told counts as little."""
    if memory_bytes is not None:
        return memory_bytes / _GIB
    told = re.search(r"(\d+) ?GB", name)
    return float(told[1]) if told else 0.0


def _nearest(classes: list[str], memory_gb: float) -> str:
    return min(classes, key=lambda each: abs(CLASSES[each].memory_gb - memory_gb))


def _slug(name: str) -> str:
    """A class for a GPU that the table does not know: `quadro-p620`."""
    words = re.sub(r"\b(?:NVIDIA|AMD|GeForce|Instinct|Radeon|Corporation)\b", "", name, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "gpu"


def gpu_class(name: str) -> GpuClass | None:
    """What is known of a class, or of a slice of one; None: nothing."""
    if (found := _SLICED.fullmatch(name)) is None:
        return CLASSES.get(name)
    whole, compute, memory_gb = CLASSES.get(found["whole"]), int(found["compute"]), float(found["memory"])
    if whole is None or compute > _SEVENTHS:
        return None
    share = min(1.0, memory_gb / whole.memory_gb)
    return msgspec.structs.replace(
        whole,
        name=name,
        memory_gb=memory_gb,
        bandwidth_gb_s=whole.bandwidth_gb_s * share,
        tflops=whole.tflops * compute / _SEVENTHS,
    )


__all__ = [
    "ARCHITECTURES",
    "CLASSES",
    "CPU",
    "FORMATS",
    "Format",
    "GpuClass",
    "Vendor",
    "architecture_of",
    "class_of",
    "formats_of",
    "gpu_class",
]
