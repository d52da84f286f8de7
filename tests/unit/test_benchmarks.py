"""The pure parts of the benchmarks: figures, targets, counters, and the shapes that are compared."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mosaic_tasks import compile_workflow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module as a benchmark does: from the directory of the script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module


@pytest.fixture(scope="module")
def harness(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("harness")


@pytest.fixture(scope="module")
def overhead(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("overhead")


@pytest.fixture(scope="module")
def traffic(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("traffic")


@pytest.fixture(scope="module")
def ours(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("ours")


def times(overhead: ModuleType, kind: str, size: int, *seconds: float) -> object:
    spread = overhead.Spread(seconds)
    return overhead.Times(overhead.Shape(kind, size, len(seconds)), first_s=9.0, define_s=1.0, spread=spread)


@pytest.mark.parametrize(("value", "quick"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_asks_for_small_sizes(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch, value: str, quick: bool
) -> None:
    monkeypatch.setenv("QUICK", value)
    assert harness.wants_quick("a benchmark", []) is quick


def test_the_command_line_asks_for_small_sizes(harness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUICK", raising=False)
    assert harness.wants_quick("a benchmark", ["--quick"])
    assert not harness.wants_quick("a benchmark", [])


def test_a_ratio_of_something_not_measured_is_none(harness: ModuleType) -> None:
    assert harness.ratio(1.0, 4.0) == 0.25
    assert harness.ratio(None, 4.0) is None
    assert harness.ratio(1.0, None) is None


def test_the_worst_is_taken_of_what_was_measured(harness: ModuleType) -> None:
    assert harness.worst([0.5, None, 0.7]) == 0.7
    assert harness.worst([None]) is None


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0"), (0.0, "0"), (1234.567, "1,235"), (0.0123456, "0.01235")]
)
def test_numbers_are_shown_with_four_significant_digits(
    harness: ModuleType, value: float | None, text: str
) -> None:
    assert harness.shown(value) == text


def test_a_target_is_met_up_to_its_limit(harness: ModuleType) -> None:
    target = harness.Target("x", 0.4)
    assert target.verdict({"x": 0.4}) == "met"
    assert target.verdict({"x": 0.41}) == "missed"
    assert target.verdict({"x": None}) == target.verdict({}) == "not measured"


def test_a_spread_tells_the_median_and_the_best_of_each_node(harness: ModuleType) -> None:
    told = harness.Spread((0.3, 0.1, 0.5)).per(100)
    assert told == {"median_ms": 3.0, "best_ms": 1.0, "all_ms": [3.0, 1.0, 5.0]}


def test_a_report_is_one_file_with_flat_figures(harness: ModuleType, tmp_path: Path) -> None:
    report = harness.Report("made", True, harness.versions(["celery"], server="made 1"))
    report.figures = {"a_ratio": 0.123456, "b_ratio": None, "keys_left": 0}
    data = json.loads(report.save(tmp_path / "out").read_text())
    assert (tmp_path / "out" / "made.json").exists()
    assert data["figures"] == {"a_ratio": 0.1235, "b_ratio": None, "keys_left": 0}
    assert data["quick"] is True
    assert {"python", "celery", "server"} == data["versions"].keys()
    assert data["machine"]["cores"] >= 1


@pytest.mark.parametrize("quick", [True, False])
def test_only_the_full_sizes_have_verdicts(
    harness: ModuleType, capsys: pytest.CaptureFixture[str], quick: bool
) -> None:
    report = harness.Report("made", quick, {}, machine={}, figures={"a_ratio": 0.5, "b_ratio": 0.3})
    report.show([harness.Target("a_ratio", 0.4), harness.Target("b_ratio", 0.4)])
    printed = capsys.readouterr().out
    assert "0.5" in printed
    assert ("missed" in printed, "met" in printed, "0.4" in printed) == (not quick, not quick, not quick)


def test_idle_traffic_is_taken_off_in_proportion_to_the_time(traffic: ModuleType) -> None:
    idle = traffic.Counters(10.0, {"brpop": 20.0, "get": 10.0}, 1000.0, 500.0)
    rise = traffic.Counters(2.0, {"brpop": 14.0, "hset": 7.0}, 1200.0, 300.0).less_idle(idle)
    assert rise.commands == {"brpop": 10.0, "hset": 7.0, "get": -2.0}
    assert (rise.executed, rise.bytes_in, rise.bytes_out) == (15.0, 1000.0, 200.0)
    assert rise.per_node(5)["commands"] == 3.0
    assert list(rise.per_node(5)["by_name"]) == ["brpop", "hset"]


def test_counters_rise_between_two_moments(traffic: ModuleType) -> None:
    before = traffic.Counters(100.0, {"get": 5.0}, 10.0, 20.0)
    rise = traffic.Counters(103.0, {"get": 6.0, "set": 2.0}, 40.0, 60.0).since(before)
    assert (rise.at_s, rise.commands, rise.bytes_in, rise.bytes_out) == (
        3.0,
        {"get": 1.0, "set": 2.0},
        30.0,
        40.0,
    )


def test_time_figures_compare_medians_and_name_the_worst_plain_shape(overhead: ModuleType) -> None:
    measured = {
        "chain": {
            "stock": times(overhead, "chain", 100, 0.2, 0.3, 0.9),
            "ours": times(overhead, "chain", 100, 0.1, 0.15, 0.2),
            "plain": times(overhead, "chain", 100, 0.3, 0.3, 0.3),
        },
        "chord10": {
            "stock": times(overhead, "chord", 10, 0.1),
            "ours": times(overhead, "chord", 10, 0.04),
            "plain": times(overhead, "chord", 10, 0.12),
        },
    }
    figures = overhead.time_figures(measured)
    assert figures["chain_time_ratio"] == pytest.approx(0.5)
    assert figures["worst_plain_ratio"] == pytest.approx(1.2)
    assert figures["chord1000_time_ratio"] is None


def test_growth_is_the_cost_of_a_node_in_the_largest_over_the_smallest_graph(overhead: ModuleType) -> None:
    small, large = times(overhead, "dag", 100, 0.01), times(overhead, "dag", 10_000, 1.1)
    figures = overhead.growth_figures([small, large])
    assert figures["growth_10000_over_100"] == pytest.approx(1.1)
    assert figures["dag1000_ms_per_node"] is None


def test_a_quick_run_leaves_what_it_does_not_measure_empty(overhead: ModuleType) -> None:
    figures = overhead.growth_figures([times(overhead, "dag", 100, 0.01), times(overhead, "dag", 500, 0.04)])
    assert figures["growth_10000_over_100"] is None
    assert figures["growth_500_over_100"] == pytest.approx(0.8)


def test_every_target_is_a_figure(overhead: ModuleType) -> None:
    shape = overhead.Shape("dag", 100, 1)
    of_side = {"commands": 1, "bytes_in": 2, "commands_sent_by_clients": 1, "commands_inside_scripts": 0}
    figures = {
        **overhead.time_figures({}),
        **overhead.traffic_figures({"chain": of_side}),
        **overhead.growth_figures([overhead.Times(shape, 1.0, 1.0, overhead.Spread((1.0,)))]),
        "keys_left": 0,
    }
    assert {target.figure for target in overhead.TARGETS} <= figures.keys()


@pytest.mark.parametrize(("kind", "size", "nodes"), [("chain", 7, 7), ("chord", 30, 2), ("layers", 3, 10)])
def test_workflows_have_the_nodes_of_their_shape(ours: ModuleType, kind: str, size: int, nodes: int) -> None:
    assert len(compile_workflow(ours.workflow(kind, size)).nodes) == nodes


def test_each_node_of_a_layer_waits_for_the_whole_layer_before(ours: ModuleType) -> None:
    plan = compile_workflow(ours.workflow("layers", 3))
    assert {node.deps for node in plan.nodes[3:6]} == {(0, 1, 2)}


def test_a_random_graph_reads_earlier_nodes_only_and_is_the_same_each_time(ours: ModuleType) -> None:
    plan = compile_workflow(ours.workflow("dag", 50))
    assert [list(node.deps) for node in plan.nodes] == ours.sources(50)
    assert all(dep < number for number, node in enumerate(plan.nodes) for dep in node.deps)
    assert ours.sources(50) == ours.sources(80)[:50]
