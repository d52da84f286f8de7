"""Mixtures in workflow files: what may stand there, what is wrong, and what workers read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mosaic_queues.errors import DefinitionError
from mosaic_queues.settings import settings
from mosaic_tasks import Flow, Workflow, compile_workflow, mixture
from mosaic_tasks.definition.mixing import AGGREGATING, ASK, UNMEASURED
from mosaic_tasks.definition.mixtures import ExpertSpec, named
from mosaic_tasks.definition.plan import ITEM, NodePlan, Ref
from mosaic_tasks.mixtures.mixture import Mixture

EXPERTS = [
    {"model": "openai:gpt-5"},
    {"model": "openai:gpt-5"},
    {"model": "pool:qwen2-7b", "role": "a critic"},
]


def workflow(**fields: Any) -> Workflow:
    told = {"prompt": "{{ inputs.question }}", "experts": EXPERTS, **fields}
    node = {"mixture": {key: value for key, value in told.items() if value is not None}}
    return Workflow.from_data(
        {"name": "w", "inputs": {"question": "string"}, "nodes": {"answer": node}, "output": "answer"}
    )


def nodes(**fields: Any) -> tuple[NodePlan, ...]:
    return compile_workflow(workflow(**fields)).nodes


def compiled(**fields: Any) -> Mixture:
    found = nodes(**fields)[0].mixture
    assert found is not None
    return found


def problem(**fields: Any) -> str:
    with pytest.raises(DefinitionError) as told:
        compile_workflow(workflow(**fields))
    return str(told.value)


def test_each_expert_is_a_node_that_the_mixture_alone_calls() -> None:
    plan = compile_workflow(workflow())
    assert [node.name for node in plan.nodes] == [
        "answer",
        "answer.gpt-5",
        "answer.gpt-5-2",
        "answer.qwen2-7b",
    ]
    assert {node.asked_by for node in plan.nodes[1:]} == {0}
    assert plan.roots == (0,)
    assert [join.members for join in plan.joins] == [()]
    assert [node.queue for node in plan.nodes] == [
        "mosaic.cpu",
        "mosaic.api.openai",
        "mosaic.api.openai",
        "mosaic.routed",
    ]


def test_the_verifier_and_the_aggregator_are_nodes_too() -> None:
    judge = {"model": "openai:gpt-5-mini"}
    found = nodes(verifier=judge, aggregator={"kind": "synthesis", **judge})
    mixed = compiled(verifier=judge, aggregator={"kind": "synthesis", **judge})
    assert [found[number].name for number in (mixed.verifier or 0, mixed.synthesizer or 0)] == [
        "answer.verifier",
        "answer.aggregator",
    ]


def test_experts_see_what_the_mixture_tells_them() -> None:
    expert = nodes()[3]
    assert expert.names["ask"] == Ref(ITEM, ("ask",))
    assert expert.agent is not None
    assert expert.agent.system == "You are {{ role }}."
    assert expert.agent.prompt.endswith("{% if ask %}\n\n{{ ask }}{% endif %}")


def test_a_prompt_that_says_where_answers_go_is_left_alone() -> None:
    prompt = "{{ inputs.question }}{% for one in answers %} {{ one.answer }}{% endfor %}"
    agent = nodes(prompt=prompt)[1].agent
    assert agent is not None
    assert agent.prompt == prompt


@pytest.mark.parametrize(
    ("prompt", "quoting"),
    [
        ("{{ inputs.question }}", {"ask"}),
        ("{{ inputs.question }}{{ answers }}", {"answers"}),
        ("{{ inputs.question }}{{ open_points }}{{ ask }}", {"open_points", "ask"}),
    ],
)
def test_a_call_is_told_the_answers_that_its_prompt_reads(prompt: str, quoting: set[str]) -> None:
    names = {name for name, ref in nodes(prompt=prompt)[1].names.items() if ref.source == ITEM}
    assert names == {"kind", "index", "expert", "role", "round", *quoting}


@pytest.mark.parametrize("model", ["openai:aggregator", "openai:Verifier", "replay:/x/aggregator"])
def test_a_name_that_comes_from_the_model_is_that_of_no_other_part(model: str) -> None:
    judge = {"model": "openai:judge"}
    asked = [{"model": model}, {"model": model}]
    found = nodes(experts=asked, verifier=judge, aggregator={"kind": "synthesis", **judge})
    part = "verifier" if "erifier" in model else "aggregator"
    assert [node.name for node in found[1:3]] == [f"answer.{part}-2", f"answer.{part}-3"]
    assert len({node.name for node in found}) == len(found)


@pytest.mark.timeout(20)
def test_names_of_experts_of_one_model_are_numbered() -> None:
    """Each is found by a few looks at those before: 10,000 would take minutes by looking through all of them."""
    asked = [ExpertSpec(model="openai:m"), ExpertSpec(name="m-2"), *[ExpertSpec(model="openai:m")] * 10_000]
    names = [expert.name for expert in named(asked)]
    assert names[:4] == ["m", "m-2", "m-3", "m-4"]
    assert names[-1] == "m-10002"


def test_experts_are_selected_from_the_pool() -> None:
    mixed = compiled(experts=None, select={"capability": "math", "count": 3, "quality": 0.8})
    assert (mixed.most, mixed.capability, mixed.planned) == (3, "math", 3)
    assert len(mixed.experts) > 3
    assert all(expert.profile.quality >= 0.8 for expert in mixed.experts)


def test_only_those_that_are_selected_are_drawn() -> None:
    assert compiled(experts=None, select={"capability": "math"}).explores
    assert not compiled().explores


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"most": 2}, 2),
        ({"experts": None, "select": {"capability": "math", "count": 4}, "most": 2}, 2),
        ({"experts": None, "select": {"capability": "math", "count": 2}, "most": 4}, 2),
    ],
)
def test_it_says_how_many_are_asked_at_most(fields: dict[str, Any], most: int | None) -> None:
    assert compiled(**fields).most == most


@pytest.fixture
def sage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model pool of one model, better in code than in math."""
    offer = (
        "{context_tokens: 4096, providers: [{provider: p, model: s}], capabilities: {math: 0.5, code: 0.9}}"
    )
    path = tmp_path / "models.yaml"
    path.write_text(f"models: {{sage: {offer}}}\n", encoding="utf-8")
    monkeypatch.setenv("MOSAIC_MODELS", str(path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.usefixtures("sage")
@pytest.mark.parametrize(("about", "quality"), [("math", 0.5), ("code", 0.9), ("", 0.7), ("law", 0.7)])
def test_experts_are_measured_by_what_the_questions_are_about(about: str, quality: float) -> None:
    """In what nobody measured, and where nothing is said, the mean of what was counts."""
    mixed = compiled(experts=[{"model": "pool:sage"}, {"model": "openai:gpt-5"}], capability=about)
    assert mixed.capability == about
    assert mixed.experts[0].profile.quality == pytest.approx(quality)
    assert mixed.experts[1].profile.quality == UNMEASURED


def test_an_aggregator_is_trusted_more_unless_it_is_measured() -> None:
    unmeasured = compiled(aggregator={"kind": "synthesis", "model": "openai:gpt-5"})
    assert unmeasured.aggregating.quality == AGGREGATING
    pooled = compiled(aggregator={"kind": "synthesis", "model": "pool:qwen2-7b"}, capability="math")
    expert = compiled(experts=[{"model": "pool:qwen2-7b"}, {"model": "openai:a"}], capability="math").experts[
        0
    ]
    assert pooled.aggregating.quality == expert.profile.quality
    assert pooled.aggregating.context_tokens == expert.profile.context_tokens > 0


def test_a_prompt_is_looked_at_by_the_names_it_reads() -> None:
    """`task` and `basket` hold the letters of `ask`."""
    agent = nodes(prompt="A task: what is in the basket of answers? {{ inputs.question }}")[1].agent
    assert agent is not None
    assert agent.prompt.endswith(ASK)
    expert = {"model": "openai:a", "role": "a critic", "system": "Play your role."}
    told = nodes(experts=[expert, *EXPERTS])[1].agent
    assert told is not None
    assert told.system == "Play your role.\n\nYou are {{ role }}."


def test_texts_are_compared_by_the_model_that_a_file_names() -> None:
    assert compiled(answer={"form": "text", "embedding": "small"}).form.embedding == "small"


def test_self_consistency_stops_after_three_that_agree() -> None:
    gate = compiled(preset="self-consistency", experts=EXPERTS[:1]).gate
    assert (gate.kind, gate.window) == ("unanimous", 3)


@pytest.mark.parametrize("preset", ["self-consistency", "debate", "race", "layers", "best-of-n"])
def test_a_preset_needs_a_few_lines(preset: str) -> None:
    judge = {"model": "openai:gpt-5"}
    more = {"layers": {"aggregator": judge}, "best-of-n": {"verifier": judge}}.get(preset, {})
    experts = [{"model": "openai:gpt-5", "layer": 1}, {"model": "openai:gpt-5-mini", "layer": 2}]
    found = workflow(preset=preset, experts=experts, **more)
    compile_workflow(found)
    assert Workflow.from_yaml(found.to_yaml()) == found


def test_what_a_file_says_goes_before_its_preset() -> None:
    assert compiled(preset="debate", rounds=5).rounds == 5
    assert compiled(preset="debate").rounds == 3


def test_layers_are_rounds() -> None:
    experts = [{"model": "openai:a", "layer": 1}, {"model": "openai:b", "layer": 3}]
    assert compiled(experts=experts).rounds == 3


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"experts": None}, "either `experts` or `select`"),
        ({"select": {"capability": "math"}}, "either `experts` or `select`"),
        ({"prompt": None}, "not every expert has one of its own"),
        ({"experts": [{"name": "verifier", "model": "openai:x"}]}, "the name of another part of the mixture"),
        ({"experts": [{"name": "Big One", "model": "openai:x"}]}, "no name; use lower case"),
        ({"experts": [{"modle": "openai:x"}]}, "unknown key 'modle'; did you mean 'model'"),
        ({"gate": "margn"}, "margn"),
        ({"gate": {"kind": "margin", "margni": 2}}, "unknown key 'margni'; did you mean 'margin'"),
        ({"waves": [2, 0]}, "asks nobody in one of its waves"),
        ({"aggregator": "synthesis"}, "needs a `model`"),
        ({"aggregator": {"kind": "majority", "model": "openai:x"}}, "counts and asks no model"),
        ({"aggregator": "rank"}, "needs a `verifier`"),
        (
            {"gate": {"kind": "quorum", "quorum": 4}},
            "4 votes for one answer cannot be had of 3 that can come",
        ),
        ({"rules": {"pattern": "("}}, "pattern"),
        ({"budget": -1}, "greater than or equal to 0"),
        ({"budget": float("inf")}, "finite"),
        ({"gate": {"kind": "quorum", "quorum": float("inf")}}, "finite"),
        ({"gate": {"kind": "cost", "worth": float("inf")}}, "finite"),
        ({"gate": {"kind": "cost", "second": float("inf")}}, "finite"),
        ({"experts": [{"name": "a\n", "model": "openai:x"}]}, "no name; use lower case"),
        ({"rules": {"entities": ["18", " "]}}, "a word without letters, which no answer holds"),
        ({"answer": {"form": "choice", "choices": ["a", "A"]}}, "'a' and 'A' are one choice"),
        ({"samples": 3, "experts": [{"model": "openai:x", "seed": 0}]}, "has 3 samples and a seed"),
        ({"preset": "best-of-n", "experts": [{"name": "a", "seed": 0}]}, "'a' has 4 samples and a seed"),
        ({"min_experts": 9}, "no gate passes before 9 answers, and 3 can come"),
        ({"output": {"type": "object"}, "answer": {"form": "number", "field": "answer"}}, None),
        (
            {
                "output": {
                    "type": "object",
                    "properties": {"a": {"type": "number"}},
                    "additionalProperties": False,
                },
                "answer": {"form": "number", "field": "b"},
            },
            "b",
        ),
        ({"most": 1}, "no gate passes before 2 answers, and 1 can come"),
        (
            {"aggregator": {"kind": "majority", "requires": {"capability": "math"}}},
            "counts and asks no model",
        ),
        ({"rules": {"pattern": "a(?=b)"}}, "no pattern of Rust's regex, which has no look-around"),
        ({"prompt": "{{ inputs.question"}, "unexpected end of template"),
        ({"experts": None, "select": {"capability": "maths"}}, "the capabilities are: "),
        ({"prompt": "{{ inputs.questoin }}"}, "questoin"),
        ({"experts": [{"model": "gpt"}, *EXPERTS]}, "'gpt' is no model"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(fields: dict[str, Any], told: str | None) -> None:
    if told is None:
        compile_workflow(workflow(**fields))
        return
    message = problem(**fields)
    assert told in message
    assert "node 'answer'" in message


def test_samples_differ_where_a_seed_is_for_one() -> None:
    asked = [{"model": "openai:a", "seed": 1, "samples": 1}, {"model": "openai:b"}]
    assert compiled(experts=asked, samples=3).planned == 4


def test_a_mixture_answers_one_question() -> None:
    node = {"mixture": {"prompt": "{{ item }}", "experts": EXPERTS}, "for_each": "${inputs.questions}"}
    found = Workflow.from_data(
        {"name": "w", "inputs": {"questions": "array"}, "nodes": {"answer": node}, "output": "answer"}
    )
    with pytest.raises(DefinitionError, match="a mixture answers one question"):
        compile_workflow(found)


def test_a_mixture_is_built_in_python() -> None:
    flow = Flow("w")
    question = flow.input("question", str)
    answer = flow.mixture(mixture("{{ asked }}", experts=EXPERTS, answer="number"), asked=question)
    flow.output(answer)
    plan = compile_workflow(flow.build())
    assert plan.nodes[0].name == "mixture"
    assert plan.nodes[1].bindings == {"asked": {"$ref": [-1, "question"]}}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"gate": "no"}, r"gate\.kind: 'no': Input should be 'probability'"),
        ({"anwser": "number"}, r"anwser: unknown key 'anwser'; did you mean 'answer'\?"),
        (
            {"experts": [{"modle": "openai:x"}]},
            r"experts\.0\.modle: unknown key 'modle'; did you mean 'model'\?",
        ),
        ({"waves": 0}, r"waves: \[0\] asks nobody"),
        ({"aggregator": "rank"}, r"the whole: the aggregator 'rank' needs a `verifier`"),
    ],
)
def test_a_wrong_mixture_in_python_is_told_at_once(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(DefinitionError, match=rf"mixture\(\): {told}"):
        mixture("q", **{"experts": EXPERTS, **fields})
