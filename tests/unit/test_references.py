"""`${...}`: written, read, resolved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_queues.errors import BindingError
from mosaic_tasks.definition.plan import INPUTS, ITEM, NodePlan, Ref, link
from mosaic_tasks.definition.references import (
    Reference,
    ReferenceSyntaxError,
    did_you_mean,
    encode,
    escape,
    label_in,
    parse,
    pieces,
    resolve,
)

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
paths = st.lists(st.one_of(st.text(max_size=6), st.integers(-999, 999)), max_size=4).map(tuple)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$ref", "$text", "$literal", "a", "b"]), inner, max_size=2)
    ),
    max_leaves=8,
)


def numbered(reference: Reference) -> int:
    return {"inputs": INPUTS, "item": ITEM}.get(reference.name, 0)


@given(names, paths)
def test_a_reference_survives_writing_and_reading(name: str, path: tuple[str | int, ...]) -> None:
    reference = Reference(name, path)
    assert parse(str(reference)) == reference


@given(st.text())
def test_an_escaped_text_means_itself(text: str) -> None:
    assert pieces(escape(text)) == (text,)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, list):
        return [_escaped(part) for part in value]
    return {key: _escaped(part) for key, part in value.items()} if isinstance(value, dict) else value


@given(json_like)
def test_literals_come_out_as_they_went_in_whatever_they_look_like(value: Any) -> None:
    bindings = {"x": encode(_escaped(value), numbered)}
    assert resolve(bindings, lambda source: pytest.fail("nothing to look up")) == {"x": value}


def test_a_whole_reference_keeps_its_type_and_others_become_text() -> None:
    output = {"a": [{"b": 3}], "c d": True}
    written = {
        "whole": "${n.a}",
        "part": "${ n.a[0].b }",
        "text": 'b=${n.a[0].b}, c=${n["c d"]}, a=${n.a}, $${n}',
        "deep": [{"x": "${n.a[-1].b}"}],
    }
    bindings = {key: encode(value, numbered) for key, value in written.items()}
    assert resolve(bindings, lambda _: output) == {
        "whole": [{"b": 3}],
        "part": 3,
        "text": 'b=3, c=true, a=[{"b": 3}], ${n}',
        "deep": [{"x": 3}],
    }


@pytest.mark.parametrize("text", ["${", "${}", "${a.}", "${a b}", "${a.0}", "${1}", "x ${a[}", "${a[1.5]}"])
def test_what_begins_like_a_reference_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(ReferenceSyntaxError, match=r"is not a reference; write \$\{node\}"):
        pieces(text)


@pytest.mark.parametrize("text", ["", "x", "${a}${b}", "a ${b}"])
def test_only_one_whole_reference_parses(text: str) -> None:
    with pytest.raises(ReferenceSyntaxError, match="is not a reference"):
        parse(text)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            ("peple",),
            "node 'people' has no 'peple' in its output; it has: people, total; did you mean 'people'?",
        ),
        (
            ("people", 7),
            "node 'people' has no 7 at 'people' in its output; it is a list of 1; name an element",
        ),
        (("people", 0, "nam"), "node 'people' has no 'nam' at 'people[0]' in its output; it has: name"),
        (("total", "x"), "node 'people' has no 'x' at 'total' in its output; it is null"),
        (("people", "name"), "it is a list of 1; name an element by its number"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_there_is(path: tuple[str | int, ...], message: str) -> None:
    plan = link("w", [NodePlan(name="people", kind="tool", queue="q")], output=0)
    bindings = {"x": {"$ref": [0, *path]}}
    with pytest.raises(BindingError) as caught:
        resolve(bindings, lambda _: {"people": [{"name": "a"}], "total": None}, label_in(plan))
    assert message in str(caught.value)
    assert not caught.value.retryable


def test_sources_have_names() -> None:
    label = label_in(link("w", [NodePlan(name="people", kind="tool", queue="q")], output=0))
    assert [label(INPUTS), label(ITEM), label(0)] == ["the workflow", "the item", "node 'people'"]


def test_literal_containers_are_fresh_in_each_call() -> None:
    bindings = {"x": encode([1, {"a": []}], numbered)}
    first = resolve(bindings, lambda _: None)
    first["x"][1]["a"].append(1)
    assert resolve(bindings, lambda _: None) == {"x": [1, {"a": []}]}


def test_a_name_like_no_other_has_no_suggestion() -> None:
    assert did_you_mean("zzz", ["people"]) == ""
    assert did_you_mean("peple", ["people"]) == "; did you mean 'people'?"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("reties", "retry"), ("retries", "retry"), ("foreach", "for_each"), ("time_out", "timeout")],
)
def test_the_nearest_name_is_the_one_that_was_meant(name: str, meant: str) -> None:
    names = ["tool", "as", "retry", "for_each", "edges", "timeout", "tags"]
    assert did_you_mean(name, names) == f"; did you mean {meant!r}?"


def test_a_reference_in_bindings_is_the_one_of_the_plan() -> None:
    assert encode("${n.a}", numbered) == {"$ref": [0, "a"]}
    assert Ref(0, ("a",)) == Ref(0, ("a",))
