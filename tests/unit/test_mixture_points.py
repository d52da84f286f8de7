"""What answers agree on, and what they differ in."""

from __future__ import annotations

from typing import Any

from mixture_made import NUMBER, said

from mosaic_tasks.mixtures.points import build
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Heard

JSON = AnswerForm(form="json")
TEXT = AnswerForm(form="text")
LONG = "x" * 100_000


class TestBuild:
    def test_fields_that_most_agree_on_are_the_core_and_the_rest_is_open(self) -> None:
        heard = [
            _json(0, {"name": "Ada", "born": {"year": 1815, "place": "London"}}),
            _json(1, {"name": "Ada", "born": {"year": 1815, "place": "Paris"}}),
            _json(2, {"name": "Ada", "born": {"year": 1816}}),
        ]

        built = build(heard, JSON)

        assert [(point.path, point.said[0]) for point in built.core] == [
            ("name", ('"Ada"', (0, 1, 2))),
            ("born.year", ("1815", (0, 1))),
        ]
        assert [(point.path, point.said) for point in built.open] == [
            ("born.place", (('"London"', (0,)), ('"Paris"', (1,))))
        ]

    def test_sentences_that_most_say_are_the_core_unless_a_number_or_a_no_differs(self) -> None:
        texts = (
            "Sales rose by 5 percent in May. The plant in Ulm was closed.",
            "Sales rose by 5 percent in may! The plant in Ulm was not closed.",
            "In May sales rose by 5 percent. Sales rose by 6 percent in June.",
        )

        built = build([_text(index, text) for index, text in enumerate(texts)], TEXT)

        assert [(point.said[0][0], point.votes) for point in built.core] == [
            ("Sales rose by 5 percent in May.", 3)
        ]
        assert len(built.open) == 3

    def test_a_tie_is_open(self) -> None:
        built = build(said("7", "9"), NUMBER)

        assert built.core == ()
        assert [point.said for point in built.open] == [(("7", (0,)), ("9", (1,)))]

    def test_nothing_that_counts_builds_nothing(self) -> None:
        assert build(said(None, None), TEXT) == build([], JSON)

    def test_texts_of_100_kb_are_built_of(self) -> None:
        built = build([_text(0, LONG), _text(1, "A b. " * 20_000), _text(2, LONG)], TEXT)

        assert built.core[0].votes == 2


def _json(index: int, value: dict[str, Any]) -> Heard:
    return Heard(index, f"e{index}", answer=Answer(str(value), str(value), value))


def _text(index: int, text: str) -> Heard:
    return Heard(index, f"e{index}", text=text, answer=Answer(text, text, text) if text.strip() else None)
