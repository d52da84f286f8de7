"""Sentences and headings of a streamed text: told as soon as they are complete, whatever the cuts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_tasks.engines.markers import Marker, MarkerReader
from mosaic_tasks.engines.sentences import split_blocks

REPORT = """# Results of 2024

Dr. Smith paid 3.11 dollars, e.g. for this. And then?  It `runs a. B` here. setup.py is next
and wraps to the next line. The end
## Details
- first item. With two
- second item
12) third

```python
# no heading
x = 1. No sentence.
```
After the fence! 你好。世界！"""


def read(text: str, cuts: Iterable[int] = ()) -> list[Marker]:
    reader = MarkerReader()
    markers, start = [], 0
    for cut in (*cuts, len(text)):
        markers += reader.feed(text[start:cut])
        start = cut
    markers += reader.close()
    assert all(text[marker.start : marker.end] == marker.text for marker in markers)
    return markers


def told(markers: Iterable[Marker]) -> list[tuple[str, str]]:
    return [(marker.kind, " ".join(marker.text.split())) for marker in markers]


def test_a_report_is_told_by_its_sentences_and_headings() -> None:
    assert told(read(REPORT)) == [
        ("heading", "# Results of 2024"),
        ("sentence", "Dr. Smith paid 3.11 dollars, e.g. for this."),
        ("sentence", "And then?"),
        ("sentence", "It `runs a. B` here."),
        ("sentence", "setup.py is next and wraps to the next line."),
        ("sentence", "The end"),
        ("heading", "## Details"),
        ("sentence", "first item."),
        ("sentence", "With two"),
        ("sentence", "second item"),
        ("sentence", "third"),
        ("sentence", "After the fence!"),
        ("sentence", "你好。"),
        ("sentence", "世界！"),
    ]


def test_each_is_told_when_it_is_certain() -> None:
    reader = MarkerReader()
    assert told(reader.feed("# Ti")) == []
    assert told(reader.feed("tle\n")) == [("heading", "# Title")]
    assert told(reader.feed("It costs 3.")) == []
    assert told(reader.feed("5 dollars. ")) == []
    assert told(reader.feed("N")) == [("sentence", "It costs 3.5 dollars.")]
    assert told(reader.feed("ever mind.\n")) == []
    assert told(reader.feed("\n")) == [("sentence", "Never mind.")]
    assert told(reader.feed("See setup. setup.p")) == []
    assert told(reader.feed("y ")) == [("sentence", "See setup.")]
    assert told(reader.feed("\n- ")) == [("sentence", "setup.py")]
    assert told(reader.feed("one\n#")) == []
    assert told(reader.feed("# Two")) == [("sentence", "one")]
    assert told(reader.close()) == [("heading", "## Two")]
    assert reader.close() == []


WORDS = [
    *(
        "# ",
        "## Head",
        "- ",
        "* ",
        "3. ",
        "12)",
        "```\n",
        "`",
        "`a. B`",
        "\n",
        "\n\n",
        " ",
        ". ",
        "! ",
        '." ',
        "-",
        "#",
    ),
    *(
        "e.g. ",
        "Dr. ",
        "No. 5",
        "3.11",
        "Word",
        "word",
        "setup.py",
        "a.b()",
        "。",
        "」",
        "…",
        "**Bold.** ",
        "x" * 210,
    ),
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS)), st.data())
def test_cuts_change_nothing(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    assert read(text, cuts) == read(text) == read(text, range(len(text)))


@settings(deadline=None)
@given(st.lists(st.sampled_from([word for word in WORDS if "`" not in word])))
def test_sentences_are_those_of_whole_texts(pieces: list[str]) -> None:
    text = "".join(pieces)
    sentences = [sentence for block in split_blocks(text) for sentence in block.sentences]
    assert [sentence for kind, sentence in told(read(text)) if kind == "sentence"] == sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("`a. B` " * 40 + "ends. Here `is more.` Again", ["`a. B` " * 40 + "ends.", "Here `is more.` Again"]),
        ("``a. B` c", ["``a.", "B` c"]),
        ("It's `open. Next\n\nAfter it. All is well", ["It's `open. Next", "After it.", "All is well"]),
    ],
)
def test_what_stands_in_backticks_ends_no_sentence(text: str, sentences: list[str]) -> None:
    assert [marker.text for marker in read(text)] == sentences


@pytest.mark.parametrize("piece", ["word, `x", "abcdefgh"])
def test_a_text_without_a_mark_is_not_read_again_with_every_feed(piece: str) -> None:
    reader = MarkerReader()
    for _ in range(5000):
        assert reader.feed(piece) == []
        assert len(reader._tail) < 250
    assert len(reader.close()) == 1
