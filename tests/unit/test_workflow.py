"""The workflow that people hold: normal forms, writing, schema, inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_queues.errors import DefinitionError, InputError
from mosaic_tasks.definition.compiling import compile_workflow
from mosaic_tasks.definition.parts import seconds
from mosaic_tasks.definition.workflow import Workflow

TEXT = """
name: weekly-report
description: what happened
inputs:
  repo: {type: string, default: "."}
  days: integer
defaults:
  timeout: 5m
nodes:
  commits:
    task: read
    with: {repo: "${inputs.repo}", literal: "$${x}"}
    retry: 3
  sections:
    for_each: "${commits.people}"
    as: person
    agent: {prompt: "Write about {{ person.name }}\\n", output: {type: object}, stop: END}
    on_failure: {default: {title: none}}
    timeout: 90s
    tags: [writing]
output: sections
"""


def test_short_forms_equal_long_ones() -> None:
    long = TEXT.replace("days: integer", "days: {type: integer}").replace("retry: 3", "retry: {attempts: 3}")
    long = long.replace("5m", "300").replace("90s", "1.5m").replace("stop: END", "stop: [END]")
    assert long != TEXT
    assert Workflow.from_yaml(long) == Workflow.from_yaml(TEXT)


def test_a_workflow_survives_writing_and_reading() -> None:
    workflow = Workflow.from_yaml(TEXT)
    again = Workflow.from_yaml(workflow.to_yaml())
    assert again == workflow
    assert compile_workflow(again).encode() == compile_workflow(workflow).encode()


def test_a_workflow_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(TEXT)
    assert Workflow.from_file(file) == Workflow.from_yaml(TEXT)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=6).map(lambda text: text.replace("${", "")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {"task": st.text(min_size=1, max_size=6)},
        optional={
            "with": st.dictionaries(st.text(max_size=5), values, max_size=3),
            "retry": st.integers(1, 9)
            | st.fixed_dictionaries({"attempts": st.integers(1, 9), "factor": st.floats(1, 9)}),
            "timeout": st.floats(0.01, 1e6) | st.sampled_from(["90s", "5 m", "1h", "250ms"]),
            "on_failure": st.sampled_from(["fail", "skip"]) | values.map(lambda value: {"default": value}),
            "tags": st.lists(st.text(max_size=5), max_size=2),
            "description": st.text(max_size=9),
        },
    )
)
def test_any_node_survives_writing_and_reading(node: dict[str, Any]) -> None:
    workflow = Workflow.from_data({"name": "w", "nodes": {"a": node}, "output": "a"})
    again = Workflow.from_yaml(workflow.to_yaml())
    assert again == workflow
    assert compile_workflow(again).encode() == compile_workflow(workflow).encode()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("batch: {min_item: 3}", "unknown key 'min_item'; did you mean 'min_items'"),
        ("edges: {b: {feilds: [x]}}", "unknown key 'feilds'; did you mean 'fields'"),
    ],
)
def test_an_unknown_key_is_compared_with_those_of_its_place(line: str, told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        Workflow.from_yaml(f"name: w\nnodes:\n  a:\n    task: t\n    {line}\noutput: a")


def test_the_schema_for_editors_accepts_what_the_loader_accepts() -> None:
    schema = Workflow.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(TEXT), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(TEXT.replace("retry: 3", "rety: 3")), schema)


def test_inputs_are_validated() -> None:
    workflow = Workflow.from_yaml(TEXT)
    assert workflow.validate_inputs({"days": 3}) == {"repo": ".", "days": 3}
    assert workflow.parse_inputs({"days": "3", "repo": "7"}) == {"days": 3, "repo": "7"}
    with pytest.raises(InputError, match=r"no input 'dys' \(did you mean 'days'\?\); it has"):
        workflow.validate_inputs({"dys": 3})


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("5m", 300), ("1h", 3600), ("2d", 172_800), (1, 1)])
def test_a_duration_is_read(text: Any, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5", "m", "-1s", -1, True, None, [], float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        seconds(text)
