"""Tools of the workflows that the tests of the command run."""

from __future__ import annotations


def letters(count: int) -> list[str]:
    return [chr(ord("a") + number) for number in range(count)]


def upper(letter: str) -> str:
    return letter.upper()


def join(parts: list[str]) -> str:
    return "".join(parts)


def broken(parts: list[str]) -> str:
    raise ValueError("no such luck")


def misnamed() -> str:
    raise ValueError(b"Jos\xe9".decode(errors="surrogateescape"))


def names() -> list[dict[str, str]]:
    return [{"name": b"Jos\xe9".decode(errors="surrogateescape")}]
