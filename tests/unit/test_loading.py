"""YAML becomes plain data, and says where it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues import documents
from mosaic_queues.documents import dump
from mosaic_queues.errors import DefinitionError
from mosaic_tasks.definition.loading import Problem, Source, told


def load(text: str) -> Any:
    return Source("w.yaml", text).load()


words = ["yes", "1e3", "0o17", "12:30", "2024-01-01", ".5", "~", "null", "- a", "a: b", "#", "<<", "="]
data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(words),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(data)
def test_data_survives_writing_and_reading(value: Any) -> None:
    assert load(dump({"x": value})) == {"x": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("~", None),
        ("1e3", 1000.0),
        ("0x1F", 31),
        ("-7", -7),
        ("1.5", 1.5),
        ("'1'", "1"),
        ("12:30", "12:30"),
        ("!!str 1", "1"),
        ("1_000", "1_000"),
    ],
)
def test_words_are_read_as_in_yaml_1_2(text: str, value: Any) -> None:
    assert load(f"a: {text}") == {"a": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2", "w.yaml:2: broken YAML in column"),
        ("a:\n\tb: 1", "w.yaml:2: broken YAML in column 1: found character that cannot start any token"),
        ("a:\n\tb: 1", "YAML indents with spaces, not with tabs"),
        (
            "nodes:\n  x: {}\n  y: {}\n  x: {}",
            "w.yaml:4: node 'x' is there twice, first in line 2; rename one",
        ),
        (
            "nodes:\n  x:\n    tool: a\n    tool: b",
            "w.yaml:4: node 'x', field 'tool' is there twice, first in line 3",
        ),
        ("a: &x [*x]", "w.yaml:1: the alias *x has no complete anchor before it"),
        ("a: *x", "has no complete anchor"),
        ("a: !!python/object/apply:os.getcwd []", "python/object/apply:os.getcwd' is not allowed"),
        ("a: !!python/name:os.getcwd", "is not allowed; write plain data"),
        ("1: 2", "the key '1' is read as int; put it in quotes"),
        ("[a]: 2", "a key must be a text"),
        ("a\n---\nb", "w.yaml:2: a second document begins"),
        ("", "the file is empty"),
        ("# nothing", "the file is empty"),
        ("[" * 500, "nested deeper than 100 levels"),
        ("a: " + "9" * 5000, "has more than 64 bits; quote it"),
        ("a: \x00", "broken YAML"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        load(text)
    assert message in str(caught.value)


def test_all_keys_that_are_there_twice_are_told() -> None:
    with pytest.raises(DefinitionError) as caught:
        load("a: 1\na: 2\nb:\n  c: 1\n  c: 2\n")
    assert len(caught.value.problems) == 2


def test_an_alias_repeats_a_value() -> None:
    assert load("a: &x {b: [1, 2]}\nc: *x") == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}


def test_aliases_that_multiply_are_refused_before_they_do() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    with pytest.raises(DefinitionError, match="aliases repeat more than 10000 values"):
        load("\n".join(lines))


@pytest.mark.parametrize("flow", [False, True])
def test_a_hundred_thousand_nodes_are_read_no_further_than_the_limit(flow: bool) -> None:
    node = "{tool: m:f, with: {a: 1}}"
    nodes = (f"n{number}: {node}" for number in range(100_000))
    text = "nodes: {" + ", ".join(nodes) + "}" if flow else "nodes:\n  " + "\n  ".join(nodes)
    line = 1 if flow else 1 + 50_001
    with pytest.raises(
        DefinitionError,
        match=f":{line}: the workflow has more than 50,000 nodes and the limit is 50,000; use for",
    ):
        load(text)


def test_a_problem_is_told_with_file_line_node_and_field() -> None:
    source = Source("w.yaml", "name: x\nnodes:\n  people:\n    with:\n      commits: 1\n")
    problem = Problem(("nodes", "people", "with", "commits"), "no")
    assert told(problem, source=source, workflow="x") == "w.yaml:5: node 'people', field 'with.commits': no"
    assert told(problem, source=None, workflow="x") == "workflow 'x': node 'people', field 'with.commits': no"
    assert told(Problem(("nodes", "people", "absent", "x"), "no"), source=source, workflow="x").startswith(
        "w.yaml:3:"
    )
    assert told(Problem((), "no"), source=source, workflow="x") == "w.yaml:1: no"


def test_files_that_cannot_be_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DefinitionError, match=r"absent\.yaml: No such file"):
        Source.read(tmp_path / "absent.yaml")
    with pytest.raises(DefinitionError, match="Is a directory"):
        Source.read(tmp_path)
    file = tmp_path / "w.yaml"
    file.write_bytes(b"name: \xff")
    with pytest.raises(DefinitionError, match="not UTF-8 at byte 6"):
        Source.read(file)
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 3)
    with pytest.raises(DefinitionError, match="larger than"):
        Source.read(file)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: x")
    assert Source.read(file).load() == {"name": "x"}
