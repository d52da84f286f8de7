"""The page of the gateway's routes, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from manual.shapes import literal, shapes, type_of
from manual.words import page, prose, table

_ERRORS = (
    "Errors are problems (RFC 9457), each with `status`, `title` and `detail`; those of `/v1/models` and `/v1/chat` "
    "have OpenAI's form."
)
_NO_NEWS = "Successful Response"
"""What FastAPI says of an answer of which nothing is said."""


def http_page() -> str:
    """The gateway's HTTP interface."""
    from mosaic_tasks.gateway.application import application
    from mosaic_tasks.gateway.callers import Gateway
    from mosaic_tasks.gateway.catalog import Catalog

    nobody: Any = None
    document = application(Gateway(nobody, Catalog([]), nobody)).openapi()
    schemas = document["components"]["schemas"]
    left_out = ("HTTPValidationError", "ValidationError")
    titles = {name: name for name in sorted(schemas) if name not in left_out}
    about = (
        "From the OpenAPI document, which a gateway serves as `/openapi.json`. [The gateway](../gateway.md) tells how "
        "to use it, [OpenAI's clients](../openai.md) what of their interface there is."
    )
    routes = (text for path, ways in document["paths"].items() for way, route in ways.items()
              for text in _route(f"{way.upper()} {path}", route, titles))  # fmt: skip
    return page(
        "HTTP", about, _statuses(document), *routes, "## Shapes", *_below(shapes(schemas, titles=titles))
    )


def _below(texts: Iterable[str]) -> Iterator[str]:
    """A level deeper."""
    return (f"#{text}" if text.startswith("## ") else text for text in texts)


def _statuses(document: Mapping[str, Any]) -> str:
    """What an answer other than success means; the same for all routes."""
    found = {
        code: answer["description"]
        for ways in document["paths"].values()
        for route in ways.values()
        for code, answer in sorted(route["responses"].items())
        if int(code) >= 400 and "application/problem+json" in answer.get("content", {})
    }
    rows = [(code, found[code]) for code in sorted(found)]
    return f"{_ERRORS}\n\n{table(('status', 'when'), rows)}"


def _route(name: str, route: Mapping[str, Any], titles: Mapping[str, str]) -> Iterator[str]:
    yield f"## {name}"
    scopes = [f"`{scope}`" for each in route.get("security", ()) for scope in each["HTTPBearer"]]
    yield prose(f"{route['summary']}. {route.get('description', '')}")
    yield f"Scope: {', '.join(scopes)}." if scopes else "Asks nobody who they are."
    rows = [
        (f"`{each['name']}`", each["in"], type_of(each["schema"], titles), literal(each["schema"].get("default")),
         each.get("description", ""))
        for each in route.get("parameters", ())
    ]  # fmt: skip
    if rows:
        yield table(("parameter", "in", "type", "default", "meaning"), rows)
    if "requestBody" in route:
        yield f"Body: {type_of(route['requestBody']['content']['application/json']['schema'], titles)}."
    yield "\n".join(_answers(route["responses"], titles))


def _answers(answers: Mapping[str, Any], titles: Mapping[str, str]) -> Iterator[str]:
    for code, answer in sorted(answers.items()):
        if int(code) < 400:
            about = answer["description"] if answer["description"] != _NO_NEWS else ""
            told = [_content(kind, each, titles) for kind, each in answer.get("content", {}).items()]
            yield f"- {code}: {': '.join(filter(None, [', '.join(told), about]))}"
    yield f"- else {', '.join(code for code in sorted(answers) if int(code) >= 400)}"


def _content(kind: str, content: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    schema = content.get("schema", {})
    return type_of(schema, titles) if "$ref" in schema else f"`{kind}`"
