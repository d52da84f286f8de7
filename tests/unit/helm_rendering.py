"""Renders the templates of our Helm chart as `helm template` does, for tests where no helm is.

It knows the part of Go's template language and of Helm's functions that the chart uses, and refuses everything else.
`values` is what `-f` files add to values.yaml.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

_ACTION = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}(\s*)", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()|]|[^\s()|]+')
_OPENS = ("if", "range", "define")

Node = tuple[str, Any]


def render(
    chart: Path, values: Mapping[str, Any] | None = None, *, release: str = "demo"
) -> list[dict[str, Any]]:
    """The documents of all templates; values that the schema refuses raise `jsonschema.ValidationError`."""
    merged = _merged(yaml.safe_load((chart / "values.yaml").read_text("utf-8")), values or {})
    jsonschema.validate(merged, json.loads((chart / "values.schema.json").read_text("utf-8")))
    rendering = _Rendering(chart)
    root = {"Values": merged, "Release": {"Name": release, "Namespace": "default", "Service": "Helm"}}
    files = sorted((chart / "templates").iterdir(), key=lambda file: file.suffix != ".tpl")
    texts = {file.name: rendering.run(_tree(file.read_text("utf-8")), root, {"$": root}) for file in files}
    documents = (yaml.safe_load_all(text) for name, text in texts.items() if name.endswith(".yaml"))
    return [document for found in documents for document in found if document]


def _merged(ours: Any, theirs: Any) -> Any:
    if not (isinstance(ours, dict) and isinstance(theirs, Mapping)):
        return theirs
    return {**ours, **{name: _merged(ours.get(name), value) for name, value in theirs.items()}}


def _pieces(text: str) -> Iterator[Node]:
    """Text and actions, with the white space that `{{-` and `-}}` eat."""
    at, eats = 0, False
    for found in _ACTION.finditer(text):
        before = text[at : found.start()].lstrip() if eats and at else text[at : found.start()]
        yield "text", before.rstrip() if found[2] else before + found[1]
        yield "action", found[3]
        at, eats = found.end() if found[4] else found.end() - len(found[5]), bool(found[4])
    yield "text", text[at:]


def _tree(text: str) -> list[Node]:
    pieces = _pieces(text)
    nodes, end = _block(pieces)
    assert end is None, f"a stray {end!r}"
    return nodes


def _block(pieces: Iterator[Node]) -> tuple[list[Node], str | None]:
    """Up to `end` or `else`; None at the end of the file."""
    nodes: list[Node] = []
    for kind, text in pieces:
        word, _, rest = text.partition(" ")
        if kind == "text":
            nodes.append((kind, text))
        elif word in ("end", "else"):
            return nodes, word
        elif word in _OPENS:
            then, last = _block(pieces)
            otherwise, last = _block(pieces) if last == "else" else ([], last)
            assert last == "end", f"{text!r} has no end"
            nodes.append((word, (rest, then, otherwise)))
        else:
            nodes.append(("value", text))
    return nodes, None


class _Rendering:
    def __init__(self, chart: Path) -> None:
        self._defined: dict[str, list[Node]] = {}
        self._functions: dict[str, Callable[..., Any]] = {
            "include": lambda name, dot: self.run(self._defined[name], dot, {"$": dot}),
            "nindent": lambda width, text: "".join(f"\n{' ' * width}{line}" for line in text.split("\n")),
            "toYaml": lambda value: yaml.safe_dump(value, width=10_000).removesuffix("\n"),
            "toJson": lambda value: json.dumps(value, separators=(",", ":"), sort_keys=True),
            "quote": lambda value: json.dumps(_text(value)),
            "printf": lambda form, *values: form % tuple(map(_text, values)),
            "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
            "index": lambda value, *keys: _at(value, keys),
            "and": lambda *values: next((value for value in values if not value), values[-1]),
            "not": lambda value: not value,
            ".Files.Get": lambda name: (chart / name).read_text("utf-8"),
            "add": lambda *numbers: sum(numbers),
            "div": lambda a, b: a // b,
        }

    def run(self, nodes: list[Node], dot: Any, variables: dict[str, Any]) -> str:
        return "".join(self._node(kind, content, dot, variables) for kind, content in nodes)

    def _node(self, kind: str, content: Any, dot: Any, variables: dict[str, Any]) -> str:
        if kind == "text":
            return str(content)
        if kind == "value":
            return _text(self._value(content, dot, variables))
        head, then, otherwise = content
        if kind == "define":
            self._defined[json.loads(head)] = then
            return ""
        if kind == "if":
            return self.run(then if self._value(head, dot, variables) else otherwise, dot, variables)
        names, _, source = head.partition(":=")
        key, value = (name.strip() for name in names.split(","))
        items = self._value(source, dot, variables)
        return "".join(
            self.run(then, items[each], {**variables, key: each, value: items[each]})
            for each in sorted(items)
        )

    def _value(self, text: str, dot: Any, variables: dict[str, Any]) -> Any:
        tokens = _TOKEN.findall(text)
        value = self._pipeline(tokens, dot, variables)
        assert not tokens, f"{text!r} goes on after its end"
        return value

    def _pipeline(self, tokens: list[str], dot: Any, variables: dict[str, Any]) -> Any:
        value = self._command(tokens, dot, variables)
        while tokens and tokens[0] == "|":
            del tokens[0]
            value = self._command(tokens, dot, variables, piped=(value,))
        return value

    def _command(
        self, tokens: list[str], dot: Any, variables: dict[str, Any], piped: tuple[Any, ...] = ()
    ) -> Any:
        name = tokens.pop(0) if tokens[0] in self._functions else None
        operands = []
        while tokens and tokens[0] not in ("|", ")"):
            operands.append(self._operand(tokens, dot, variables))
        if name is None:
            assert len(operands) == 1, f"{operands!r} is no value"
            assert not piped, "this is no function"
            return operands[0]
        return self._functions[name](*operands, *piped)

    def _operand(self, tokens: list[str], dot: Any, variables: dict[str, Any]) -> Any:
        token = tokens.pop(0)
        if token == "(":
            value = self._pipeline(tokens, dot, variables)
            assert tokens.pop(0) == ")"
            return value
        if token[0] == '"' or token.isdigit():
            return json.loads(token)
        start, *fields = token.split(".")
        assert token[0] in ".$", f"the function {token!r} is not known here; add it to helm_rendering.py"
        return _at(variables[start] if start else dot, filter(None, fields))


def _at(value: Any, keys: Any) -> Any:
    for key in keys:
        value = value[key]
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
