"""The resource graph as text and as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from made_machines import engine, fleet, gpu, report

from mosaic_routing.drawing import ASCII, as_svg, as_text, free_of, gib, link_lines, milliseconds
from mosaic_routing.gpus import GpuLink, Gpus
from mosaic_routing.machines import machines
from mosaic_routing.reports import Aged

SVG = "{http://www.w3.org/2000/svg}"


def test_the_tree_shows_server_machines_gpus_links_and_engines() -> None:
    drawn = as_text(machines(fleet()), [engine("gpu1/w")]).splitlines()
    assert drawn[0] == "server"
    assert drawn[1] == "├─ gpu1  0.20 ms, 8 CPUs, load 1.5, 32.0 of 64.0 GiB free"
    assert drawn[2] == "│  ├─ GPU 0  h100, 60.0 of 80.0 GiB free"
    assert drawn[10:13] == [
        "│  ├─ links",
        "│  │  └─ each to each: 18 NVLinks through a switch",
        "│  └─ worker w@gpu1",
    ]
    assert drawn[13] == "│     └─ llama-3.1-8b  3 running, 0 waiting, 13 slots free"
    assert "│  ├─ GPU 0  l4, 2.0 of 22.0 GiB free, 97% busy, 71 C, 69 W" in drawn
    assert "│  ├─ GPU 1  l4, 2.0 of 22.0 GiB free, PROBLEM: GPU is lost" in drawn
    assert "│  │  └─ 0-1: PCIe, a PCIe host bridge" in drawn
    assert "└─ plain  not measured, 8 CPUs, load 1.5, 32.0 of 64.0 GiB free" in drawn
    assert "   ├─ no GPU: no driver" in drawn
    assert drawn[-2:] == ["between machines, measured:", "gpu1 ↔ gpu2  0.04 ms"]


def test_a_terminal_without_lines_gets_ascii() -> None:
    drawn = as_text(machines(fleet()), strokes=ASCII)
    assert drawn.isascii()
    assert "|- gpu1" in drawn
    assert "gpu1 <-> gpu2" in drawn


def test_slices_stand_below_their_gpu() -> None:
    part = gpu(0, uuid="MIG-a", gpu_class="h100-1g-10gb", slice_of="GPU-0")
    has = Gpus(gpus=(gpu(0, is_sliced=True), part, gpu(1)))
    drawn = as_text(machines([Aged(report(gpus=has), 0.0)]))
    assert "├─ GPU 0  h100, in slices\n   │  └─ slice  h100-1g-10gb, 60.0 of 80.0 GiB free" in drawn


def test_links_that_are_alike_stand_together() -> None:
    links = [
        GpuLink(a=0, b=1, nvlinks=4),
        GpuLink(a=2, b=3, nvlinks=4),
        GpuLink(a=0, b=2, nvlinks=1),
        GpuLink(a=0, b=3),
    ]
    assert link_lines(links) == ["0-1, 2-3: 4 NVLinks", "0-2: 1 NVLink", "0-3: not known"]
    assert link_lines(links[:1]) == ["0-1: 4 NVLinks"]


def test_figures_are_rounded_for_people() -> None:
    assert [gib(None), gib(22 << 30), gib(2 << 40)] == ["?", "22.0 GiB", "2,048 GiB"]
    assert [free_of(1, None), free_of(None, 1 << 30)] == ["memory not known", "1.0 GiB"]
    assert [milliseconds(each) for each in (None, 0.00004, 0.0152)] == ["not measured", "0.04 ms", "15 ms"]


def test_the_svg_has_a_box_for_each_gpu_and_lines_for_links_and_ways() -> None:
    root = ElementTree.fromstring(as_svg(machines(fleet()), [engine("gpu1/w")]))
    kinds = [each.get("class") for each in root.iter() if each.get("class")]
    assert (kinds.count("gpu"), kinds.count("bad")) == (17, 1)
    assert (kinds.count("nvlink"), kinds.count("way"), kinds.count("measured")) == (2 * 28, 4, 1)
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert {"server", "gpu1", "0.20 ms", "not measured", "GPU is lost", "97% busy"} <= set(words)
    height = int(root.get("height", "0"))
    assert all(int(each.get("y", "0")) < height for each in root.iter(f"{SVG}rect"))


def test_names_cannot_break_out_of_the_drawing() -> None:
    odd = report('<script>alert("x")</script>', gpus=Gpus(gpus=(gpu(name="\x1b[2J", problem="\x00<&"),)))
    told = machines([Aged(odd, 0.0)])
    ElementTree.fromstring(as_svg(told))
    assert "<script>" not in as_svg(told)
    assert "\x1b" not in as_text(told)
    assert "\x00" not in as_text(told)


def test_an_empty_fleet_is_a_server_alone() -> None:
    assert as_text([]) == "server\n"
    assert "server" in {each.text for each in ElementTree.fromstring(as_svg([])).iter(f"{SVG}text")}
