"""Tools for the tests of definitions: one of each kind, typed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from pydantic import BaseModel
from typing_extensions import TypedDict

from mosaic_tasks.definition.tools import agent, tool


class Commit(TypedDict):
    author: str
    lines: int


class History(TypedDict):
    items: list[Commit]
    total: int


class Person(BaseModel):
    name: str
    commits: int


class People(BaseModel):
    people: list[Person]
    total: int


class Section(BaseModel):
    title: str
    body: str


def read_commits(repo: str, since: str = "7 days ago") -> History:
    return {"items": [], "total": 0}


@tool(retry=2, timeout_s=30)
def by_person(commits: list[Commit]) -> People:
    return People(people=[], total=0)


async def report(sections: list[Section], total: int | None = None) -> str:
    return ""


def numbers(up_to: int) -> Iterator[int]:
    yield from range(up_to)


async def words(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word


def anything(**arguments: Any) -> Any:
    return arguments


def by_position(value: int, /) -> int:
    return value


class Callable_:
    async def __call__(self, value: int) -> int:
        return value


called = Callable_()
constant = 5


@agent(system="You write short.", temperature=0.2)
def section(person: Person) -> Section:
    """Write about {{ person.name }}."""
    raise NotImplementedError
