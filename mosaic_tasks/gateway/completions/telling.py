"""What of an answer was told already. What is told cannot be taken back in this protocol, so it has to stay right."""

from __future__ import annotations


class AnswerChanged(Exception):
    """The answer is not any more what was told of it: an attempt failed, or its node ran again."""


class Telling:
    """A text that is told as it comes.

    A run takes back what does not hold: then what follows says it again or otherwise, from the place on to which it was
    taken back. Said again, it needs no telling.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    @property
    def told(self) -> str:
        """All that was told."""
        return "".join(self._pieces)

    def hear(self, place: int, text: str) -> str:
        """The answer goes on at a place with this text; gives what is new of it.

        Raises:
            AnswerChanged: it differs from what was told.
        """
        known = self._length - place
        if known > 0 and not _agree(self.told[place:], text):
            raise AnswerChanged
        return self._tell(text[max(known, 0) :])

    def end(self, text: str) -> str:
        """This is the whole answer; gives what was not told.

        Raises:
            AnswerChanged: it differs from what was told.
        """
        if not text.startswith(self.told):
            raise AnswerChanged
        return self._tell(text[self._length :])

    def _tell(self, new: str) -> str:
        if new:
            self._pieces.append(new)
            self._length += len(new)
        return new


def _agree(one: str, other: str) -> bool:
    """Whether one begins as the other."""
    return one.startswith(other[: len(one)])
