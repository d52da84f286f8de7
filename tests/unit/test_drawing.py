"""Graphs as pictures."""

from __future__ import annotations

import pytest

from mosaic_queues.errors import DefinitionError
from mosaic_tasks.definition.drawing import mermaid, text
from mosaic_tasks.definition.workflow import Workflow

WORKFLOW = Workflow.from_yaml(
    """
name: w
description: reads and tells
nodes:
  tell:
    agent: {prompt: "{{ line }}", model: "openai:m"}
    for_each: "${read.lines}"
    as: line
    when: 'read.n > "1"'
  read: {tool: "made_tools:anything"}
  all: {task: "x<y>", with: {x: "${tell}"}, after: [read]}
output: all
"""
)


def test_text_shows_layers() -> None:
    assert text(WORKFLOW) == (
        "w: reads and tells\n"
        "   1  read  tool made_tools:anything\n"
        '   2  tell  agent openai:m  for each line of read.lines  when read.n > "1"  <- read\n'
        "   3  all   task x<y>  <- tell, read  => output\n"
    )


def test_mermaid_shows_kinds_edges_and_the_output() -> None:
    assert mermaid(WORKFLOW).splitlines() == [
        "flowchart TD",
        '    n0(["<b>tell</b><br/>agent openai:m<br/>for each of read.lines<br/>'
        'when read.n #62; #34;1#34;"])',
        '    n1["<b>read</b><br/>tool made_tools:anything"]',
        '    n2[["<b>all</b><br/>task x#60;y#62;"]]',
        "    n1 --> n0",
        "    n0 --> n2",
        "    n1 -.-> n2",
        "    style n2 stroke-width:3px",
    ]


def test_a_terminal_gets_no_control_characters() -> None:
    workflow = Workflow.from_yaml('name: w\nnodes: {a: {task: "x\\e[31m"}}\noutput: a')
    assert "\x1b" not in text(workflow) + mermaid(workflow)


def test_a_wrong_workflow_is_not_drawn() -> None:
    workflow = Workflow.from_yaml("name: w\nnodes: {a: {task: t, after: [a]}}\noutput: a")
    with pytest.raises(DefinitionError, match="a -> a"):
        text(workflow)


def test_tools_need_not_be_there_to_draw() -> None:
    workflow = Workflow.from_yaml("name: w\nnodes: {a: {tool: 'absent:x'}}\noutput: a")
    for draw in (text, mermaid):
        assert "absent:x" in draw(workflow, import_tools=False)


STREAMS = Workflow.from_yaml(
    """
name: w
nodes:
  numbers: {tool: "tests.integration.stream_tools:numbers", with: {n: 3}, tags: [cheap, "a<b"]}
  each: {tool: "tests.integration.stream_tools:double", for_each: "${numbers}", with: {x: "${item}"}}
  extract: {agent: {prompt: x, output: {properties: {a: {type: string}, b: {properties: {c: {}}}}}}}
  prose: {agent: {prompt: x}}
  told:
    agent: {prompt: "{{ each }} {{ extract.a }} {{ extract.b.c }} {{ prose }} {{ numbers }}"}
    edges: {each: stream, extract: fields, prose: {kind: stream, by: sentence, stable: true}}
output: told
"""
)


def test_edges_that_do_not_wait_for_the_end_say_how_they_read() -> None:
    read = "numbers, each (stream), extract (fields: a, b.c), prose (stream by sentence, when it closed)"
    drawn = text(STREAMS)
    assert f"<- {read}" in drawn
    assert "<- numbers (for_each)" in drawn
    lines = mermaid(STREAMS).splitlines()
    assert '    n0 -->|"for_each"| n1' in lines
    assert '    n2 -->|"fields: a, b.c"| n4' in lines
    assert "    n0 --> n4" in lines


def test_tags_are_shown() -> None:
    assert "tags: cheap, a<b" in text(STREAMS)
    assert "<br/>tags: cheap, a#60;b" in mermaid(STREAMS)


def test_what_an_agent_requires_is_drawn() -> None:
    workflow = Workflow.from_yaml(
        "name: w\nnodes:\n  a: {agent: {prompt: x, requires: {capability: math, min_quality: 0.8}}}\noutput: a\n"
    )
    assert "a  agent requires capability math, min_quality 0.8  => output" in text(workflow)
    assert "agent requires capability math, min_quality 0.8" in mermaid(workflow)
