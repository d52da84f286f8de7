"""What the blocking pop of a channel brought last, as the text that came: kombu keeps only what it reads from it."""

from __future__ import annotations

from typing import Any


class LastPop:
    """Listens to what the client of a channel of kombu's Redis transport answers.

    Attributes:
        answer: the list and what lay in it, until it was noted or read; None: nothing came.
    """

    def __init__(self, client: Any) -> None:
        self.answer: tuple[bytes | str, bytes] | None = None
        self._parse = client.parse_response
        client.parse_response = self._remember

    @classmethod
    def of(cls, channel: Any) -> LastPop:
        """The one of a channel, for all who ask."""
        known = getattr(channel.client.parse_response, "__self__", None)
        return known if isinstance(known, cls) else cls(channel.client)

    @property
    def text(self) -> str:
        """What lay in the list, as far as it is text."""
        return "" if self.answer is None else self.answer[1].decode(errors="replace")

    def _remember(self, connection: Any, command: str, **options: Any) -> Any:
        answer = self._parse(connection, command, **options)
        self.answer = answer if command == "BRPOP" and answer else None
        return answer


__all__ = ["LastPop"]
