"""The GPUs of a machine, read from a stand-in for NVML, and from files as AMD's driver has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin_nvml import (
    DRIVER_NOT_LOADED,
    FUNCTIONS,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    MIB,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SYSTEM,
    UNINITIALIZED,
    UNKNOWN,
    StandinGpu,
    StandinNvml,
    h100s,
    l4s,
    sliced_h100,
)

from mosaic_routing.amd import amd_gpus
from mosaic_routing.gpus import LINKS_EVERY, NO_DRIVER, NO_LIBRARY, Gpu, GpuLink, Gpus, Nvml


def read(library: StandinNvml) -> Gpus:
    return Nvml(lambda: library).read()


class TestNvidia:
    def test_a_gpu_tells_all_of_itself(self) -> None:
        [gpu] = h100s(1, links=0)
        gpu.used_mib, gpu.gpu_use, gpu.temperature, gpu.power_mw = 1_559, 37, 61, 512_500
        [found] = read(StandinNvml([gpu])).gpus
        assert found == Gpu(
            index=0,
            uuid="GPU-h0",
            name="NVIDIA H100 80GB HBM3",
            gpu_class="h100",
            memory_bytes=81_559 * MIB,
            free_bytes=80_000 * MIB,
            use=0.37,
            temperature_c=61,
            power_w=512.5,
            power_limit_w=700,
            driver="570.86.15",
            compute_capability=(9, 0),
            formats=("fp32", "fp16", "bf16", "int8", "fp8"),
        )

    def test_h100s_meet_in_an_nvswitch(self) -> None:
        links = read(StandinNvml(h100s(3))).links
        assert links == tuple(
            GpuLink(a=a, b=b, nvlinks=18, is_switched=True, path="phb") for a, b in ((0, 1), (0, 2), (1, 2))
        )

    def test_nvlinks_from_gpu_to_gpu_are_counted_by_pair(self) -> None:
        first, second, third = (
            StandinGpu("NVIDIA A100-SXM4-80GB", f"GPU-{n}", 81_920, n + 1) for n in range(3)
        )
        first.links, second.links, third.links = [2, 2, 2, 2, 3], [1, 1, 1, 1], [1]
        found = {(link.a, link.b): link for link in read(StandinNvml([first, second, third])).links}
        assert {pair: link.nvlinks for pair, link in found.items()} == {(0, 1): 4, (0, 2): 1, (1, 2): 0}
        assert not any(link.is_switched for link in found.values())

    def test_l4s_are_joined_by_pcie_alone(self) -> None:
        one, two = l4s()
        two.level = SYSTEM
        assert read(StandinNvml([one, two])).links == (GpuLink(a=0, b=1, path="sys"),)

    def test_slices_are_gpus_of_their_own(self) -> None:
        whole, small, large = read(StandinNvml([sliced_h100()])).gpus
        assert (whole.gpu_class, whole.is_sliced, whole.use) == ("h100", True, None)
        assert [(each.gpu_class, each.uuid, each.slice_of) for each in (small, large)] == [
            ("h100-1g-10gb", "MIG-a", "GPU-m"),
            ("h100-3g-40gb", "MIG-b", "GPU-m"),
        ]
        assert (large.memory_bytes, large.free_bytes) == (40_448 * MIB, 40_000 * MIB)
        assert small.compute_capability == (9, 0)
        assert "fp8" in small.formats
        assert not any(each.problem for each in (whole, small, large))

    def test_memory_that_another_process_takes_is_not_free(self) -> None:
        library = StandinNvml(h100s(1))
        reader = Nvml(lambda: library)
        assert reader.read().gpus[0].free_bytes == 81_559 * MIB
        library.gpus[0].used_mib = 60_000
        assert reader.read().gpus[0].free_bytes == 21_559 * MIB

    def test_a_gpu_that_is_lost_is_told_and_is_back_after_its_reset(self) -> None:
        library = StandinNvml(h100s(2))
        reader = Nvml(lambda: library)
        library.gpus[1].fails = dict.fromkeys(FUNCTIONS, GPU_IS_LOST)
        for _ in range(2):
            well, lost = reader.read().gpus
            assert (well.problem, lost.index, lost.problem) == (
                "",
                1,
                "GPU is lost (nvmlDeviceGetHandleByIndex)",
            )
        library.gpus[1].fails = {}
        assert [gpu.problem for gpu in reader.read().gpus] == ["", ""]
        assert (library.inits, library.sessions) == (3, 1)

    def test_a_gpu_that_is_lost_in_the_middle_of_a_reading_is_told(self) -> None:
        library = StandinNvml(h100s(1))
        library.gpus[0].fails = {"Temperature": GPU_IS_LOST}
        [gpu] = read(library).gpus
        assert (gpu.uuid, gpu.temperature_c, gpu.problem) == (
            "GPU-h0",
            None,
            "GPU is lost (nvmlDeviceGetTemperature)",
        )

    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize("error", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN, GPU_IS_LOST])
    def test_an_error_of_any_function_leaves_the_rest(self, function: str, error: int) -> None:
        library = StandinNvml([*h100s(1), sliced_h100()], fails={function: error})
        reader = Nvml(lambda: library)
        for _ in range(2):
            found = reader.read()
            assert bool(found.gpus) != bool(found.why)
        reader.close()
        library.fails = {}
        assert [gpu.problem for gpu in reader.read().gpus] == [""] * 4

    def test_what_a_gpu_does_not_support_is_no_problem(self) -> None:
        asked = [name for name in FUNCTIONS if name not in ("Init", "Shutdown", "Count", "HandleByIndex")]
        library = StandinNvml(h100s(1), fails=dict.fromkeys(asked, NOT_SUPPORTED))
        assert read(library).gpus == (Gpu(index=0),)

    def test_functions_that_an_old_library_lacks_are_not_asked(self) -> None:
        class Old(StandinNvml):
            def __getattr__(self, function: str) -> object:
                if "Mig" in function or "NvLink" in function:
                    raise AttributeError(function)
                return super().__getattr__(function)

        found = read(Old(h100s(2)))
        assert [gpu.gpu_class for gpu in found.gpus] == ["h100", "h100"]
        assert [link.nvlinks for link in found.links] == [0]

    def test_links_are_read_again_now_and_then_and_when_the_gpus_change(self) -> None:
        library = StandinNvml(h100s(2))
        reader = Nvml(lambda: library)
        reader.read()
        library.gpus[0].links.pop()
        assert reader.read().links[0].nvlinks == 18
        for _ in range(LINKS_EVERY - 1):
            found = reader.read()
        assert found.links[0].nvlinks == 17
        library.gpus.append(StandinGpu("NVIDIA H100 80GB HBM3", "GPU-new", 81_559, 0x40))
        assert len(reader.read().links) == 3


class TestWithoutNvidia:
    def test_without_the_library_it_says_how_to_get_it(self) -> None:
        def missing() -> None:
            raise ImportError("no module named pynvml")

        assert Nvml(missing).read() == Gpus(why=NO_LIBRARY)

    @pytest.mark.parametrize(
        ("error", "told"),
        [(LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"), (DRIVER_NOT_LOADED, "Driver Not Loaded")],
    )
    def test_without_a_driver_it_says_so_and_sees_it_when_it_comes(self, error: int, told: str) -> None:
        library = StandinNvml(l4s(1), fails={"Init": error})
        reader = Nvml(lambda: library)
        assert reader.read() == Gpus(why=f"NVML does not answer: {told}; {NO_DRIVER}")
        library.fails = {}
        assert [gpu.gpu_class for gpu in reader.read().gpus] == ["l4"]

    def test_a_driver_without_gpus_is_told(self) -> None:
        assert read(StandinNvml([])) == Gpus(
            why="NVIDIA's driver 570.86.15 finds no GPU; where there is one, nvidia-smi tells what is wrong"
        )

    def test_a_driver_that_goes_away_is_told_and_asked_again(self) -> None:
        library = StandinNvml(l4s(1))
        reader = Nvml(lambda: library)
        reader.read()
        library.sessions = 0  # the driver was unloaded and loaded again
        assert reader.read().why == f"NVML does not answer: Uninitialized; {NO_DRIVER}"
        assert len(reader.read().gpus) == 1

    def test_the_end_of_a_session_that_is_gone_is_no_error(self) -> None:
        library = StandinNvml(l4s(1))
        reader = Nvml(lambda: library)
        reader.read()
        library.fails = {"Shutdown": UNINITIALIZED}
        reader.close()
        reader.close()
        assert library.called["Shutdown"] == 1


def card(root: Path, name: str, files: dict[str, str]) -> None:
    for file, text in files.items():
        path = root / name / "device" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


MI300X = {
    "vendor": "0x1002",
    "device": "0x74a1",
    "unique_id": "a1b2c3",
    "mem_info_vram_total": str(196_592 * MIB),
    "mem_info_vram_used": str(592 * MIB),
    "gpu_busy_percent": "12",
    "hwmon/hwmon3/temp1_input": "48000",
    "hwmon/hwmon3/power1_average": "140000000",
    "hwmon/hwmon3/power1_cap": "750000000",
}


class TestAmd:
    def test_a_card_is_read_from_the_kernels_files(self, tmp_path: Path) -> None:
        card(tmp_path, "card1", MI300X)
        assert amd_gpus(tmp_path).gpus == (
            Gpu(
                index=0,
                uuid="a1b2c3",
                name="AMD Instinct MI300X",
                gpu_class="mi300x",
                memory_bytes=196_592 * MIB,
                free_bytes=196_000 * MIB,
                use=0.12,
                temperature_c=48,
                power_w=140,
                power_limit_w=750,
                formats=("fp32", "fp16", "bf16", "int8", "fp8"),
            ),
        )

    def test_what_the_driver_does_not_tell_stays_unknown(self, tmp_path: Path) -> None:
        card(
            tmp_path, "card0", {"vendor": "0x1002", "device": "0x9999", "mem_info_vram_total": str(16 << 30)}
        )
        (tmp_path / "card0" / "device" / "mem_info_vram_used").mkdir()  # cannot be read
        [gpu] = amd_gpus(tmp_path).gpus
        assert (gpu.name, gpu.gpu_class) == ("AMD GPU 0x9999", "gpu-0x9999")
        assert (gpu.free_bytes, gpu.use, gpu.temperature_c, gpu.formats) == (None, None, None, ())

    def test_other_vendors_screens_and_small_gpus_are_left_out(self, tmp_path: Path) -> None:
        card(tmp_path, "card0", {"vendor": "0x10de", "mem_info_vram_total": str(80 << 30)})
        card(tmp_path, "card1", {"vendor": "0x1002", "mem_info_vram_total": str(512 << 20)})
        card(tmp_path, "card2", {"vendor": "0x1002", "mem_info_vram_total": "nonsense"})
        (tmp_path / "card1-HDMI-A-1").mkdir()
        assert amd_gpus(tmp_path) == Gpus(why="no AMD GPU")
        assert amd_gpus(tmp_path / "nowhere") == Gpus(why="no AMD GPU")

    def test_cards_count_in_the_order_of_their_numbers(self, tmp_path: Path) -> None:
        for number in (10, 2):
            card(tmp_path, f"card{number}", MI300X | {"unique_id": str(number)})
        assert [(gpu.index, gpu.uuid) for gpu in amd_gpus(tmp_path).gpus] == [(0, "2"), (1, "10")]
