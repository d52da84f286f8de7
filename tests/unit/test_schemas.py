"""Schemas are followed, compared, and decide about inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from made_tools import Commit, History, People, Person
from pydantic import BaseModel

from mosaic_queues.errors import InputError
from mosaic_tasks.definition.schemas import (
    ANY,
    NoSuchPath,
    complete_inputs,
    inputs_schema,
    misfit,
    mismatch,
    read_inputs,
    schema_at,
    schema_of,
    schema_problem,
)


class Tree(BaseModel):
    children: list[Tree] = []
    value: int = 0


class Opaque:
    pass


def out(annotation: Any) -> dict[str, Any]:
    return schema_of(annotation, output=True)


@pytest.mark.parametrize(
    ("annotation", "path", "types"),
    [
        (People, ("people", 0, "name"), "string"),
        (History, ("items", -1, "lines"), "integer"),
        (dict[str, list[int]], ("any", 3), "integer"),
        (tuple[int, str], (1,), "string"),
        (Tree, ("children", 0, "children", 1, "value"), "integer"),
    ],
)
def test_a_path_is_followed(annotation: Any, path: tuple[str | int, ...], types: str) -> None:
    assert schema_at(out(annotation), path)["type"] == types


@pytest.mark.parametrize("annotation", [Any, dict, list, People | None, dict[str, Any], Opaque])
def test_what_a_schema_does_not_tell_may_be_there(annotation: Any) -> None:
    step = 0 if annotation is list else "x"
    assert schema_at(out(annotation), (step,)) == ANY


@pytest.mark.parametrize(
    ("annotation", "path", "message"),
    [
        (People, ("peple",), "has no 'peple'; it has: people, total; did you mean 'people'?"),
        (
            People,
            ("people", 0, "nam"),
            "has no 'nam' at 'people[0]'; it has: name, commits; did you mean 'name'?",
        ),
        (People, (0,), "it is an object; name a key, not a number"),
        (list[int], ("x",), "it is array, which has no keys"),
        (int, (0,), "it is integer, which has no elements"),
    ],
)
def test_a_path_that_no_value_has_is_told(annotation: Any, path: tuple[str | int, ...], message: str) -> None:
    with pytest.raises(NoSuchPath) as caught:
        schema_at(out(annotation), path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (int, int),
        (int, float),
        (float, int),
        (str | None, str),
        (str, str | int),
        (Any, int),
        (int, Any),
        (list[Person], list[Person]),
        (People, dict),
        (dict, People),
        (Tree, Tree),
        (Literal["a"], Literal["a", "b"]),
        (str, Path),
        (list[Any], list[int]),
        (int | str, str | bool),
        (Literal["a"], str),
        (tuple[int, ...], list[int]),
    ],
)
def test_what_may_fit_is_no_mismatch(given: Any, wanted: Any) -> None:
    assert mismatch(out(given), schema_of(wanted)) is None


@pytest.mark.parametrize(
    ("given", "wanted", "reason"),
    [
        (str, int, "it is string, but integer is wanted"),
        (str | None, int, "it is null or string, but integer is wanted"),
        (list[str], list[int], "of its elements: it is string, but integer is wanted"),
        (list[Person], list[Commit], "of its elements: it lacks the key 'author'"),
        (Literal["a"], Literal["b"], "it is one of ['a'], but one of ['b'] is wanted"),
        (bool, int, "it is boolean, but integer is wanted"),
        (People, list[Person], "it is object, but array is wanted"),
    ],
)
def test_what_can_never_fit_is_told(given: Any, wanted: Any, reason: str) -> None:
    assert reason in (mismatch(out(given), schema_of(wanted)) or "")


@pytest.mark.parametrize(
    ("value", "schema", "reason"),
    [
        (5, {"type": "string"}, "5 is integer, but string is wanted"),
        (True, {"type": "integer"}, "True is boolean"),
        ("x", {"type": "string", "enum": ["a"]}, "'x' is not one of ['a']"),
        ([1, "a"], {"type": "array", "items": {"type": "integer"}}, "(at '[1]')"),
    ],
)
def test_a_value_that_does_not_fit_is_told(value: Any, schema: dict[str, Any], reason: str) -> None:
    assert reason in (misfit(value, schema) or "")


def test_values_that_fit_are_silent() -> None:
    assert misfit(5, {"type": "number"}) is misfit(5.0, {"type": "integer"}) is misfit(None, {}) is None
    assert misfit("a", {"type": ["string", "null"]}) is None


@pytest.mark.parametrize(
    "schema", [{"type": "strng"}, {"type": "object", "properties": 5}, {"type": "array", "items": 3}]
)
def test_what_is_no_schema_is_told(schema: dict[str, Any]) -> None:
    assert schema_problem(schema)
    assert schema_problem({"type": "object", "properties": {}}) is None


INPUTS = inputs_schema(
    {
        "repo": {"type": "string", "default": "."},
        "days": {"type": "integer"},
        "tags": {"type": ["array", "null"]},
    }
)


def test_inputs_get_their_defaults() -> None:
    assert complete_inputs(INPUTS, {"days": 3, "tags": None}) == {"repo": ".", "days": 3, "tags": None}


def test_all_that_is_wrong_with_inputs_is_told() -> None:
    with pytest.raises(InputError) as caught:
        complete_inputs(INPUTS, {"rep": ".", "days": "3"})
    message = str(caught.value)
    assert "no input 'rep' (did you mean 'repo'?); it has: repo, days, tags" in message
    assert "input 'days': '3' is string, but integer is wanted" in message
    assert "input 'tags' is missing and has no default" in message


def test_texts_are_read_by_the_type_of_their_input() -> None:
    texts = {"repo": "5", "days": "7", "tags": '["a"]', "other": "x"}
    assert read_inputs(INPUTS, texts) == {"repo": "5", "days": 7, "tags": ["a"], "other": "x"}
    with pytest.raises(InputError, match="'seven' is not integer written as JSON"):
        read_inputs(INPUTS, {"days": "seven"})


def test_an_optional_text_can_be_null() -> None:
    schema = inputs_schema({"tickets": {"type": ["string", "null"]}})
    assert read_inputs(schema, {"tickets": "null"}) == {"tickets": None}
    assert read_inputs(schema, {"tickets": "5"}) == {"tickets": "5"}
