"""GPU classes: the names that drivers give, and what follows from the class."""

from __future__ import annotations

import re

import pytest

from mosaic_routing.classes import CLASSES, FORMATS, architecture_of, class_of, formats_of, gpu_class

MIB = 1 << 20
NAMES = [
    ("Tesla V100-SXM2-16GB", 16160, "v100-16"),
    ("Tesla V100-SXM2-32GB", 32510, "v100-32"),
    ("Tesla V100S-PCIE-32GB", 32510, "v100-32"),
    ("Tesla T4", 15360, "t4"),
    ("NVIDIA A2", 15356, "a2"),
    ("NVIDIA A10", 23028, "a10"),
    ("NVIDIA A10G", 23028, "a10g"),
    ("NVIDIA A16", 15356, "a16"),
    ("NVIDIA A30", 24576, "a30"),
    ("NVIDIA A40", 46068, "a40"),
    ("NVIDIA A100-PCIE-40GB", 40960, "a100-40"),
    ("NVIDIA A100-SXM4-40GB", 40960, "a100-40"),
    ("NVIDIA A100-SXM4-80GB", 81920, "a100-80"),
    ("NVIDIA A100 80GB PCIe", 81920, "a100-80"),
    ("A100-SXM-80GB", 81251, "a100-80"),
    ("NVIDIA RTX A4000", 16376, "rtx-a4000"),
    ("NVIDIA RTX A5000", 24564, "rtx-a5000"),
    ("NVIDIA RTX A6000", 49140, "rtx-a6000"),
    ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtx-pro-6000"),
    ("NVIDIA GeForce RTX 3090", 24576, "rtx-3090"),
    ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
    ("NVIDIA GeForce RTX 5090", 32607, "rtx-5090"),
    ("NVIDIA L4", 23034, "l4"),
    ("NVIDIA L40", 46068, "l40"),
    ("NVIDIA L40S", 46068, "l40s"),
    ("NVIDIA H20", 97871, "h20"),
    ("NVIDIA H100 80GB HBM3", 81559, "h100"),
    ("NVIDIA H100 PCIe", 81559, "h100-pcie"),
    ("NVIDIA H100 NVL", 95830, "h100-nvl"),
    ("NVIDIA GH200 480GB", 97871, "gh200"),
    ("NVIDIA GH200 144G HBM3e", 147456, "gh200-144"),
    ("NVIDIA H200", 143771, "h200"),
    ("NVIDIA H200 NVL", 143771, "h200-nvl"),
    ("NVIDIA B200", 183359, "b200"),
    ("NVIDIA GB200", 189471, "gb200"),
    ("NVIDIA B300 SXM6 AC", 275040, "b300"),
    ("NVIDIA GB300", 284208, "gb300"),
    ("AMD Instinct MI210", 65520, "mi210"),
    ("AMD Instinct MI250X/MI250", 65520, "mi250x"),
    ("AMD Instinct MI300A", 131072, "mi300a"),
    ("AMD Instinct MI300X OAM", 196592, "mi300x"),
    ("AMD Instinct MI325X", 262128, "mi325x"),
    ("AMD Instinct MI355X", 294896, "mi355x"),
]


@pytest.mark.parametrize(("name", "memory_mib", "expected"), NAMES)
def test_the_names_of_drivers_are_known(name: str, memory_mib: int, expected: str) -> None:
    assert class_of(name, memory_mib * MIB) == expected
    # Of a GPU that does not tell its memory, the name and the class say enough.
    assert class_of(name) == expected


@pytest.mark.parametrize(("name", "memory_mib", "expected"), NAMES)
def test_the_memory_that_a_driver_tells_is_about_what_was_sold(
    name: str, memory_mib: int, expected: str
) -> None:
    assert 0.9 <= memory_mib / 1024 / CLASSES[expected].memory_gb <= 1.03


@pytest.mark.parametrize(
    ("name", "memory_mib", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 40960, "a100-40-1g-5gb"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 81920, "a100-80-3g-40gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", 81559, "h100-1g-10gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb", 81559, "h100-1g-20gb"),
        ("NVIDIA H200 MIG 7g.141gb", 143771, "h200-7g-141gb"),
    ],
)
def test_a_slice_is_a_class_of_its_own(name: str, memory_mib: int, expected: str) -> None:
    assert class_of(name, memory_mib * MIB) == expected
    assert gpu_class(expected) is not None


def test_a_slice_has_its_share() -> None:
    whole, part = CLASSES["h100"], gpu_class("h100-2g-20gb")
    assert part is not None
    assert (part.memory_gb, part.formats, part.architecture) == (20.0, whole.formats, "hopper")
    assert part.tflops == pytest.approx(whole.tflops * 2 / 7)
    assert part.bandwidth_gb_s == pytest.approx(whole.bandwidth_gb_s / 4)


@pytest.mark.parametrize("name", ["nothing", "cpu", "nothing-1g-10gb", "h100-9g-80gb", ""])
def test_of_what_is_not_in_the_table_nothing_is_known(name: str) -> None:
    assert gpu_class(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop-gpu"),
        ("Quadro P620", "quadro-p620"),
        ("NVIDIA GB10", "gb10"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("NVIDIA H1000", "h1000"),
        ("", "gpu"),
        ("\N{SNOWMAN}", "gpu"),
    ],
)
def test_a_gpu_that_nobody_knows_gets_a_name_that_suits_a_queue(name: str, expected: str) -> None:
    assert class_of(name, 0) == expected


def test_each_class_can_be_part_of_a_queue_and_has_its_figures() -> None:
    for name, known in CLASSES.items():
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", name)
        assert known.name == name
        assert min(known.memory_gb, known.bandwidth_gb_s, known.tflops) > 0
        assert known.formats <= set(FORMATS)
        assert (known.compute_capability is None) == (known.vendor == "amd")


@pytest.mark.parametrize(
    ("capability", "architecture", "has", "lacks"),
    [
        ((6, 1), "", "fp32", "fp16"),
        ((7, 0), "volta", "fp16", "bf16"),
        ((7, 5), "turing", "int8", "bf16"),
        ((8, 6), "ampere", "bf16", "fp8"),
        ((8, 9), "ada", "fp8", "fp4"),
        ((9, 0), "hopper", "fp8", "int4"),
        ((12, 1), "blackwell", "fp4", "int4"),
    ],
)
def test_formats_follow_from_the_compute_capability(
    capability: tuple[int, int], architecture: str, has: str, lacks: str
) -> None:
    assert architecture_of(capability) == architecture
    assert has in formats_of(capability)
    assert lacks not in formats_of(capability)
