"""An answer in its normal form: what two experts must share to have said the same.

Where the answer stands. A value that has the form's `field` (or `answer`) is read there. In a text the last JSON field
of that name counts, broken JSON included; then the last `\\boxed{}`, `####` and `the answer is`, unless it is
supposed; then the last line where it is the only one, or concludes (`Therefore ...`). A number anywhere else is no
answer: a text that broke off has none. What a model thinks before it answers, in tags, is no part of the text.

What is the same.

- `number`: the exact value, whatever it counts and whether a percent sign follows (see `numerals`). In `9 * 2 = 18` it
  is 18, in `9 * 2` too. What has no value (`x + 3`, `3\\sqrt{2}`, `10:30`) is compared as it is written, without
  spaces and sizes.
- `choice`: one of `choices`, or its letter, by its place; without `choices` a letter: `B`, `(B)`, `B) Paris`.
- `json`: equal values, `18.0` and `18` included, whatever the order of keys.
- `span`: the same words. Case, articles and punctuation are left aside, as SQuAD does; a span that is a number or a
  formula is compared as one.
- `code`: the same syntax tree where it is Python, the literals that programs print included; else the same tokens.
- `text`: equal but for case and white space; `agreement` groups those that are alike.

What cannot be stored (NaN, infinity, JSON without end) is no answer.

Every pattern is possessive or bounded, so an answer of 100 KB costs a few milliseconds.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import string
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import msgspec

from mosaic_tasks.engines.reasoning import ReasoningReader
from mosaic_tasks.mixtures.fields import (
    ABSENT,
    canonical,
    documents,
    encodable,
    field_pattern,
    last_field,
    part,
    storable,
)
from mosaic_tasks.mixtures.numerals import NUMBER, arithmetic, plain, value_of
from mosaic_tasks.mixtures.statements import conclusion, last_boxed, statements
from mosaic_tasks.mixtures.values import Answer, AnswerForm, Form

FIELD = "answer"
"""Where the answer stands in JSON, unless the form says otherwise."""

_LONG = 120
_MAX_STATED = 2_000
_MAX_PARSED = 20_000

_MARKERS = re.compile(r"</s>|<\|(?:endoftext|im_end|eot_id|end)\|>")
"""With which models end, where their host leaves them in."""
_UNIT = re.compile(r"(?!\s*+(?:/|[xyzniπ√](?![A-Za-z])))(?:\^(?:°|\{?+[23]\}?+)|[^\d=≈+*^()\\])*+\Z")
_NO_NUMBER = re.compile(r"[:/-]\d")
"""Behind a number: it is part of a date, a time or a range."""
_WORD = re.compile(r"(?<!\\)(?<!\\begin\{)(?<!\\end\{)(?<![A-Za-z])[A-Za-z]{2,}")
_OPERATOR = re.compile(r"[\\^+*/()\[\],-]|(?<![A-Za-z])[a-zA-Zπ](?![A-Za-z])")
_LONE_BRACES = re.compile(r"\{(\w)\}")

_LETTER = re.compile(
    r"(?:(?:option|choice|answer)[ ])?+[\[({*\"]*+([A-Z])(?:[\])}.:,;*\"]++|\Z)(?! (?:or|and)\b)|\(?([a-z])(?:\)|\Z)"
)
_NAMED_LETTER = re.compile(r"\(([A-Z])\)|\b(?:[Oo]ption|[Cc]hoice)(?: is)?:? \(?([A-Z])\b")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))

_FENCE = re.compile(r"^```[^\n`]*+\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TOKEN = re.compile(r"\"(?:[^\"\\\n]++|\\.)*+\"|'(?:[^'\\\n]++|\\.)*+'|\w++|[^\w\s]")
_CONTROLS = re.compile(r"\x1b\[[0-?]*+[ -/]*+[@-~]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")
"""What terminals obey and nobody sees."""
_COMMENT = re.compile(r"//[^\n]*+|(?<!\S)#[^\n]*+")


def normalise(given: Any, form: AnswerForm) -> Answer | None:
    """The answer in `given`, a text or the value of an agent with an output schema; None where there is none.

    The `value` of the answer is `given` itself where that is no text, else what was read: a number, a choice, a JSON
    value, the text. `shown` is the part that was compared, as it was written; whole where it is code or text.
    """
    if given is None:
        return None
    if not isinstance(given, str):
        value, answer = storable(given), read(_part_of(given, form), form)
        return None if answer is None or value is ABSENT else msgspec.structs.replace(answer, value=value)
    text = _MARKERS.sub("", _without_reasoning(given)).strip()
    return next(filter(None, (read(stated, form) for stated in _stated(text, form))), None)


def _without_reasoning(text: str) -> str:
    reader = ReasoningReader()
    return reader.feed(text).answer + reader.close().answer


def _part_of(given: Any, form: AnswerForm) -> Any:
    """The part of a value that is compared."""
    if form.field or form.form == "json" or not isinstance(given, dict):
        return part(given, form.field)
    return given.get(FIELD, ABSENT if form.form in _STATED_FORMS else given)


def _stated(text: str, form: AnswerForm) -> Iterator[Any]:
    """What the text may give as its answer, the surest first."""
    if form.form == "json":
        yield _json_in(text, form.field)
        return
    if form.field or form.form in _STATED_FORMS:
        name = form.field.rpartition(".")[2] or FIELD
        if form.form not in _STATED_FORMS or field_pattern(name).search(text):
            yield last_field(text, form.field or FIELD)
            return
        yield from statements(text)
        yield conclusion(text, whole_only=form.form == "span")
    else:
        yield text


def _json_in(text: str, field: str) -> Any:
    """The compared part of the longest document, or of the last one that has the field."""
    found = documents(text)
    if not field:
        return max(found, key=lambda each: each.end - each.start).value if found else _scalar(text)
    parts = [held for each in found if (held := part(each.value, field)) is not ABSENT]
    return parts[-1] if parts else last_field(text, field)


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ABSENT


def read(stated: Any, form: AnswerForm) -> Answer | None:
    """What was stated, without anything around it, in its normal form; None where it is no answer."""
    if stated is ABSENT or stated is None or (value := storable(stated)) is ABSENT:
        return None
    if form.form == "json":
        return _json(stated, value)
    text = encodable(stated if isinstance(stated, str) else json.dumps(stated, ensure_ascii=False))
    if form.form in _STATED_FORMS:
        text = last_boxed(text) or text
    if form.form == "choice":
        return _choice(text, form.choices)
    return _READERS[form.form](text.strip())


def _number(text: str) -> Answer | None:
    text = _CONTROLS.sub("", text[:_MAX_STATED])
    cleaned = _result(plain(text))
    formula, found = _formula(cleaned), NUMBER.search(cleaned)
    if found and (_is_whole(found) or formula is None):
        value = value_of(found)
    elif formula is None or (value := arithmetic(cleaned.rstrip("."))) is None:
        return None if formula is None else Answer(_key(formula), _shown(text), text)
    return None if value is None else Answer(str(value), _shown(text), _as_number(value))


def _result(cleaned: str) -> str:
    """What stands behind the last sign of equality, where there is something."""
    behind = re.split("[=≈]", cleaned)[-1].strip()
    return behind if re.search(r"[\dπ\\]", behind) else cleaned


def _is_whole(found: re.Match[str]) -> bool:
    """Whether all of the text is this number and what it counts."""
    return found.start() == 0 and _UNIT.match(found.string, found.end()) is not None


def _formula(cleaned: str) -> str | None:
    """The text as a formula, without spaces; None where it is words."""
    first = NUMBER.search(cleaned)
    is_date = first is not None and _NO_NUMBER.match(cleaned, first.end())
    if is_date or (not _WORD.search(cleaned) and _OPERATOR.search(cleaned)):
        return "=" + _LONE_BRACES.sub(r"\1", "".join(cleaned.split()).replace("dfrac", "frac")).rstrip(".")
    return None


def _as_number(value: Fraction) -> Any:
    return storable(value.numerator) if value.denominator == 1 else float(value)


def _choice(text: str, choices: tuple[str, ...]) -> Answer | None:
    text = text[:_MAX_STATED]
    cleaned = plain(text)
    chosen = _chosen(cleaned, choices) if choices else _letter(cleaned)
    return None if chosen is None else Answer(_key(chosen.casefold()), _shown(text), chosen)


def _letter(cleaned: str) -> str | None:
    """The letter that a text begins with as choices do, or the only one that it names."""
    found = _LETTER.match(cleaned)
    if found is not None:
        return (found[1] or found[2]).upper()
    named = {first or second for first, second in _NAMED_LETTER.findall(cleaned)}
    return named.pop() if len(named) == 1 else None


def _chosen(cleaned: str, choices: tuple[str, ...]) -> str | None:
    """The choice that a text is, begins with, gives the letter of, or holds as the only one."""
    folded = {_folded(choice): choice for choice in choices}
    said = _folded(cleaned)
    if said in folded:
        return folded[said]
    by_letter = dict(zip(string.ascii_uppercase, choices, strict=False))
    if all(len(choice) == 1 for choice in choices):
        by_letter = {choice.upper(): choice for choice in choices}
    letter = _letter(cleaned)
    if letter in by_letter:
        return by_letter[letter]
    return _named(said, {name: choice for name, choice in folded.items() if len(name) > 1})


def _named(said: str, folded: dict[str, str]) -> str | None:
    """The choice that the words begin with, or the only one among them; of `guilty` and `not guilty` the longer."""
    padded = f" {said} "
    found = [name for name in folded if f" {name} " in padded]
    longest = [name for name in found if not any(name != other and name in other for other in found)]
    first = [name for name in longest if re.match(rf" {re.escape(name)} (?!or |and )", padded)]
    chosen = first or longest
    return folded[chosen[0]] if len(chosen) == 1 else None


def _span(text: str) -> Answer | None:
    text = text[:_MAX_STATED]
    cleaned = plain(text)
    found = NUMBER.match(cleaned)
    if (found and found.end() == len(cleaned)) or "\\" in cleaned or "^" in cleaned:
        return _number(text)
    words = " ".join(_ARTICLES.sub(" ", _folded(cleaned)).split()) or _folded(cleaned) or cleaned
    return Answer(_key(words), _shown(text), text) if words else None


def _json(stated: Any, value: Any) -> Answer:
    written = encodable(json.dumps(canonical(stated), ensure_ascii=False, separators=(",", ":")))
    return Answer(_key(written), _shown(written), value)


def _code(text: str) -> Answer | None:
    blocks = _FENCE.findall(text)
    code = (blocks[-1] if blocks else text).strip()
    return Answer(_key(_formatted(code)), code, code) if code else None


def _formatted(code: str) -> str:
    """The code as if everybody formatted it the same."""
    if len(code) <= _MAX_PARSED:
        try:
            return ast.unparse(ast.parse(code))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # not Python, or none that anybody would read
    return " ".join(_TOKEN.findall(_COMMENT.sub("", code)))


def _text(text: str) -> Answer | None:
    words = " ".join(text.casefold().split())
    return Answer(_key(words), text, text) if words else None


def _folded(text: str) -> str:
    """The words alone, whatever their case."""
    return " ".join(text.casefold().translate(_PUNCTUATION).split())


def _key(text: str) -> str:
    """`text`, a digest in place of the end of a long one."""
    if len(text) <= _LONG:
        return text
    return f"{text[: _LONG // 2]}#{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


def _shown(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


_STATED_FORMS: frozenset[Form] = frozenset({"number", "choice", "span"})
"""Those that stand somewhere in an answer; the others are the answer."""
_READERS: dict[Form, Callable[[str], Answer | None]] = {
    "number": _number,
    "span": _span,
    "code": _code,
    "text": _text,
}

__all__ = ["FIELD", "normalise", "read"]
