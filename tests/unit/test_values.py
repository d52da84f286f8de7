"""Values that no encoding could give back are refused, with the place where they are."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from mosaic_queues.errors import NotSerializable
from mosaic_queues.values import encode


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("\ud800", r"result holds a text with the lone surrogate '\ud800' at position 0"),
        ("Jos\udce9", r"result holds a text with the lone surrogate '\udce9' at position 3"),
        ({"a": [1, "x\udfff"]}, r"result.a[1] holds a text with the lone surrogate '\udfff' at position 1"),
        ({"a": {1, "\ud800"}}, r"result.a holds a text with the lone surrogate '\ud800' at position 0"),
        ({"a": {"\udce9": 1}}, r"result.a holds a text with the lone surrogate '\udce9' at position 0"),
        (
            [PurePosixPath("d/\udce9")],
            r"result[0] holds a text with the lone surrogate '\udce9' at position 2",
        ),
    ],
)
def test_a_lone_surrogate_is_refused_with_its_place(value: Any, told: str) -> None:
    with pytest.raises(NotSerializable) as caught:
        encode(value)
    assert str(caught.value).startswith(told)


def test_surrogates_in_pairs_are_not_joined_but_text_beyond_the_basic_plane_is_stored() -> None:
    assert encode("😀") == b"\xa4" + "😀".encode()
    with pytest.raises(NotSerializable, match="position 0"):
        encode("\ud83d\ude00")


def test_an_error_knows_the_way_to_what_it_is_about() -> None:
    with pytest.raises(NotSerializable) as caught:
        encode({"n": {7: [0, {"a b": 2**64}]}})
    assert caught.value.path == ("n", 7, 1, "a b")
    assert caught.value.reason.startswith(".n[7][1]['a b'] holds an int of 65 bits")


def test_a_long_way_is_told_by_its_ends() -> None:
    value: Any = 2**64
    for number in range(20):
        value = {f"k{number}": value}
    with pytest.raises(NotSerializable, match=r"result\.k19\.k18.*\.k12\.\.\.\.k2\.k1\.k0 holds"):
        encode(value)
