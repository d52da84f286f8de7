"""The pure parts of the benchmarks: figures, targets, counters, bounds, and the workflows that are compared."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mosaic_tasks import Workflow, compile_workflow
from mosaic_tasks.engines.protocol import EngineRequest, Message
from mosaic_tasks.engines.recordings import Recording, find


@pytest.fixture(scope="module")
def harness(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("harness")


@pytest.fixture(scope="module")
def overhead(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("overhead")


@pytest.fixture(scope="module")
def traffic(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("traffic")


@pytest.fixture(scope="module")
def bound(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("streaming_bound")


@pytest.fixture(scope="module")
def scenarios(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("streaming_scenarios")


@pytest.fixture(scope="module")
def streaming(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("streaming")


@pytest.fixture(scope="module")
def inference(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("inference")


@pytest.fixture(scope="module")
def gateway(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("gateway")


@pytest.fixture(scope="module")
def mixtures(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("mixtures")


@pytest.fixture(scope="module")
def asked_mixtures(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("mixtures_scenario")


@pytest.fixture
def made_answers(load_benchmark: Callable[[str], ModuleType], tmp_path: Path) -> Any:
    path = load_benchmark("aggregation_made").write(tmp_path / "made.jsonl", count=20)
    return load_benchmark("aggregation_recordings").read(path)


@pytest.fixture(scope="module")
def ours(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("ours")


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
    report.show([harness.Target("a_ratio", most=0.4), harness.Target("b_ratio", most=0.4)])
    printed = capsys.readouterr().out
    assert "0.5" in printed
    assert ("missed" in printed, "met" in printed, "0.4" in printed) == (not quick, not quick, not quick)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(0.9, "missed"), (0.95, "met"), (1.5, "met"), (2.1, "missed"), (None, "not measured")],
)
def test_a_target_has_a_least_and_a_most(harness: ModuleType, value: float | None, verdict: str) -> None:
    target = harness.Target("a_ratio", least=0.95, most=2.0)
    assert target.verdict({"a_ratio": value}) == verdict
    assert target.told == "at least 0.95, at most 2"


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


def test_a_step_says_when_a_text_is_complete(bound: ModuleType) -> None:
    step = bound.Step("extract", [(0.5, '{"year"'), (0.6, ": 20"), (0.7, "25, "), (2.0, '"profit": 3}')])
    assert step.when('"year": 2') == 0.6
    assert step.when('"year": 2025') == 0.7
    assert step.when("") == 2.0
    with pytest.raises(ValueError, match="substring not found"):
        step.when("revenue")


def test_the_bound_is_the_critical_path_with_overlap(bound: ModuleType) -> None:
    draft = bound.Step("draft", [(1.0, "One. "), (3.0, "Two.")])
    first = bound.tool("first", 1.0, after=[("draft", "One.")])
    second = bound.tool("second", 1.5, after=[("draft", "Two."), ("first", "")])
    assert bound.bound_s([draft, first]) == 3.0
    assert bound.bound_s([draft, first, second]) == 4.5
    assert bound.bound_s([draft, bound.tool("slow", 9.0, after=[("draft", "One.")])]) == 10.0


def test_a_line_of_few_places_is_done_when_all_its_work_and_the_least_after_it_is(bound: ModuleType) -> None:
    read = [bound.tool(f"read{number}", 1.0, line="reading") for number in range(4)]
    written = [
        bound.tool(f"written{number}", 3.0, after=[(f"read{number}", "")], line="writing")
        for number in range(4)
    ]
    assert bound.bound_s([*read, *written]) == 4.0
    assert bound.bound_s([*read, *written], {"writing": 2}) == 1.0 + 4 * 3.0 / 2
    assert bound.bound_s([*read, *written], {"reading": 1, "writing": 8}) == 4 * 1.0 + 3.0
    assert bound.bound_s([*read, bound.tool("told", 0.0)], {"reading": 2, "nobody": 1}) == 2.0


def test_what_follows_the_beginning_of_an_answer_counts_from_there(bound: ModuleType) -> None:
    draft = bound.Step("draft", [(1.0, "One. "), (3.0, "Two.")], line="writing")
    first = bound.tool("first", 5.0, after=[("draft", "One.")])
    assert bound.bound_s([draft, first], {"writing": 1}) == 1.0 + 5.0


def test_an_agent_is_asked_about_a_batch_when_it_has_come_and_the_one_before_is_answered(
    bound: ModuleType,
) -> None:
    draft = bound.Step("draft", [(1.0, "One. "), (2.0, "Two. "), (9.0, "Three.")])
    said = Recording(text="Yes.", key="a", first_token_s=3.0)
    steps = bound.batches("edit", [(said, [("draft", text)]) for text in ("One.", "Two.", "Three.")])
    assert [step.name for step in steps] == ["edit0", "edit1", "edit2"]
    assert [bound.bound_s([draft, *steps[:count]]) for count in (1, 2, 3)] == [9.0, 9.0, 12.0]
    assert bound.bound_s([bound.Step("draft", [(1.0, "One. Two. Three.")]), *steps]) == 10.0


def test_an_answer_is_timed_as_it_is_replayed(bound: ModuleType) -> None:
    recorded = Recording(text="Some words are here.", key="a", first_token_s=1.0, tokens_per_s=1.0)
    step = bound.answer("a", recorded)
    assert step.when("Some") == 1.0
    assert 1.0 < step.when("") <= 1.0 + len(recorded.text) / 4


def test_a_client_that_has_ended_is_told_of_with_the_logs(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    processes = load_benchmark("processes")
    with processes.Processes() as started:
        worker = started.start("worker", ["echo", "I was here"], environment={})
        client = processes.Client(started, "client", "no_such_side", environment={}, workers=[worker])
        for part in (worker, client.started):
            part.process.wait()
        with pytest.raises(processes.BenchmarkError, match=r"(?s)'client' ended.*no_such_side.*I was here"):
            client.ask("workers", 1)


@pytest.mark.parametrize("name", ["financial_report", "weekly_report"])
def test_a_barrier_waits_for_every_producer(scenarios: ModuleType, name: str) -> None:
    workflow = Workflow.from_file(scenarios.EXAMPLES / name / "workflow.yaml")
    before, after = compile_workflow(workflow), compile_workflow(scenarios.barrier(workflow))
    assert any(not edge.stable for node in before.nodes for edge in node.edges)
    assert all(edge.stable for node in after.nodes for edge in node.edges)
    assert all(node.batch.max_items == 0 for node in after.nodes)
    assert [(node.name, set(node.deps)) for node in before.nodes] == [
        (node.name, set(node.deps)) for node in after.nodes
    ]


def test_what_stays_a_stream_as_a_barrier_is_read_in_the_same_parts(scenarios: ModuleType) -> None:
    prompt = "{% if so_far %}Go on.{% endif %} {{ draft | join }}"
    nodes = {
        "draft": {"agent": {"prompt": "Write."}},
        "edit": {"agent": {"prompt": prompt}, "edges": {"draft": {"kind": "stream", "by": "sentence"}}},
    }
    workflow = Workflow.from_data({"name": "made", "nodes": nodes, "output": "edit"})
    (edge,) = compile_workflow(scenarios.barrier(workflow)).nodes[1].edges
    assert (edge.kind, edge.stable, edge.by) == ("stream", True, "sentence")


def test_an_agent_of_a_barrier_reads_the_whole_text_of_the_one_before(
    scenarios: ModuleType, tmp_path: Path
) -> None:
    chain = scenarios.chain(tmp_path, 1.0)
    assert [len(node.edges) for node in compile_workflow(chain.workflow).nodes] == [0, 1, 1, 1]
    assert not any(node.edges for node in compile_workflow(scenarios.barrier(chain.workflow)).nodes)


def test_a_stage_of_the_chain_answers_sentences_by_twos_as_it_answers_all(
    scenarios: ModuleType, tmp_path: Path
) -> None:
    chain = scenarios.chain(tmp_path, 1.0)

    def answered(sentences: list[str]) -> str:
        message = Message("user", f"Do the critique.\n\n{' '.join(sentences)}")
        return find(str(tmp_path / "chain.jsonl"), EngineRequest(messages=(message,))).text

    said = [scenarios.sentence("draft", number) for number in range(1, scenarios.SENTENCES + 1)]
    pairs = [answered(said[place : place + 2]) for place in range(0, len(said), 2)]
    assert answered(said) == "\n\n".join(pairs)
    assert abs(len(answered(said)) - scenarios.STAGES["critique"]) < scenarios.SENTENCES * 4
    assert chain.bound_s < sum(
        chars / 4 / scenarios.TOKENS_PER_S + scenarios.FIRST_TOKEN_S for chars in scenarios.STAGES.values()
    )


def test_the_bound_of_the_financial_report_knows_every_agent(
    scenarios: ModuleType, bound: ModuleType, tmp_path: Path
) -> None:
    finance = scenarios.finance(tmp_path, 2.0)
    agents = {node.name for node in compile_workflow(finance.workflow).nodes if node.kind == "agent"}
    assert agents == {step.name.rstrip("0123456789") for step in finance.steps} - {"ratios"}
    assert finance.bound_s > bound.bound_s(finance.steps[:-1])
    assert scenarios.finance(tmp_path, 4.0).bound_s == pytest.approx(finance.bound_s / 2)


def test_the_made_repository_has_as_many_commits_of_each_author(
    scenarios: ModuleType, tmp_path: Path
) -> None:
    scenarios.make_repository(tmp_path / "shop", commits=3)
    told = subprocess.run(
        ["git", "shortlog", "-sn", "main"], cwd=tmp_path / "shop", capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[0] for line in told.splitlines()] == ["3"] * scenarios.AUTHORS


def test_the_weekly_report_has_a_queue_for_each_node_of_few_places(scenarios: ModuleType) -> None:
    workflow = Workflow.from_file(scenarios.EXAMPLES / "weekly_report" / "workflow.yaml")
    plan = compile_workflow(scenarios.deployed(workflow))
    own = {node.name: node.queue for node in plan.nodes if node.queue.startswith("bench.")}
    assert own.keys() == scenarios.PLACES.keys()
    assert len(set(own.values())) == len(own)
    assert {node.name for node in plan.nodes if node.agent is not None} <= own.keys()


def compared(streaming: ModuleType, *, bound_s: float, stream: float, barrier: float, first: float) -> object:
    spreads = (streaming.Spread((value,)) for value in (stream, barrier, first, barrier))
    return streaming.Compared(bound_s, *spreads)


def test_scenarios_are_compared_by_medians_and_the_worst_counts(streaming: ModuleType) -> None:
    figures = streaming.scenario_figures(
        {
            "finance": compared(streaming, bound_s=1.0, stream=1.5, barrier=3.0, first=0.3),
            "weekly": compared(streaming, bound_s=2.0, stream=2.2, barrier=4.0, first=1.0),
        }
    )
    assert figures["finance_stream_over_barrier"] == pytest.approx(0.5)
    assert figures["weekly_stream_over_barrier"] == pytest.approx(0.55)
    assert figures["chain_stream_over_barrier"] is None
    assert figures["stream_over_bound"] == pytest.approx(1.5)
    assert figures["first_word_ratio"] == pytest.approx(0.25)


@pytest.mark.parametrize(("percent", "value"), [(50, 5.0), (99, 10.0), (10, 1.0), (91, 10.0)])
def test_a_percentile_is_one_of_the_values(streaming: ModuleType, percent: int, value: float) -> None:
    assert streaming.percentile([float(number) for number in range(10, 0, -1)], percent) == value


def test_every_target_of_streaming_is_a_figure(streaming: ModuleType) -> None:
    load = streaming.Load(10, 5, 0.1)
    cost = {"commands": 3.0, "sent_by_clients": 1.0}
    found = {
        "paced": cost,
        "full_speed": cost,
        "consumer": {"drains": 10, "tasks": 8},
        "flood": {"items": 100, "entries": 10, "seconds": 2.0},
    }
    waited = streaming.Latencies(load, chunk=[0.003, 0.006], bare=[0.002, 0.004])
    figures = {
        **streaming.scenario_figures({}),
        **streaming.latency_figures([waited]),
        **streaming.cost_figures(found),
        "readers_lost": 0,
    }
    assert {target.figure for target in streaming.TARGETS} <= figures.keys()
    assert figures["chunk_to_consumer_p50_over_celery"] == pytest.approx(1.5)
    assert figures["chunk_to_consumer_p99_ms_10"] == pytest.approx(6.0)
    assert figures["consumer_tasks_per_drain"] == pytest.approx(0.8)
    assert figures["chunks_per_s"] == pytest.approx(50.0)


def turns(inference: ModuleType, *tokens_s: float, first_s: float) -> object:
    return inference.Turns([inference.Turn(rate, 0.001, [first_s], [2 * first_s]) for rate in tokens_s])


def test_a_worker_is_compared_with_the_bare_engine_turn_by_turn(inference: ModuleType) -> None:
    rates = {
        "bare": (100.0, 200.0, 900.0),
        "fanned": (60.0, 150.0, 720.0),
        "read": (100.0, 100.0, 100.0),
        "users": (50.0, 50.0, 50.0),
        "http": (20.0, 20.0, 20.0),
    }
    firsts = {"bare": 0.010, "users": 0.013, "http": 0.040}
    sides = {name: turns(inference, *values, first_s=firsts.get(name, 0.0)) for name, values in rates.items()}
    figures = inference.request_figures({8: sides})
    assert figures["tokens_ratio_8"] == pytest.approx(0.75)
    assert figures["tokens_ratio_users_8"] == pytest.approx(0.25)
    assert figures["tokens_ratio_32"] is None
    assert figures["added_ttft_ms_p50"] == pytest.approx(3.0)
    assert figures["e2e_p99_ms_http_8"] == pytest.approx(80.0)
    assert figures["cpu_s_per_1000_calls_read_8"] == pytest.approx(1.0)


def test_every_target_of_inference_is_a_figure(inference: ModuleType) -> None:
    rate = inference.Spread((1.0,))
    figures = {
        **inference.request_figures({}),
        **inference.nothing_figures({"threads": rate, "awaited": rate, "batched": rate}),
        **inference.soak_figures({}, settle=0),
    }
    assert {target.figure for target in inference.TARGETS} <= figures.keys()


def test_answers_of_another_length_are_an_error(inference: ModuleType) -> None:
    asked = inference.Slice(in_flight=2, count=3, first=0, tokens=10)
    told = {"seconds": 1.0, "tokens": 29, "first_s": [], "whole_s": []}
    side = inference.Side("made", lambda *_: told, [])
    with pytest.raises(inference.BenchmarkError, match=r"3 answers of 10 tokens.*29 tokens came"):
        side.turn(asked)
    assert inference.Side("made", lambda *_: told | {"tokens": 30}, []).turn(asked).tokens_s == 30.0


def test_prompts_are_of_one_length_and_none_is_asked_twice(inference: ModuleType) -> None:
    prompts = [
        prompt for first in (0, 10_000) for prompt in inference.Slice(1, 50, first=first, tokens=1).prompts
    ]
    assert len(set(prompts)) == 100
    assert len({len(prompt) for prompt in prompts}) == 1


def test_who_is_answered_asks_the_next(load_benchmark: Callable[[str], ModuleType]) -> None:
    asking = load_benchmark("inference_load")
    in_flight: list[str] = []
    most: list[int] = []

    async def ask(prompt: str, tokens: int) -> object:
        in_flight.append(prompt)
        await asyncio.sleep(0)
        most.append(len(in_flight))
        in_flight.remove(prompt)
        return asking.Answer(0.0, 0.0, tokens)

    told = asyncio.run(asking.keep_asking(asking.Slice(in_flight=3, count=10, first=0, tokens=7), ask))
    assert (len(most), max(most), told["tokens"], len(told["first_s"])) == (10, 3, 70, 10)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("block_size", 32, ["--block-size", "32"]),
        ("enforce_eager", True, ["--enforce-eager"]),
        ("enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
    ],
)
def test_engine_arguments_are_given_to_the_server_too(
    inference: ModuleType, name: str, value: object, words: list[str]
) -> None:
    assert inference.flag(name, value) == words


def test_the_slope_of_memory_is_that_after_what_fills_at_first(inference: ModuleType) -> None:
    filling = [(call, float(call)) for call in range(250, 1001, 250)]
    samples = [*filling, *((call, 1000.0 + call * 0.02) for call in range(1250, 3001, 250))]
    figures = inference.soak_figures({"fanned": samples, "fanned_core": filling}, settle=1000)
    assert figures["memory_slope_kb_per_1000_calls"] == pytest.approx(20.0)
    assert figures["memory_slope_kb_per_1000_calls_interval"] == pytest.approx(0.0, abs=1e-6)
    for name in ("added", "bare", "bare_core", "fanned_core"):
        assert figures[f"memory_slope_kb_per_1000_calls_{name}"] is None


def test_a_slope_has_the_interval_of_its_regression(inference: ModuleType) -> None:
    # The standard error by hand: residuals (-1, 2, -1) / 3, squares of the calls' distances 2.
    slope = inference.Slope.of([(0, 0.0), (1, 2.0), (2, 2.0)])
    assert slope.kb == pytest.approx(1000.0)
    assert slope.interval_kb == pytest.approx(2100.0 * (2 / 3 / 1 / 2) ** 0.5)
    above = slope.above(inference.Slope(400.0, 100.0))
    assert (above.kb, above.interval_kb) == pytest.approx((600.0, (slope.interval_kb**2 + 1e4) ** 0.5))


def answered(*seconds: float, experts: int, aggregated: bool, tokens: float) -> list[dict[str, Any]]:
    told = {"right": True, "experts": experts, "aggregated": aggregated, "cut": 0, "aggregator_tokens": 0.0}
    return [{**told, "seconds": each, "expert_tokens": tokens} for each in seconds]


def test_every_target_of_mixtures_is_a_figure(mixtures: ModuleType) -> None:
    ours = answered(1.0, 2.0, 6.0, experts=2, aggregated=False, tokens=40.0)
    theirs = answered(4.0, 5.0, 6.0, experts=5, aggregated=True, tokens=100.0)
    sides = {"adaptive": mixtures.summary(ours), "full": mixtures.summary(theirs)}
    cut = {"cut": 3, "cancel_ms": [5.0, 1.0]}
    costs = {
        side: {"seconds": [0.01], "commands": 1.0, "sent_by_clients": 1.0} for side in ("instant", "by_hand")
    }
    figures = {
        **mixtures.compared_figures(sides),
        **mixtures.cancel_figures({"": cut, **dict.fromkeys(mixtures.OTHER_POOLS, cut)}),
        **mixtures.cost_figures(costs),
    }
    assert {target.figure for target in mixtures.TARGETS} <= figures.keys()
    assert figures["latency_ratio"] == pytest.approx(0.4)
    assert figures["latency_ratio_p99"] == pytest.approx(1.0)
    assert figures["expert_tokens_share"] == pytest.approx(0.4)
    assert figures["aggregator_share"] == 0.0
    assert (figures["cancel_ms_p50"], figures["cancel_ms_p99_solo"]) == (1.0, 5.0)
    assert (figures["cut"], figures["cut_while_writing"]) == (3, 2)


def test_where_nobody_wrote_there_was_nothing_to_cancel(mixtures: ModuleType) -> None:
    figures = mixtures.cancel_figures({"": {"cut": 1, "cancel_ms": []}})
    assert (figures["cancel_ms_p99"], figures["cut_while_writing"]) == (None, 0)


def test_an_expert_is_late_from_its_cut_to_the_end_of_its_stream(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    noted = load_benchmark("mixtures_notes")

    def note(name: str, begun_s: float, ended_s: float) -> object:
        return noted.Note("adaptive-1", name, begun_s, ended_s, chars=9)

    written = [
        note("writes", 1.0, 3.5),
        note("ended", 1.0, 2.0),
        note("later", 3.1, 4.0),
        note("kept", 1.0, 9.0),
    ]
    cut_off = {"writes": 3.0, "ended": 3.0, "later": 3.0, "waits": 3.0}
    assert noted.cancelled_ms(written, cut_off) == [pytest.approx(500.0)]


def test_experts_share_three_gpus_and_the_aggregator_has_one(
    asked_mixtures: ModuleType, made_answers: Any
) -> None:
    fleet = asked_mixtures.fleet_of(made_answers, made_answers.questions)
    assert fleet.aggregator == "made-70b"
    assert sorted(fleet.experts) == ["made-12b", "made-14b", "made-7b", "made-8b", "made-9b"]
    assert len(fleet.places) == len(set(fleet.places)) == 4
    assert fleet.queues["made-14b"] == fleet.queues["made-12b"] != fleet.queues["made-7b"]


def test_recordings_of_a_mixture_answer_its_questions_in_full(
    asked_mixtures: ModuleType, made_answers: Any, tmp_path: Path
) -> None:
    fleet = asked_mixtures.fleet_of(made_answers, made_answers.questions)
    asked_mixtures.write(tmp_path, fleet, made_answers.questions)
    asked_mixtures.write_made(tmp_path)
    question = made_answers.questions[7]
    for model in (*fleet.experts, fleet.aggregator):
        message = Message("user", f"{question.question}\n\n[bench adaptive-1]")
        found = find(str(tmp_path / f"{model}.jsonl"), EngineRequest(messages=(message,)))
        assert found.text == question.said[model].text
        assert max(len(text) for _, text in found.deltas) <= asked_mixtures.PIECE_CHARS
    for workflow in asked_mixtures.workflows(tmp_path, fleet).values():
        files = [
            node.agent.model.removeprefix("replay:")
            for node in compile_workflow(workflow).nodes
            if node.agent
        ]
        assert files
        assert all(Path(file).exists() for file in files)


# -- gateway -------------------------------------------------------------------------------------------------------


def test_figures_of_the_gateway_count_what_was_refused_and_what_was_lost(gateway: ModuleType) -> None:
    read = {"readers": 4, "dropped": 1, "kb_more": 200.0}
    load = {
        "runs": ["a", "b", "c"],
        "refused": ["d"],
        "latencies_ms": [4.0, 1.0, 2.0, 3.0],
        "seconds": 2.0,
        "done": 2,
    }
    found = gateway.figures([0.001, 0.002, 0.009], read, load)
    assert {target.figure for target in gateway.TARGETS} <= found.keys()
    assert (found["added_first_token_ms_p50"], found["kb_per_reader"], found["sse_readers_dropped"]) == (
        2.0,
        50.0,
        1,
    )
    assert (found["submits_per_s"], found["submit_p50_ms"], found["submit_p99_ms"]) == (1.5, 2.0, 4.0)
    assert (found["submits_refused"], found["runs_lost"]) == (1, 1)
