"""Fields of a streamed JSON answer: announced once each, when the syntax proves them, whatever the cuts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_tasks.definition.references import Path
from mosaic_tasks.execution.agents import parse_answer
from mosaic_tasks.execution.streams.readiness import FieldReader, Ready

SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "Risk": {"type": "object", "properties": {"level": {"enum": ["low", "high"]}}},
        "Tree": {"type": "object", "properties": {"parts": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
    },
    "properties": {
        "revenue": {"type": "integer"},
        "risk": {"anyOf": [{"$ref": "#/$defs/Risk"}, {"type": "null"}]},
        "figures": {"type": "array", "items": {"type": "object", "required": ["value"]}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
        "shape": {"oneOf": [{"properties": {"r": {"type": "number"}}, "type": "object"}, {"type": "string"}]},
        "tree": {"$ref": "#/$defs/Tree"},
        "free": True,
        "either": {"anyOf": [True, {"type": "object", "properties": {"x": {"type": "integer"}}}]},
    },
}  # fmt: skip
KEYS = st.sampled_from(["a", "b", "c", 'quo"te', "back\\slash", "ключ", "😀", ""]) | st.text(max_size=4)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["}", '"', "\\", "\\u0041", '{"a": 1}', "```", "\n"])
)


def containers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inside, max_size=4) | st.dictionaries(KEYS, inside, max_size=4)


DOCUMENTS = containers(st.recursive(SCALARS, containers, max_leaves=12))


@st.composite
def texts(draw: st.DrawFn) -> tuple[Any, str]:
    """A document, and one of the ways to write it."""
    document = draw(DOCUMENTS)
    written = json.dumps(
        document,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1, "\t"])),
        separators=draw(st.sampled_from([(",", ":"), (" , ", "\r\n:\t")])),
    )
    return document, written


def completing(value: Any, path: Path = ()) -> Iterator[Ready]:
    """The parts of a value, in the order in which they are complete."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for step, part in inner:
        yield from completing(part, (*path, step))
    yield Ready(path, value)


def read(
    text: str,
    paths: Sequence[Path],
    schema: dict[str, Any] | None = None,
    *,
    elements: Sequence[Path] = (),
    cuts: Iterable[int] = (),
) -> list[Ready]:
    reader = FieldReader(paths, schema, elements=elements)
    ready, start = [], 0
    for cut in (*cuts, len(text)):
        ready += reader.feed(text[start:cut])
        start = cut
    assert reader.chars_read <= 2 * len(text) + 4096
    return ready


def exact(ready: Iterable[Ready]) -> list[tuple[Path, str]]:
    """Comparable with types: `1`, `1.0` and `true` are equal in Python."""
    return [(path, json.dumps(value)) for path, value in ready]


@settings(deadline=None)
@given(texts(), st.data())
def test_what_is_announced_is_what_json_reads_whatever_the_cuts(
    written: tuple[Any, str], data: st.DataObject
) -> None:
    document, text = written
    parts = list(completing(document))
    watched = data.draw(st.sets(st.sampled_from([part.path for part in parts])), label="paths")
    absent: list[Path] = [("a", "nowhere"), (99,), ("nowhere", 0)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text))), label="cuts"))
    expected = [part for part in parts if part.path in watched]
    announced = read(text, [*watched, *absent], cuts=cuts)
    assert exact(announced) == exact(expected)
    assert exact(read(text, [*watched, *absent], cuts=range(len(text)))) == exact(expected)


@settings(deadline=None)
@given(texts())
def test_a_document_that_is_cut_off_announces_only_what_the_whole_one_has(written: tuple[Any, str]) -> None:
    document, text = written
    parts = list(completing(document))
    whole = exact(parts)
    for end in range(len(text)):
        announced = exact(read(text[:end], [part.path for part in parts]))
        assert announced == whole[: len(announced)]
        assert len(announced) < len(whole)


@settings(deadline=None)
@given(texts(), st.data())
def test_elements_are_announced_one_by_one(written: tuple[Any, str], data: st.DataObject) -> None:
    document, text = written
    parts = list(completing(document))
    arrays = [part.path for part in parts if isinstance(part.value, list)]
    chosen = set(data.draw(st.lists(st.sampled_from(arrays)), label="arrays")) if arrays else set()
    expected = [part for part in parts if part.path[:-1] in chosen and part.path]
    assert exact(read(text, (), elements=list(chosen), cuts=range(0, len(text), 3))) == exact(expected)


TRAPS = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", '"', "\\", ",", ":", " ", "\n", "1", "-", "tru", "e", "x", '{"a":', '"a"', "```json\n",
         '{"a": {"b": 1}}', "é", "\\u00", "NaN", "1e5", "[1, "]
    )
)  # fmt: skip


@settings(deadline=None)
@given(TRAPS, st.lists(st.integers(0, 60)))
def test_cuts_change_nothing_also_amid_what_is_no_json(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    paths: list[Path] = [("a",), ("a", "b"), (0,), ("a", 0)]
    elements: list[Path] = [("a",)]
    whole = exact(read(text, paths, elements=elements))
    assert exact(read(text, paths, elements=elements, cuts=sorted(cuts))) == whole
    assert exact(read(text, paths, elements=elements, cuts=range(len(text)))) == whole
    assert len({path for path, _ in whole}) == len(whole)


def test_a_field_is_announced_with_the_character_that_proves_it() -> None:
    reader = FieldReader([("a",), ("b",), ("c",), ("d",), ("e", 1), ("e",)])
    assert reader.feed('{"a": "x') == []
    assert reader.feed('"') == [(("a",), "x")]
    assert reader.feed(', "b": 12') == []
    assert reader.feed("3") == []
    assert reader.feed(" ") == [(("b",), 123)]
    assert reader.feed(', "c": tru') == []
    assert reader.feed("e") == []
    assert reader.feed(',"d":{') == [(("c",), True)]
    assert reader.feed("}") == [(("d",), {})]
    assert reader.feed(',"e":[null,-1.5e3') == []
    assert reader.feed("]") == [(("e", 1), -1500.0), (("e",), [None, -1500.0])]
    assert reader.feed('} and {"a": 5}') == []


@pytest.mark.parametrize("text", [r'{"a": "\ud83d\ude00\"\\"}', '{"a": "😀\\"\\\\"}'])
def test_escapes_may_be_cut_anywhere(text: str) -> None:
    for cut in range(len(text)):
        assert read(text, [("a",)], cuts=[cut]) == [(("a",), '😀"\\')]


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"a": 1}\n```',
        'Here is the answer: {"a": 1} Hope it helps [really].',
        'For {name} and {{x}} in [1] and [see below]: {"a": 1}',
        'The sets {"x", "y"} and {"unclosed} are none. {"a": 1}',
        '[] {} {"b": 2} [{"a": 5}] {"a": 1}',
        '{"b": [1, 2, {"a": 1} and so on',
        '{"a": NaN} {"a": 1}',
        '{"a": Infinity} {"a": -Infinity} {"a": 01} {"a": 1.} {"a": +1} {"a": 1}',
        '{"a": "line\nbreak"} {"a": "\\x"} {"a": \'x\'} {"a" 1} {"a": 1 2} {a: 1} {"b": 1,} {"a": 1}',
        "[" * 5000 + ' x {"a": 1}',
        "\\frac{a}{b} " * 2000 + '{"a": 1}',
    ],
)
def test_prose_and_fences_around_the_json_are_tolerated(text: str) -> None:
    assert read(text, [("a",)]) == [(("a",), 1)]
    assert read(text, [("a",)], cuts=range(0, len(text), 4)) == [(("a",), 1)]


@pytest.mark.parametrize(
    "text",
    [
        '{"revenue": 5, "risk": {"level": "low"}}',
        '```json\n{"revenue": 5, "risk": {"level": "low"}}\n```\nDone {so}.',
        'As {asked} [1]: {"risk": {"level": "low"}, "revenue": 5}',
        'First {"revenue": "?"}, no: {"revenue": 5, "risk": {"level": "low"}}',
    ],
)
def test_the_announced_agrees_with_the_final_answer(text: str) -> None:
    required = {**SCHEMA, "required": ["revenue", "risk"]}
    announced = dict(read(text, [("revenue",), ("risk", "level")], required))
    final, wrong = parse_answer(text, required)
    assert wrong is None
    assert announced == {("revenue",): final["revenue"], ("risk", "level"): final["risk"]["level"]}


@pytest.mark.parametrize(
    "text",
    ['{"a": 1"b": 2}', '{"a": true[]}', '{"a": 1x}', '{"a": 1:2}', '{"a": -}', '{"a": truer}', '{"a", 1}'],
)
def test_a_number_or_word_needs_its_end_behind_it(text: str) -> None:
    assert read(text, [("a",)]) == []
    assert read(text, [("a",)], cuts=range(len(text))) == []


def test_after_an_announcement_no_other_document_is_read() -> None:
    assert read('{"a": 1, oops {"a": 2, "b": 3}', [("a",), ("b",)]) == [(("a",), 1)]
    assert read('{"a": 1} {"b": 3}', [("a",), ("b",)]) == [(("a",), 1)]


@pytest.mark.parametrize(("depth", "announced"), [(199, 1), (300, 0)])
def test_what_is_nested_too_deeply_is_no_json(depth: int, announced: int) -> None:
    text = '{"b": ' + "[" * depth + "]" * depth + ', "a": 1}'
    assert len(read(text, [("a",)])) == announced


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"revenue": "5"}', ("revenue",)),
        ('{"risk": {"level": "huge"}}', ("risk", "level")),
        ('{"risk": 5}', ("risk",)),
        ('{"pair": [1]}', ("pair", 0)),
        ('{"pair": ["x", "y"]}', ("pair", 1)),
        ('{"shape": {"r": "x"}}', ("shape", "r")),
        ('{"tree": {"parts": [{"parts": 5}]}}', ("tree", "parts", 0)),
        ('{"revenue": 0.5}', ()),
    ],
)
def test_what_does_not_fit_the_schema_is_not_announced(text: str, path: Path) -> None:
    assert FieldReader([path], SCHEMA).feed(text) == []


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ('{"revenue": 5}', ("revenue",), 5),
        ('{"risk": null}', ("risk",), None),
        ('{"risk": {"level": "low"}}', ("risk",), {"level": "low"}),
        ('{"pair": ["x", 2]}', ("pair", 1), 2),
        ('{"shape": {"r": 1.5}}', ("shape", "r"), 1.5),
        ('{"tree": {"parts": [{"parts": []}]}}', ("tree", "parts", 0), {"parts": []}),
        ('{"free": {"any": 1}}', ("free", "any"), 1),
        ('{"either": {"x": "any"}}', ("either", "x"), "any"),
        ('{"unheard": [1]}', ("unheard",), [1]),
    ],
)
def test_what_fits_or_is_not_described_is_announced(text: str, path: Path, value: Any) -> None:
    reader = FieldReader([path], SCHEMA)
    assert reader.feed(text) == [(path, value)]


@pytest.mark.parametrize("reference", ["#/properties/a", "#", "#/$defs/None", "https://example.com/x.json"])
def test_a_schema_that_refers_beyond_its_definitions_is_not_checked(reference: str) -> None:
    items = {"type": "array", "items": {"$ref": reference}}
    reader = FieldReader([("b",)], {"type": "object", "properties": {"a": {"type": "integer"}, "b": items}})
    assert reader.feed('{"b": ["x"]}') == [(("b",), ["x"])]


def test_elements_fit_the_schema_of_their_array_each() -> None:
    reader = FieldReader([("figures", 2, "value")], SCHEMA, elements=[("figures",)])
    ready = reader.feed('{"figures": [{"value": 1}, {}, {"value": 3}')
    assert ready == [
        (("figures", 0), {"value": 1}),
        (("figures", 2, "value"), 3),
        (("figures", 2), {"value": 3}),
    ]


def test_a_field_that_does_not_fit_is_announced_from_a_later_document() -> None:
    reader = FieldReader([("revenue",)], SCHEMA)
    assert reader.feed('{"revenue": "?"} ') == []
    assert reader.feed('{"revenue": 5}') == [(("revenue",), 5)]


@pytest.mark.parametrize(
    ("text", "announced"),
    [
        ('{"a": {"b": 1}, "a": {"b": 2}}', [(("a", "b"), 1)]),
        ('{"a": {"b": 1}, "a": 5}', [(("a", "b"), 1)]),
        ('{"a": {"b": 1, "b": 2}}', [(("a", "b"), 1)]),
        ('{"a": {}, "\\u0061": {"b": 2}}', []),
    ],
)
def test_a_key_that_comes_again_is_announced_once_at_most(
    text: str, announced: list[tuple[Path, Any]]
) -> None:
    reader = FieldReader([("a", "b")])
    assert reader.feed(text) == announced


def test_keys_repeat_freely_where_nobody_waits_for_them() -> None:
    reader = FieldReader([("a",)], elements=[("c",)])
    ready = reader.feed('{"b": 1, "b": 2, "a": {"x": 1, "x": 2}, "c": [{"k": 1}, {"k": 2}]}')
    assert ready == [(("a",), {"x": 2}), (("c", 0), {"k": 1}), (("c", 1), {"k": 2})]


def test_keys_are_no_indexes_and_indexes_no_keys() -> None:
    assert read('{"a": {"0": 1}, "b": [1]}', [("a", 0), ("b", "0")], elements=[("a",)]) == []


def test_a_path_from_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\('a', -1\) counts from the end.*use 0 and up"):
        FieldReader([("a", -1)])


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (json.dumps({"rows": [{"id": i, "t": 'a "b"\n'} for i in range(2000)], "a": 1}), 1.0),
        (json.dumps({"t": "word \\" * 10_000, "a": 1}), 1.0),
        ("[" + "1" * 20_000, 1.0),
        ("[" * 20_000, 2.3),
        ("{x[" * 20_000, 2.3),
        ('{"k": [' * 90 + "1, " * 20_000 + "oops" + '{"b": [1]}' * 2000, 2.3),
    ],
)
def test_work_grows_with_the_text_and_not_with_the_feeds(text: str, most: float) -> None:
    reader = FieldReader([("a",)])
    for start in range(0, len(text), 4):
        reader.feed(text[start : start + 4])
    assert reader.chars_read <= most * len(text)
