"""JSON that two readers could understand differently is refused, and so is what is no JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_tasks.gateway.bodies import MOST_DEEP, Malformed, strict_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_any_json_value_is_read_as_it_is(value: Any) -> None:
    assert strict_json(json.dumps(value).encode()) == value
    assert strict_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"{} {}", "no JSON"),
        (b"\xef\xbb\xbf{}", "no JSON"),
        (b"NaN", "no JSON"),
        (b"-Infinity", "no JSON"),
        (b"[1e400]", "no JSON"),
        (b"9" * 5_000, "no JSON"),
        (b'"\xff"', "no JSON"),
        (b'"\\ud800"', "no JSON"),
        (b'"\\udc00\\ud800"', "no JSON"),
        (b'[{"a": {"b": 1, "b": 1}}]', "'b' stands twice"),
        (b'{"a": 1, "\\u0061": 2}', "'a' stands twice"),
        (b"[" * 100_000, "deep"),
        (b'{"a":' * 100_000, "deep"),
    ],
)
def test_what_is_not_strict_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(Malformed, match=told):
        strict_json(body)


def test_the_depth_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        return b"[" * depth + b"]" * depth

    assert strict_json(nested(MOST_DEEP + 1))
    with pytest.raises(Malformed, match="64 deep"):
        strict_json(nested(MOST_DEEP + 2))
