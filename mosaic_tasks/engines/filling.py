"""A JSON value that fits a schema, made of what the sentences say and of nothing else.

A string is a sentence, or a part of one; a number stands behind a label with the field's name, or near that name;
an enum's value is mentioned; a boolean says whether its name is mentioned, and not denied. What is not found is
left out where the schema allows it, or takes the schema's own default; otherwise the filling fails and names the
field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from mosaic_queues.errors import OutputInvalid
from mosaic_tasks.engines.schema import mismatch
from mosaic_tasks.engines.summary import Sentence, chosen, paragraphs, terms

_MAX_SENTENCES = 400
_DEFAULT_ITEMS = 5
_TEXT_CHARS = 1200

_NUMBER = re.compile(r"(?<![\w.#/-])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w/-]|[.,:]\d)")
_TOKEN = re.compile(rf"{_NUMBER.pattern}|[^\W\d_]+|[^\w\s]")
_NEGATION = re.compile(r"\b(no|not|never|none|without|cannot|nobody|nothing)\b|n't\b", re.IGNORECASE)
_LABEL = re.compile(r"^([^\W\d][\w -]{0,40})\s*[:=]\s+(.+?)[.]?$")
_FORMATS = {
    "date-time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)"),
    "date": re.compile(r"\b\d{4}-\d\d-\d\d\b"),
    "email": re.compile(r"\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+\b"),
    "uri": re.compile(r"\bhttps?://[^\s<>\"')\]]*[^\s<>\"')\].,;:!?]"),
}
_SHAPES = (
    ({"name", "author", "person", "owner", "assignee", "who"}, re.compile(r"[A-Z][\w-]+(?: [A-Z][\w-]+)*")),
    ({"id", "key", "ticket", "hash"}, re.compile(r"\b[A-Z][A-Z0-9]+-\d+\b|#\d+|\b(?=\w*\d)[0-9a-f]{7,40}\b")),
)
_LONG = {
    "summary",
    "report",
    "text",
    "body",
    "overview",
    "content",
    "section",
    "markdown",
    "story",
    "abstract",
}
_COUNTING = {"number", "count", "total", "amount", "num", "many"}


class _Field(msgspec.Struct, frozen=True):
    """What is asked for: where it stands in the answer, and in which words."""

    path: str = ""
    name: tuple[str, ...] = ()
    described: frozenset[str] = frozenset()
    refs: frozenset[str] = frozenset()

    def inner(self, name: str, schema: dict[str, Any]) -> _Field:
        described = frozenset(terms(f"{schema.get('title', '')} {schema.get('description', '')}"))
        return _Field(f"{self.path}.{name}".removeprefix("."), _name_words(name), described, self.refs)

    def missing(self, why: str) -> OutputInvalid:
        return OutputInvalid(
            f"field {self.path or '(the whole answer)'!r} cannot be filled from the input: {why}; "
            "say it in the prompt, give the field a default, or choose a model"
        )


def fill(schema: dict[str, Any], sentences: Sequence[Sentence], *, chars: int = _TEXT_CHARS) -> Any:
    """A value that fits `schema`, from `sentences`.

    Args:
        schema: a JSON Schema; references inside it are followed.
        sentences: from `ranked`.
        chars: a text field is at most so long.

    Raises:
        OutputInvalid: a field that must be there cannot be filled.
        EngineRefused: `schema` is not a JSON Schema.
    """
    mismatch(None, schema)
    best = sorted(sentences, key=lambda sentence: -sentence.score)[:_MAX_SENTENCES]
    value = _Form(schema, chars).value(schema, _Field(), sorted(best, key=lambda sentence: sentence.place))
    if wrong := mismatch(value, schema):
        raise OutputInvalid(f"what the input says does not fit the output schema: {wrong}; choose a model")
    return value


class _Form:
    """One filling: knows the root schema, and which sentences were used."""

    def __init__(self, root: dict[str, Any], chars: int) -> None:
        self._root = root
        self._chars = chars
        self._used: set[str] = set()
        self._kinds: dict[str, Callable[[dict[str, Any], _Field, list[Sentence]], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._number,
            "number": self._number,
            "boolean": self._boolean,
        }

    def value(self, schema: Any, field: _Field, sentences: list[Sentence]) -> Any:
        schema, field = self._resolved(schema, field)
        if "const" in schema:
            return schema["const"]
        failure = field.missing("its schema names no type")
        for attempt in self._tries(schema, field, sentences):
            try:
                return attempt()
            except OutputInvalid as error:
                failure = error
        if "default" in schema:
            return schema["default"]
        if _is_nullable(schema):
            return None
        raise failure

    def _tries(
        self, schema: dict[str, Any], field: _Field, sentences: list[Sentence]
    ) -> Iterator[Callable[[], Any]]:
        """The ways to fill `schema`, best first."""
        if "enum" in schema:
            yield partial(self._enum, schema, field, sentences)
            return
        for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
            if option != {"type": "null"}:
                yield partial(self.value, option, field, sentences)
        for kind in _types(schema):
            if kind in self._kinds:
                yield partial(self._kinds[kind], schema, field, sentences)

    def _resolved(self, schema: Any, field: _Field) -> tuple[dict[str, Any], _Field]:
        if not isinstance(schema, dict):
            return {}, field
        if (ref := schema.get("$ref")) is None:
            return schema, field
        if ref in field.refs:
            raise field.missing("its schema contains itself")
        target: Any = self._root
        for step in str(ref).removeprefix("#").split("/")[1:]:
            target = target.get(step, {}) if isinstance(target, dict) else {}
        deeper = msgspec.structs.replace(field, refs=field.refs | {ref})
        return self._resolved({**target, **{k: v for k, v in schema.items() if k != "$ref"}}, deeper)

    def _object(self, schema: dict[str, Any], field: _Field, sentences: list[Sentence]) -> dict[str, Any]:
        filled = {}
        for name, inner in schema.get("properties", {}).items():
            known = inner if isinstance(inner, dict) else {}
            try:
                filled[name] = self.value(known, field.inner(name, known), sentences)
            except OutputInvalid:
                if name in schema.get("required", ()):
                    raise
        return filled

    def _array(self, schema: dict[str, Any], field: _Field, sentences: list[Sentence]) -> list[Any]:
        items = schema.get("items")
        items = items if isinstance(items, dict) else {"type": "string"}
        if items.get("$ref") in field.refs:
            return []  # a tree: it ends here
        inner, _ = self._resolved(items, field)
        least, most = schema.get("minItems", 0), schema.get("maxItems", _DEFAULT_ITEMS)
        if "enum" in inner:
            return _mentioned(inner["enum"], sentences)[:most]
        kind = next(iter(_types(inner)), "string")
        if kind in ("integer", "number"):
            return _within(inner, (number for number, _ in _numbers(field, sentences)))[:most]
        ranking = self._by_match(field, sentences)
        matching = [sentence for match, sentence in ranking if match > 0] if field.name else []
        wanted = matching if len(matching) >= max(least, 1) else [sentence for _, sentence in ranking]
        if kind == "string":
            return self._strings(inner, wanted, most)
        return self._items(items, field, sorted(wanted, key=lambda one: one.place), most)

    def _strings(self, inner: dict[str, Any], sentences: list[Sentence], most: int) -> list[str]:
        fitting = [one for one in sentences if mismatch(one.text, inner) is None]
        taken = chosen(fitting, count=most, chars=self._chars)
        self._used.update(one.text for one in taken)
        return [one.text for one in taken]

    def _items(self, items: dict[str, Any], field: _Field, sentences: list[Sentence], most: int) -> list[Any]:
        """An item for each sentence that can fill one and repeats no other."""
        filled: list[Any] = []
        for sentence in chosen(sentences, count=None, chars=self._chars):
            if len(filled) == most:
                break
            inside = msgspec.structs.replace(field, path=f"{field.path}[{len(filled)}]")
            try:
                filled.append(self.value(items, inside, [sentence]))
            except OutputInvalid:
                continue  # this sentence says nothing about such an item
        return filled

    def _enum(self, schema: dict[str, Any], field: _Field, sentences: list[Sentence]) -> Any:
        ranking = [sentence for _, sentence in self._by_match(field, sentences)]
        if found := _mentioned(schema["enum"], ranking):
            return found[0]
        if None in schema["enum"]:
            return None
        raise field.missing(f"none of {schema['enum']!r} is mentioned")

    def _number(self, schema: dict[str, Any], field: _Field, sentences: list[Sentence]) -> int | float:
        texts = _labelled(field, [sentence.text for sentence in sentences])
        labelled = (_as_number(digits) for text in texts for digits in _NUMBER.findall(text))
        near = (number for number, distance in _numbers(field, sentences) if distance is not None)
        if fitting := _within(schema, chain(labelled, near)):
            return fitting[0]
        raise field.missing("no fitting number stands near its name")

    def _boolean(self, _schema: dict[str, Any], field: _Field, sentences: list[Sentence]) -> bool:
        """Whether the field's name is mentioned, in a sentence that does not deny it."""
        about = [one for one in sentences if _share(field.name, one) == 1.0]
        return bool(about) and not _NEGATION.search(about[0].text)

    def _string(self, schema: dict[str, Any], field: _Field, sentences: list[Sentence]) -> str:
        longest = schema.get("maxLength", self._chars)
        for candidate in self._candidates(schema, field, sentences, longest):
            text = _cut(candidate, longest)
            if text and mismatch(text, schema) is None:
                self._used.add(candidate)
                return text
        raise field.missing("no fitting words are in the input")

    def _candidates(
        self, schema: dict[str, Any], field: _Field, sentences: list[Sentence], longest: int
    ) -> Iterator[str]:
        """The texts that may fill a string, best first."""
        ranking = [sentence.text for _, sentence in self._by_match(field, sentences)]
        shape = _FORMATS.get(schema.get("format", ""))
        if shape is not None:
            yield from (match.group() for text in ranking for match in shape.finditer(text))
            return
        yield from _labelled(field, ranking)
        if _LONG & {*field.name} and "pattern" not in schema:
            taken = chosen(sentences, count=None, chars=min(longest, self._chars))
            yield "\n\n".join(" ".join(paragraph) for paragraph in paragraphs(taken))
        for words, pattern in _SHAPES:
            if words & {*field.name}:
                yield from (match.group() for text in ranking for match in pattern.finditer(text))
        yield from ranking
        if "pattern" in schema:
            yield from (word.strip(".,;:()[]`\"'") for text in ranking for word in text.split())

    def _by_match(self, field: _Field, sentences: Sequence[Sentence]) -> list[tuple[float, Sentence]]:
        """The sentences with how well they match the field's words; unused ones first among equals."""
        matches = [
            (2 * _share(field.name, one) + _share(tuple(field.described), one), one) for one in sentences
        ]
        return sorted(
            matches, key=lambda pair: (pair[1].text in self._used, -pair[0], -pair[1].score, pair[1].place)
        )


def _name_words(name: str) -> tuple[str, ...]:
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)
    return tuple(part.lower() for part in parts) or (name.lower(),)


def _types(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type")
    if kind is None and not {"anyOf", "oneOf", "allOf"} & schema.keys():
        return ["object" if "properties" in schema else "array" if "items" in schema else "string"]
    return [kind] if isinstance(kind, str) else list(kind or ())


def _is_nullable(schema: dict[str, Any]) -> bool:
    options = (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
    return {"type": "null"} in options or "null" in _types(schema)


def _share(words: Sequence[str], sentence: Sentence) -> float:
    """Which part of `words` the sentence holds, 0 to 1."""
    if not words:
        return 0.0
    held = re.findall(r"[^\W_]+", sentence.text.lower())
    return sum(any(_alike(word, other) for other in held) for word in words) / len(words)


def _alike(one: str, other: str) -> bool:
    """Equal, or forms of one word: `merge`, `merged`, `merges`."""
    if one == other:
        return True
    shorter, longer = sorted((one, other), key=len)
    stem = shorter.removesuffix("e").removesuffix("y")
    return len(stem) >= 3 and longer.startswith(stem) and len(longer) - len(stem) <= 3


def _mentioned(options: Sequence[Any], sentences: Sequence[Sentence]) -> list[Any]:
    """The options that the sentences mention, in the order of the sentences."""
    found: list[Any] = []
    for sentence in sentences:
        text = sentence.text.lower()
        places = {text.find(str(option).lower()): option for option in options if _mentions(text, option)}
        found += [places[place] for place in sorted(places) if places[place] not in found]
    return found


def _mentions(text: str, option: Any) -> bool:
    words = str(option).lower().replace("_", " ")
    return option is not None and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _numbers(field: _Field, sentences: Sequence[Sentence]) -> list[tuple[int | float, int | None]]:
    """The numbers of the sentences, each with its distance from the field's name; near ones first."""
    found = []
    for sentence in sentences:
        tokens = _TOKEN.findall(sentence.text.lower())
        named = [place for place, token in enumerate(tokens) if _names(field, token)]
        for place, token in enumerate(tokens):
            if _NUMBER.fullmatch(token):
                # A number before its noun ("12 commits") wins over one behind it ("commits 3").
                away = min((2 * abs(place - name) + (place > name) for name in named), default=None)
                found.append((_as_number(token), away))
    return sorted(found, key=lambda pair: float("inf") if pair[1] is None else pair[1])


def _names(field: _Field, token: str) -> bool:
    words = [word for word in field.name if word not in _COUNTING] or [*field.name]
    return any(_alike(word, token) for word in words)


def _as_number(token: str) -> int | float:
    digits = token.replace(",", "")
    return float(digits) if "." in digits else int(digits)


def _within(schema: dict[str, Any], numbers: Iterator[int | float]) -> list[int | float]:
    return [number for number in numbers if mismatch(number, schema) is None]


def _labelled(field: _Field, texts: Sequence[str]) -> Iterator[str]:
    """What stands behind the field's name in `Name: what` lines."""
    for text in texts:
        label = _LABEL.match(text)
        if label and _name_words(label.group(1).title().replace(" ", "")) == field.name:
            yield label.group(2)


def _cut(text: str, longest: int) -> str:
    """`text`, at most so long, cut between words."""
    if len(text) <= longest:
        return text
    return text[: longest + 1].rpartition(" ")[0].rstrip(" ,;:-") or text[:longest]
