"""A request goes to another thread where it asks the server, and for nothing else: each change of threads takes longer
than a command."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from mosaic_tasks.gateway import runs
from mosaic_tasks.gateway.completions import routes as completions


def dependants(of: Dependant) -> Iterator[Dependant]:
    yield of
    for each in of.dependencies:
        yield from dependants(each)


def is_plain(dependant: Dependant) -> bool:
    """Whether FastAPI calls it in a thread."""
    call = getattr(dependant.call, "__call__", dependant.call)  # noqa: B004 - of an instance its method
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return not any(is_kind(each) for is_kind in kinds for each in (dependant.call, call))


@pytest.mark.parametrize(
    ("routes", "name", "in_threads"),
    [
        (runs, "submit_run", ["caller.<locals>.admitted", "submit_run"]),
        (completions, "create_chat_completion", ["caller.<locals>.admitted"]),
    ],
)
def test_a_submission_changes_threads_to_ask_who_submits_and_to_do_it(
    routes: object, name: str, in_threads: list[str]
) -> None:
    web = FastAPI()
    web.include_router(routes.router)  # type: ignore[attr-defined]
    [route] = [each for each in web.routes if isinstance(each, APIRoute) and each.name == name]
    plain = {dependant.call.__qualname__ for dependant in dependants(route.dependant) if is_plain(dependant)}  # type: ignore[union-attr]
    assert sorted(plain) == in_threads
