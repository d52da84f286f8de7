"""All that is wrong with a workflow is told at once, with its place and the nearest name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_queues.errors import DefinitionError
from mosaic_queues.settings import Settings
from mosaic_tasks.definition import validation
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.definition.workflow import Workflow

HEAD = "name: w\ninputs:\n  repo: {type: string, default: '.'}\n  days: {type: integer, default: 7}\nnodes:\n"


def problems(nodes: str, *, output: str = "out", head: str = HEAD) -> list[str]:
    """What is wrong with these nodes, whose first line is line 6 of the file."""
    with pytest.raises(DefinitionError) as caught:
        compile_workflow(Workflow.from_yaml(f"{head}{nodes}\noutput: {output}\n", source="w.yaml"))
    return caught.value.problems


OUT = "  out: {tool: 'made_tools:anything', with: {x: '${a}'}}\n"


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        (
            "  commits: {task: t}\n  out:\n    task: t\n    with:\n      x: ${comits.a}",
            "w.yaml:10: node 'out', field 'with.x': no node 'comits'; did you mean 'commits'?",
        ),
        (
            "  out: {task: t, with: {x: '${inputs.rep}'}}",
            "field 'with.x': no input 'rep'; did you mean 'repo'?",
        ),
        ("  out: {task: t, with: {x: '${item.a}'}}", "no `item` here; add for_each"),
        (
            "  a: {task: t}\n  out: {task: t, for_each: '${a}', as: person, with: {x: '${item}'}}",
            "no `item` here; it is called 'person' here",
        ),
        ("  out: {task: t, with: {x: '${a b}'}}", "'${a b}' is not a reference"),
        ("  out: {task: t, for_each: [1]}", "field 'for_each': [1] is no text"),
        ("  out: {task: t, for_each: 'abc'}", "field 'for_each': 'abc' is not a reference"),
        ("  out: {task: t, for_each: '${item}'}", "for_each makes the items, so it cannot read one"),
        (
            "  out: {task: t, as: person}",
            "field 'as': `as` names the item of a for_each, which this node does not",
        ),
        (
            "  a: {task: t}\n  out: {task: t, for_each: '${a}', as: a}",
            "'a' is the name of something else already",
        ),
        ("  a: {task: t}\n  out: {task: t, after: [b]}", "field 'after[0]': no node 'b'"),
        ("  Out: {task: t}", "node 'Out': 'Out' is no id; use lower case"),
        ("  inputs: {task: t}", "'inputs' has a meaning of its own"),
        ("  loop: {task: t}", "'loop' has a meaning of its own"),
        ("  out: {task: t, when: 'a >'}", "field 'when': unexpected 'end of template'"),
        (
            "  a: {task: t}\n  out: {task: t, for_each: '${a}', when: item}",
            "'item' is the item, which `when` cannot see",
        ),
        (
            "  people: {task: t}\n  out: {agent: {prompt: '{{ peple }}'}}",
            "node 'out', field 'agent.prompt': no node 'peple'; did you mean 'people'?",
        ),
        (
            "  out: {agent: {prompt: '{{ repo }}'}}",
            "field 'agent.prompt': no node 'repo'; the input is written `{{ inputs.repo }}`",
        ),
        ("  out: {task: t, with: {x: '${repo}'}}", "no node 'repo'; the input is written `${inputs.repo}`"),
        ("  out: {task: t, when: repo}", "no node 'repo'; the input is written `inputs.repo`"),
        ("  out: {task: t, reties: 3}", "unknown key 'reties'; did you mean 'retry'?"),
        (
            "  out:\n    agent:\n      prompt: |\n        a\n        {% if %}",
            "w.yaml:8: node 'out', field 'agent.prompt'",
        ),
        ("  out: {agent: {prompt: '{{ inputs.__class__ }}'}}", "'__class__' begins with an underscore"),
        (
            "  out: {agent: {prompt: x, output: {type: strng}}}",
            "field 'agent.output': no type 'strng'; did you mean",
        ),
        ("  out: {agent: {prompt: x, output: 'made_tools:Secton'}}", "did you mean 'Section'?"),
        (
            "  out: {agent: {prompt: x, model: gpt}}",
            "field 'agent.model': 'gpt' is no model; write PROVIDER:NAME",
        ),
        (
            "  out: {agent: {prompt: x, model: 'pool:'}}",
            "field 'agent.model': 'pool:' lacks a name; write pool:NAME with a model of the pool",
        ),
        (
            "  out: {agent: {prompt: x, requires: {architecture: hoper}}}",
            "there is no GPU architecture 'hoper'; did you mean 'hopper'?",
        ),
        ("  out: {tool: 'made_tools:read_comits', with: {}}", "did you mean 'read_commits'?"),
        ("  out: {tool: 'absent.tools:x'}", "field 'tool': cannot import 'absent.tools'"),
        (
            "  out: {tool: 'made_tools:read_commits'}",
            "field 'with': 'made_tools:read_commits' needs the argument 'repo'",
        ),
        (
            "  out: {tool: 'made_tools:read_commits', with: {repo: a, sinc: b}}",
            "field 'with.sinc': 'made_tools:read_commits' takes no argument 'sinc'; did you mean 'since'?",
        ),
        ("  out: {tool: 'made_tools:by_position', with: {}}", "takes 'value' by position only"),
        (
            "  out: {tool: 'made_tools:read_commits', with: {repo: 5}}",
            "'with.repo': 5 is integer, but string is wanted",
        ),
        (
            "  out: {tool: 'made_tools:read_commits', with: {repo: '${inputs.days}'}}",
            "it is integer, but string is",
        ),
        (
            "  a: {tool: 'made_tools:read_commits', with: {repo: x}}\n"
            "  out: {tool: 'made_tools:by_person', with: {commits: '${a}'}}",
            "it is object, but array is wanted",
        ),
        (
            "  a: {tool: 'made_tools:read_commits', with: {repo: x}}\n"
            "  out: {task: t, with: {x: ['${a.itms}']}}",
            "field 'with.x': the output of 'a' has no 'itms'; it has: items, total; did you mean 'items'?",
        ),
        (
            "  a: {tool: 'made_tools:read_commits', with: {repo: x}}\n"
            "  out: {task: t, for_each: '${a.total}'}",
            "field 'for_each': it cannot be fanned out: it is integer, but array is wanted",
        ),
        (
            "  a: {tool: 'made_tools:read_commits', with: {repo: x}}\n"
            "  out: {task: t, for_each: '${a.items}', with: {x: '${item.authr}'}}",
            "the item has no 'authr'",
        ),
        (
            "  a: {tool: 'made_tools:read_commits', with: {repo: x}}\n"
            "  out: {agent: {prompt: '{{ a.totl }} {{ a.get(1) }} {{ a.total.x() }}'}}",
            "'agent.prompt': the output of 'a' has no 'totl'; it has: items, total; did you mean 'total'?",
        ),
        (
            "  a: {tool: 'made_tools:read_commits', with: {repo: x}}\n"
            "  out: {agent: {prompt: '{{ c.authr }}'}, for_each: '${a.items}', as: c}",
            "the item has no 'authr'",
        ),
        (
            "  a: {tool: 'made_tools:read_commits', with: {repo: x}}\n"
            "  out: {agent: {prompt: '{{ c[0].x }} {{ c.x }}'}, with: {c: '${a.items}'}}",
            "the output of 'a' has no 'x' at 'items'; it is array",
        ),
        (
            "  out: {task: t, when: inputs.rep}",
            "field 'when': the workflow has no 'rep'; it has: repo, days; did you",
        ),
        (
            "  a: {tool: 'made_tools:numbers', for_each: '${inputs.x}', with: {up_to: 1}}\n" + OUT,
            "no input 'x'",
        ),
        ("  a: {task: t}\n  lost: {task: t}\n" + OUT, "node 'lost': the output 'out' does not depend on it"),
    ],
)
def test_a_mistake_is_told(nodes: str, problem: str) -> None:
    assert any(problem in line for line in problems(nodes)), problems(nodes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: W\nnodes: {a: {task: t}}\noutput: a", "w.yaml:1: field 'name': 'W' does not match ^[a-z]"),
        ("nodes: {a: {task: t}}\noutput: a", "field 'name': it is missing"),
        ("name: w\nnodes: {a: {task: t}}\noutput: b", "w.yaml:3: field 'output': no node 'b'"),
        ("name: w\nnodes: []\noutput: b", "field 'nodes': [] is no mapping"),
        ("name: w\nnodes: {}\noutput: b", "field 'nodes': {}: Dictionary should have at least 1 item"),
        (
            "name: w\nndoes: {}\noutput: b",
            "w.yaml:2: field 'ndoes': unknown key 'ndoes'; did you mean 'nodes'?",
        ),
        (
            "name: w\nnodes:\n  a:\n    tol: x\noutput: a",
            "w.yaml:4: node 'a', field 'tol': unknown key 'tol'; did you",
        ),
        (
            "name: w\nnodes: {a: {with: {}}}\noutput: a",
            "exactly one of tool, task, agent and mixture; it has none of them",
        ),
        ("name: w\nnodes: {a: {task: t, tool: 'a:b'}}\noutput: a", "it has tool and task"),
        (
            "name: w\nnodes: {a: {task: t, timeout: soon}}\noutput: a",
            "'soon' is no duration; write a number of",
        ),
        ("name: w\nnodes: {a: {task: t, timeout: 0}}\noutput: a", "field 'timeout': 0"),
        ("name: w\nnodes: {a: {task: t, retry: {atempts: 3}}}\noutput: a", "did you mean 'attempts'?"),
        (
            "name: w\nnodes: {a: {task: t, on_failure: retry}}\noutput: a",
            "'retry' is not 'fail', 'skip' or {default",
        ),
        ("name: w\nnodes: {a: {agent: {promt: x}}}\noutput: a", "did you mean 'prompt'?"),
        (
            "name: w\ninputs: {a: strng}\nnodes: {a: {task: t}}\noutput: a",
            "no type 'strng'; the types are string, integer, number, boolean, array, object, null; did you mean "
            "'string'?",
        ),
        ("name: w\ninputs: {a: 5}\nnodes: {a: {task: t}}\noutput: a", "5 is no type; write one of string,"),
        ("name: w\ninputs: {a: {type: 5}}\nnodes: {a: {task: t}}\noutput: a", "no type 5"),
        (
            "name: w\ninputs: {a: {type: integer, default: x}}\nnodes: {a: {task: t}}\noutput: a",
            "default does not fit",
        ),
        (
            "name: w\ndefaults: {model: x}\nnodes: {a: {task: t}}\noutput: a",
            "field 'defaults.model': 'x' is no model",
        ),
        ("- a", "w.yaml:1: a workflow is a mapping"),
    ],
)
def test_a_wrong_form_is_told(text: str, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        compile_workflow(Workflow.from_yaml(text, source="w.yaml"))
    assert problem in str(caught.value)


def test_all_problems_are_told_at_once_of_form_and_of_meaning() -> None:
    found = problems(
        "  a: {tol: x}\n  b: {task: t, with: {x: '${c}', y: '${a}'}}\n"
        "  out: {task: t, timeout: x}\n  d: {task: t, when: '('}"
    )
    assert len(found) == 4
    assert sum("node 'b'" in line for line in found) == 1


def test_of_very_many_problems_the_first_hundred_are_told() -> None:
    nodes = "\n".join(f"  n{number}: {{task: t, with: {{x: '${{z}}'}}}}" for number in range(150))
    found = problems(nodes, output="n0")
    assert len(found) == 101
    assert found[-1] == "and 50 more problems"


def test_a_whole_cycle_is_told_in_the_direction_of_the_data() -> None:
    found = problems(
        "  a: {task: t, with: {x: '${c}'}}\n  b: {task: t, with: {x: '${a}'}}\n  c: {task: t, when: b}\n"
        "  out: {task: t, after: [c]}\n  d: {task: t, with: {x: '${d}'}}"
    )
    assert found == [
        "w.yaml:6: node 'a': the nodes wait for each other in a circle: a -> b -> c -> a",
        "w.yaml:10: node 'd': the nodes wait for each other in a circle: d -> d",
    ]


def chain(length: int, *, closed: bool = False) -> Workflow:
    nodes: dict[str, Any] = {
        f"n{number}": {"task": "t", "with": {"x": f"${{n{number - 1}}}"} if number or closed else {}}
        for number in range(length)
    }
    if closed:
        nodes["n0"]["with"] = {"x": f"${{n{length - 1}}}"}
    return Workflow.from_data({"name": "chain", "nodes": nodes, "output": f"n{length - 1}"})


def test_a_chain_of_fifty_thousand_compiles_and_a_circle_of_as_many_is_told() -> None:
    assert len(compile_workflow(chain(50_000)).nodes) == 50_000
    with pytest.raises(DefinitionError, match=r"n0 -> n1 -> .*more\).* -> n49999 -> n0"):
        compile_workflow(chain(50_000, closed=True))


def test_a_workflow_with_too_many_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "settings", lambda: Settings(max_nodes=9))
    with pytest.raises(DefinitionError, match="the workflow has 10 nodes and the limit is 9"):
        compile_workflow(chain(10))


@st.composite
def graphs(draw: st.DrawFn) -> list[set[int]]:
    """Producers of each node, always earlier ones: no cycle."""
    size = draw(st.integers(1, 12))
    return [
        draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set() for number in range(size)
    ]


def flow_of(producers: list[set[int]], order: list[int]) -> Workflow:
    nodes = {
        f"n{number}": {
            "task": "t",
            "detached": True,
            "after": [f"n{dep}" for dep in sorted(producers[number])],
        }
        for number in order
    }
    return Workflow.from_data({"name": "w", "nodes": nodes, "output": f"n{order[-1]}"})


@settings(deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_a_graph_without_a_cycle_is_never_refused(producers: list[set[int]], random: Any) -> None:
    order = list(range(len(producers)))
    random.shuffle(order)
    plan = compile_workflow(flow_of(producers, order))
    assert [node.name for node in plan.nodes] == [f"n{number}" for number in order]


@settings(deadline=None)
@given(graphs(), st.data())
def test_a_graph_with_a_cycle_is_always_refused(producers: list[set[int]], data: st.DataObject) -> None:
    last = data.draw(st.integers(0, len(producers) - 1))
    reached, waiting = {last}, [last]
    while waiting:
        fresh = producers[waiting.pop()] - reached
        reached |= fresh
        waiting.extend(fresh)
    producers[data.draw(st.sampled_from(sorted(reached)))].add(last)
    with pytest.raises(DefinitionError, match="in a circle"):
        compile_workflow(flow_of(producers, list(range(len(producers)))))


@pytest.mark.parametrize(
    "nodes",
    [
        "  a: {task: t}\n  side: {task: t, detached: true, with: {x: '${before}'}}\n  before: {task: t}\n"
        + OUT,
        "  a: {task: t}\n  out: {agent: {prompt: '{{ a.b }} {{ x }} {{ inputs.repo }}'}, with: {x: 1}}",
        "  a: {task: t}\n  out: {agent: {prompt: '{{ a }}'}, with: {a: '${a.people}'}}",
        "  a: {tool: 'made_tools:by_person', with: {commits: []}, on_failure: {default: null}}\n"
        "  out: {task: t, with: {x: '${a.whatever}'}}",
        "  a: {tool: 'made_tools:numbers', with: {up_to: 3}}\n"
        "  out: {tool: 'made_tools:numbers', for_each: '${a}', with: {up_to: '${item}'}}",
        "  out: {tool: 'made_tools:read_commits', with: {repo: 'x/${inputs.repo}'}}",
    ],
)
def test_what_is_right_compiles(nodes: str) -> None:
    compile_workflow(Workflow.from_yaml(f"{HEAD}{nodes}\noutput: out\n"))


def test_tools_need_not_be_there_when_they_are_not_looked_at() -> None:
    workflow = Workflow.from_yaml("name: w\nnodes: {a: {tool: 'absent.tools:x', with: {y: 1}}}\noutput: a")
    assert compile_workflow(workflow, import_tools=False).nodes[0].target == "absent.tools:x"
