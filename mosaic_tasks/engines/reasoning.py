"""What a model thinks before it answers, `<think>...</think>` at the beginning of its text, kept apart."""

from __future__ import annotations

from typing import Literal, NamedTuple

_OPENING, _CLOSING = "<think>", "</think>"


class Parted(NamedTuple):
    """New text, taken apart; either may be empty."""

    answer: str
    reasoning: str


class ReasoningReader:
    """Takes a streamed text apart into answer and reasoning.

    Reasoning is what stands in tags at the beginning, in one or several pairs; a tag behind the first word of the
    answer is part of the answer. White space around the tags is dropped, all other text is kept as it is. Where
    the closing tag never comes, all is reasoning.

    Attributes:
        is_over: the answer has begun, so whatever follows is answer; it need not be read any more.
    """

    def __init__(self, *, opened: bool = False) -> None:
        """Begins a text.

        Args:
            opened: the prompt ended with the opening tag, so the text begins inside.
        """
        self._in: Literal["lead", "reasoning", "answer"] = "reasoning" if opened else "lead"
        self._dropping = opened  # a tag has come, so white space in the lead is around a tag
        self._held = ""

    @property
    def is_over(self) -> bool:
        """See the class."""
        return self._in == "answer"

    def feed(self, text: str) -> Parted:
        """Reads on. What may be the beginning of a tag is held back until more is known."""
        text, self._held = self._held + text, ""
        reasoning = ""
        while text and self._in != "answer":
            if self._in == "reasoning":
                part, text = self._think(text)
                reasoning += part
            else:
                text = self._lead(text)
        return Parted(text, reasoning)

    def close(self) -> Parted:
        """The text is over: returns what was held back."""
        held, self._held = self._held, ""
        if self._in == "reasoning":
            return Parted("", held)
        return Parted(held.lstrip() if self._dropping else held, "")

    def _think(self, text: str) -> tuple[str, str]:
        """The reasoning at the beginning of `text`, and what comes behind its closing tag."""
        part, closed, rest = text.partition(_CLOSING)
        if closed:
            self._in = "lead"
            return part, rest
        held = next(size for size in range(len(_CLOSING), -1, -1) if text.endswith(_CLOSING[:size]))
        self._held = text[len(text) - held :]
        return text[: len(text) - held], ""

    def _lead(self, text: str) -> str:
        """What follows where reasoning or the answer may begin."""
        begun = text.lstrip()
        if begun.startswith(_OPENING):
            self._in, self._dropping = "reasoning", True
            return begun.removeprefix(_OPENING)
        if _OPENING.startswith(begun):
            self._held = text
            return ""
        self._in = "answer"
        return begun if self._dropping else text


__all__ = ["Parted", "ReasoningReader"]
